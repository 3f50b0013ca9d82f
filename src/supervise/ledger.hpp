// supervise.jsonl in the run directory: what a supervisor did, one JSON object per line (doc/reliability.md). A
// supervisor that was killed is continued from it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace espalier {

/// The file.
std::string LedgerFile(const std::string& run_dir);

/// The starts and failures of earlier supervisors, and the run of one that was killed.
struct LedgerPast {
  int starts = 0;  ///< of all supervisors of this run
  /// The launcher of a start whose end is not recorded.
  struct Orphan {
    std::string host;
    pid_t process = 0;
    int64_t ticks = 0;  ///< StartTicks
  };
  std::optional<Orphan> orphan;
  /// Blamed hosts of each failure since the last event "end", in order.
  std::vector<std::vector<std::string>> failures;
  std::vector<std::string> excluded;  ///< since then
};

/// A missing file has no past; lines that cannot be read are skipped. Throws UserError (kData) for a file that is too
/// large or none.
LedgerPast ReadLedger(const std::string& run_dir);

/// Appends a line; `time` is added. A line that cannot be written is warned of once.
class Ledger {
 public:
  explicit Ledger(const std::string& run_dir) : path_(LedgerFile(run_dir)) {}
  void Write(nlohmann::ordered_json line);

 private:
  std::string path_;
  bool warned_ = false;
};

}  // namespace espalier
