// Costs from a table of measured times: the row itself, or the nearest measured neighbours.
#pragma once

#include <functional>
#include <optional>

#include "espalier/costs/costs.hpp"

namespace espalier {

/// An unmeasured kernel is interpolated between at most this number of nearest rows of its op and variant.
inline constexpr size_t kNeighbours = 4;
/// Each size of a neighbour differs by at most this factor.
inline constexpr double kNeighbourFactor = 8;
/// A size may be outside the range of measured sizes by at most this factor.
inline constexpr double kBeyondFactor = 2;

using KernelFormula = std::function<double(const LocalOp& op, bool accumulate)>;  ///< us
using BytesFormula = std::function<double(int64_t bytes)>;                        ///< us, rising

/// The measured time of the kernel. Otherwise its formula times the weighted mean of measured / formula of its
/// neighbours; a weight is the inverse of the distance between the logarithms of the sizes. Nothing without a
/// neighbour.
std::optional<Cost> MeasuredKernel(const CostTable& table, const LocalOp& op, bool accumulate,
                                   const KernelFormula& formula);

/// Interpolates linearly between the measured points of the kind at this place. Fewer bytes than the first point cost
/// as much as it does. Beyond the last point the slope is the one between the last two points, or between the first and
/// the last, whichever is steeper. A point below an earlier one counts as equal to it. One point alone scales the
/// formula. Nothing if the place was not measured. Rises with `bytes`.
std::optional<Cost> MeasuredTransfer(const CostTable& table, OpKind kind, const GroupPlace& place, int64_t bytes,
                                     const BytesFormula& formula);

}  // namespace espalier
