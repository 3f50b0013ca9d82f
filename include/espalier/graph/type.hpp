// What is known of a value before any memory exists: element type, global shape, and for each mesh axis whether
// the value is replicated, sharded on a dim, or a partial result still to be reduced.
#pragma once

#include <string>
#include <vector>

#include "espalier/mesh/mesh.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// How partial results are joined.
enum class Reduce : uint8_t { kSum, kMax };

/// Per tensor dim the axes that shard it, major first; and the axes on which the value is still partial. An axis
/// named nowhere replicates. Axes of degree 1 are never named.
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

/// Piece i of `extent` elements over n ranks: [min(extent, i c), min(extent, (i+1) c)), c = ceil(extent / n).
/// Empty pieces are legal.
Range PieceOf(Range whole, int n, int i);

/// One range per dim: the part of a global tensor that a rank holds.
using Box = std::vector<Range>;

Shape ExtentsOf(const Box& box);
/// Common part; extents are 0 where there is none.
Box Intersect(const Box& a, const Box& b);
bool IsEmpty(const Box& box);

/// What the rank at `coordinate` holds. Axes on one dim nest, major first, each cutting the piece before it.
Box LocalBox(const Type& type, const Mesh& mesh, const Coordinate& coordinate);
Shape LocalShape(const Type& type, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
