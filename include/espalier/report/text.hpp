// Human-readable numbers.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

/// "999 B", "1.50 KiB", "12.3 MiB", "79.2 GiB": three significant digits.
std::string HumanBytes(int64_t bytes);

/// "999", "12.3k", "1.50M", "70.6G": three significant digits from 1,000 on; "-" if not finite.
std::string HumanCount(double count);

/// "42s", "27m04s", "3h05m", "2d03h", rounded to the second; "-" if negative or not finite.
std::string HumanDuration(double seconds);

}  // namespace espalier
