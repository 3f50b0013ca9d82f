// Costs from a table of measured times: a row of its own, or the neighbours of what was not measured.
#pragma once

#include <functional>
#include <optional>

#include "espalier/costs/costs.hpp"

namespace espalier {

/// An unmeasured kernel is interpolated between the nearest rows of its op and variant, at most so many.
inline constexpr size_t kNeighbours = 4;
/// Each size of a neighbour differs by at most this factor.
inline constexpr double kNeighbourFactor = 8;
/// A size is at most this factor outside of the range of those that were measured.
inline constexpr double kBeyondFactor = 2;

using KernelFormula = std::function<double(const LocalOp& op, bool accumulate)>;  ///< us
using BytesFormula = std::function<double(int64_t bytes)>;                        ///< us, rising

/// The measured time of the kernel. Else its formula times the mean of measured / formula of its neighbours, each
/// weighted by the inverse of its distance (that of the logarithms of the sizes). Nothing without a neighbour.
std::optional<Cost> MeasuredKernel(const CostTable& table, const LocalOp& op, bool accumulate,
                                   const KernelFormula& formula);

/// Straight lines between the measured points of the kind at this place. Fewer bytes than the first point cost as much
/// as it does; beyond the last point the slope goes on: that of the last two points, or that of the first and the last,
/// whichever is steeper. A point that is below an earlier one counts as equal to it. With one point the formula is
/// scaled to it. Nothing if the place was not measured. Rises with `bytes`.
std::optional<Cost> MeasuredTransfer(const CostTable& table, OpKind kind, const GroupPlace& place, int64_t bytes,
                                     const BytesFormula& formula);

}  // namespace espalier
