// run.time_limit as a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

/// Seconds of a time as Slurm writes it ("minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours",
/// "days-hours:minutes", "days-hours:minutes:seconds"; at most six digits each, below 60 or 24 after a larger unit) or
/// with a unit ("90s", "30m", "1h", "2d"); nothing for any other text and for zero.
std::optional<int64_t> TimeLimitSeconds(std::string_view text);

}  // namespace espalier
