// Human-readable numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

/// "999 B", "1.50 KiB", "12.3 MiB", "79.2 GiB": three significant digits.
std::string HumanBytes(int64_t bytes);

/// "999", "12.3k", "1.50M", "70.6G": three significant digits from 1,000 on; "-" if not finite.
std::string HumanCount(double count);

/// "1 file", "803968 tokens", "1.90M tokens": exact below a million.
std::string Counted(int64_t count, std::string_view thing);

/// "803968 (0.804 M)", "8030261248 (8.03 B)": exact, and in millions, billions or trillions with four digits.
std::string ExactCount(int64_t count);

/// "999 FLOP", "5.01 MFLOP", "1.28 GFLOP": three significant digits.
std::string HumanFlops(double flops);

/// "42s", "27m04s", "3h05m", "2d03h", rounded to the second; "-" if negative or not finite.
std::string HumanDuration(double seconds);

}  // namespace espalier
