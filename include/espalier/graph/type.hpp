// The type of a value: element type, global shape, and for each mesh axis whether the value is replicated, sharded on a
// dim, or partial (still to be reduced).
#pragma once

#include <string>
#include <vector>

#include "espalier/mesh/mesh.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// How partial results are reduced.
enum class Reduce : uint8_t { kSum, kMax };

/// Per tensor dim the axes that shard it, major first; and the axes on which the value is still partial. It is
/// replicated on every other axis. Axes of degree 1 are never named.
struct Placements {
  std::vector<std::vector<Axis>> dims;
  AxisSet partial_sum;
  AxisSet partial_max;

  bool operator==(const Placements&) const = default;
  AxisSet Sharded() const;
  AxisSet Partial() const { return partial_sum | partial_max; }
  /// The dim that `axis` shards, or -1.
  int DimOf(Axis axis) const;
};

struct Type {
  Dtype dtype = Dtype::kF32;
  Shape shape;  ///< global
  Placements placements;

  bool operator==(const Type&) const = default;
};

/// A replicated type.
Type MakeType(Dtype dtype, Shape shape);

/// "bf16[4{dp_shard},128{cp,tp},64]+sum{tp}"; the form ParseType reads.
std::string ToString(const Type& type);
Type ParseType(std::string_view text);

/// Half-open range of indices of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t Extent() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Shard i of n of a range with `extent` elements: [min(extent, i c), min(extent, (i+1) c)), c = ceil(extent / n).
/// Shards may be empty.
Range ShardOf(Range whole, int n, int i);

/// One range per dim: a region of a tensor, such as the shard that a rank holds.
using Box = std::vector<Range>;

Shape ExtentsOf(const Box& box);
/// The intersection; extents are 0 where there is none.
Box Intersect(const Box& a, const Box& b);
bool IsEmpty(const Box& box);

/// The shard of the rank at `coordinate`. Axes on one dim nest, major first: each shards what the one before it left.
Box LocalBox(const Type& type, const Mesh& mesh, const Coordinate& coordinate);
Shape LocalShape(const Type& type, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
