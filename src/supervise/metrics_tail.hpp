// The lines that a run appends to metrics.jsonl while it runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace espalier {

/// Reads complete lines as they are written.
class MetricsTail {
 public:
  /// Begins at the present end of the file, which may be missing.
  explicit MetricsTail(const std::string& run_dir);

  /// Reads on; false if nothing new is there. Lines that cannot be read are skipped.
  bool Read();

  /// Since the construction:
  std::optional<int64_t> first_step() const { return first_; }  ///< the step that the start continues from
  std::optional<int64_t> last_step() const { return last_; }    ///< the last step that was reported
  double first_time() const { return first_time_; }  ///< when the first step was reported, seconds since 1970
  double last_time() const { return last_time_; }    ///< the same of the last step
  /// Ranks and links that were named as slow (events straggler and slow_link) since the last call, as in metrics.jsonl.
  std::vector<nlohmann::json> TakeSlow() { return std::exchange(slow_, {}); }
  const std::vector<int>& corrupt() const { return corrupt_; }  ///< ranks of the last event "corruption"

 private:
  void Take(const std::string& line);

  std::string path_, block_;
  int64_t offset_ = 0;
  std::optional<int64_t> first_, last_;
  double first_time_ = 0, last_time_ = 0;
  std::vector<int> corrupt_;
  std::vector<nlohmann::json> slow_;
};

}  // namespace espalier
