// Which hosts the next start uses. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace espalier {

/// The hosts of a run: their failures, and which of them may be used.
class HostPool {
 public:
  HostPool(std::vector<std::string> names, int most_failures) : names_(std::move(names)), most_(most_failures) {}

  const std::vector<std::string>& names() const { return names_; }
  /// A start has failed, and these hosts are blamed: they are used again only where no other host is left, and never
  /// after too many failures.
  void Failed(const std::vector<std::string>& blamed);
  /// Never use it again.
  void Exclude(const std::string& name) { states_[name].excluded = true; }
  /// The answer to the last probe.
  void SetAnswers(const std::string& name, bool answers) { states_[name].answers = answers; }

  int Failures(const std::string& name) const;
  bool Answers(const std::string& name) const;
  bool Usable(const std::string& name) const;
  size_t UsableCount() const;

  /// At most `count` usable hosts, in the order of ranks. A host of `before` that has not failed since then keeps its
  /// place, so that its ranks find their state there. Others are taken in this order: those that never failed, those
  /// whose failure is longest ago.
  std::vector<std::string> Choose(const std::vector<std::string>& before, size_t count) const;

 private:
  struct State {
    int failures = 0;
    int64_t last = 0;  ///< number of the last failure, from 1
    bool answers = true, excluded = false;
  };
  const State& Of(const std::string& name) const;

  std::vector<std::string> names_;
  int most_;
  int64_t count_ = 0;
  std::map<std::string, State> states_;
};

}  // namespace espalier
