// Why a start of a run has ended, and which hosts are to blame, from its exit status, what the launcher and the ranks
// printed to standard error, and the events of metrics.jsonl. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

enum class CauseKind : uint8_t {
  kDone,
  kStopped,  ///< asked to stop, with a checkpoint
  kRefused,  ///< deck, data or memory: another host would refuse them, too
  kProcess,  ///< a rank has died or reported an error
  kHost,     ///< the launcher has lost a host
  kHang,     ///< the watchdog has ended it
  kCorrupt,  ///< values that ranks should hold alike differ
  kUnknown,
};
std::string_view Name(CauseKind kind);  ///< "hang", as the ledger has it

struct Cause {
  CauseKind kind = CauseKind::kUnknown;
  std::vector<int> ranks;          ///< that are to blame; may be unknown
  std::vector<std::string> hosts;  ///< of them, or named by the launcher
  std::string text;                ///< one line
};

/// A start that has ended.
struct StartEnd {
  int status = 0;                  ///< exit status of the launcher; 128 and more: a signal
  bool done = false;               ///< the run's file `done` is there
  std::string errors;              ///< the end of its standard error
  std::vector<std::string> hosts;  ///< in the order of ranks
  int ranks_each = 1;
  std::vector<int> corrupt;  ///< ranks of the last event "corruption"
};

Cause FindCause(const StartEnd& end);

}  // namespace espalier
