// metrics.jsonl of a run, read back: the steps that count, the steps that were given up, and the events. doc/metrics.md
// defines which lines count; espalier.read_metrics of the Python package has the same rules.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/history/step_columns.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// A line with the field "event".
struct Event {
  int64_t line = 0;  ///< line of the file, from 1
  std::string kind;  ///< "start", "checkpoint", ...
  nlohmann::json fields;
};

/// The field as a number or as text. NaN, nothing or "" if it is absent or of another type: the file may be damaged.
double NumberOf(const nlohmann::json& fields, std::string_view name);
std::optional<int64_t> IntegerOf(const nlohmann::json& fields, std::string_view name);
std::string TextOf(const nlohmann::json& fields, std::string_view name);

/// A point where a run continued, after a restart or a rollback. Earlier steps from `first_step` on are given up.
struct Resumption {
  enum class Kind : uint8_t { kRestart, kRollback } kind = Kind::kRestart;
  int64_t first_step = 1;
  int64_t given_up = 0;  ///< number of steps
};

/// A number that was not finite.
struct NotFinite {
  int64_t step = 0;
  std::string field, value;  ///< "loss", "nan"
};

/// Limits of the bytes of a file and of a line; longer lines are left out.
inline constexpr int64_t kMaxMetricsBytes = int64_t{1} << 30, kMaxMetricsLine = int64_t{16} << 20;
/// Lines that cannot be read are listed up to this number.
inline constexpr size_t kMaxUnread = 100;

/// A line that cannot be read.
struct UnreadLine {
  int64_t line = 0;  ///< from 1
  std::string why;
};

/// How many tokens of a step each expert served.
struct ExpertLoads {
  int64_t step = 0;
  std::vector<std::vector<double>> by_layer;  ///< of layers with experts, each with the same number of experts
};

struct RunHistory {
  std::string folder;    ///< run.dir, as given
  StepColumns steps;     ///< steps that count, ascending; validations are in "val_loss" of their step
  StepColumns given_up;  ///< in the order in which they were given up
  std::vector<Event> events;
  std::vector<Resumption> resumptions;
  std::optional<ExpertLoads> loads;      ///< of the last step that counts and has them
  std::vector<NotFinite> not_finite;     ///< also of steps that were given up
  std::vector<UnreadLine> unread;        ///< the first kMaxUnread of them
  int64_t unread_lines = 0;              ///< all
  double first_time = 0, last_time = 0;  ///< times of the first and last line, seconds since 1970; NaN: no line has one

  /// Events of one kind, in order.
  std::vector<const Event*> EventsOf(std::string_view kind) const;
  /// The last event "start"; null if none can be read.
  const Event* LastStart() const;
  /// The event "end" of the last start; null if the run continues, or was killed.
  const Event* End() const;
};

/// The file of a run.
std::string MetricsFile(const std::string& folder);

/// Reads metrics.jsonl in `folder`, line by line: it needs memory for columns and events only. A line that cannot be
/// read is listed and skipped. Throws UserError (kData) if there is no such file, no line of it can be read, or it
/// exceeds the limits.
RunHistory ReadHistory(const std::string& folder);

/// The same from the text of a file; `path` is for messages.
RunHistory ParseHistory(std::string_view text, const std::string& path);

}  // namespace espalier
