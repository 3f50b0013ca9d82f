// The median of some numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace espalier {

/// The middle value; the mean of the two middle ones if their number is even. NaN if there are no values.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace espalier
