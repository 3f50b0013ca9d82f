// Statistics of columns, and their text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/history/run_history.hpp"

namespace espalier {

/// "-" for unknown values.
inline constexpr const char* kUnknown = "-";

/// The finite values of a column.
std::vector<double> FiniteOf(const StepColumns& steps, std::string_view name);

/// The sum of the finite values.
double SumOf(const StepColumns& steps, std::string_view name);

/// "2026-11-23 14:05:09 UTC".
std::string DateText(double seconds_since_epoch);

/// As metrics.jsonl writes a loss: nine significant digits.
std::string NineDigits(double value);

/// "12.3 ms", "4.56 s", "2h05m".
std::string MillisecondsText(double ms);

/// "41.2 %".
std::string PercentText(double share);

/// "3 steps", "1 step".
std::string Count(int64_t number, const std::string& word);

}  // namespace espalier
