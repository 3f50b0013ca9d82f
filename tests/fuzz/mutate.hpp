// Random changes to an input, from a seed alone: equal on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier::fuzz {

class Mutator {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 16;

  /// `corpus` is not empty; `words` are worth inserting.
  Mutator(std::vector<std::string> corpus, std::vector<std::string> words, uint64_t seed);

  /// One of the corpus after one to eight changes.
  std::string Next();

 private:
  uint64_t Draw(uint64_t below);
  const std::string& Pick(const std::vector<std::string>& list) { return list[Draw(list.size())]; }
  /// Begin and length of a part of `text`, mostly short.
  std::pair<size_t, size_t> Part(const std::string& text);
  /// As above, with whole lines.
  std::pair<size_t, size_t> Lines(const std::string& text);
  void Change(std::string& text);
  void ChangeByte(std::string& text);
  void ReplaceNumber(std::string& text);
  void OverwriteInteger(std::string& text);
  void Repeat(std::string& text);
  void Splice(std::string& text);

  std::vector<std::string> corpus_, words_;
  uint64_t state_;
};

}  // namespace espalier::fuzz
