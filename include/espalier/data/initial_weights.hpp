// Initial weights: every element depends only on the seed, the parameter's name and its global index, so that any
// layout starts from the same bits (doc/numerics.md).
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/graph/type.hpp"

namespace espalier {

/// Fills `out` (dense, row-major, the extents of `box`) with that part of the global tensor of `shape` whose element e
/// (row-major) is float(std * NormalAt(seed, name, e)). An empty box writes nothing.
void FillNormal(float* out, int64_t seed, std::string_view name, const Shape& shape, const Box& box, double std);

}  // namespace espalier
