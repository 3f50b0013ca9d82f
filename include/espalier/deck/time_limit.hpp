// run.time_limit as a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

/// Seconds of "hh:mm:ss" (one to six digits of hours, two of minutes and seconds below 60); nothing for any other text and for zero.
std::optional<int64_t> TimeLimitSeconds(std::string_view text);

}  // namespace espalier
