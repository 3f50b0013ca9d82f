// The indices of one dim that a rank holds, and the volume of its shard: LocalBox without its box.
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/graph/type.hpp"

namespace espalier {

/// The indices of one dim that the rank at `coordinate` holds.
Range LocalRange(const Type& type, size_t dim, const Mesh& mesh, const Coordinate& coordinate);

/// The shards of a dim, on all ranks.
inline int64_t ShardsOf(const Type& type, size_t dim, const Mesh& mesh) {
  int64_t shards = 1;
  for (Axis a : type.placements.dims[dim]) shards *= mesh.Degree(a);
  return shards;
}

/// The axes over which ZeRO shards a state of this layout, as far as they do not shard it anyway: for experts also tp,
/// whose ranks have the same experts and other tokens, or other experts.
inline AxisSet StateAxesOf(std::string_view layout) {
  return layout.starts_with("expert") ? kStateAxes | kTensorAxes : kStateAxes;
}

/// The dim on which ZeRO shards a state, of which other axes leave `local`: the first with an element for each of
/// `shards`, or else the first.
inline size_t StateDim(const Shape& local, int64_t shards) {
  for (size_t dim = 0; dim < local.size(); ++dim)
    if (local[dim] >= shards) return dim;
  return 0;
}

/// Volume of the local shape; CHECKs that it does not wrap.
int64_t LocalVolume(const Type& type, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
