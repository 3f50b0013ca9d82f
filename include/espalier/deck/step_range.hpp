// report.trace as numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

/// Steps from `first` to `last`, both included, from 1.
struct StepRange {
  int64_t first = 1, last = 0;
  bool Has(int64_t step) const { return first <= step && step <= last; }
};

/// The steps of "first:last"; no step for "". Nothing for any other text.
std::optional<StepRange> ParseStepRange(std::string_view text);

}  // namespace espalier
