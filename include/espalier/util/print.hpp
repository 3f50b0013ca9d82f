// Console output that does not end the program when its reader has exited.
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

namespace espalier {

/// Prints to the standard error. Unlike fmt::print it does not throw: text that cannot be written (a closed pipe or
/// terminal) is lost.
template <typename... Values>
void PrintError(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

/// Removes the meaningless sign of a NaN, which would be printed as "-nan"; other numbers are unchanged.
inline double PlainNan(double x) { return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x; }

}  // namespace espalier
