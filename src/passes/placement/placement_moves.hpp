// The single steps from one set of placements to another: the collectives and local cuts there are.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "espalier/graph/type.hpp"

namespace espalier {

/// In the order of preference among equals.
enum class MoveKind : uint8_t { kSlice, kAllReduce, kReduceScatter, kAllToAll, kAllGather, kPad };
/// The op that it is: "slice", "all_reduce", ...
std::string_view Name(MoveKind kind);
/// Slices and pads are local.
bool IsLocal(MoveKind kind);

struct Move {
  MoveKind kind;
  AxisSet axes;           ///< the group
  Placements placements;  ///< afterwards
  int64_t sent;           ///< what a rank sends, where sizes divide evenly: parts of PartsOf(moving)
};

/// How many parts the piece is counted in that ranks along `moving` have in common, so that all traffic is a whole
/// number.
int64_t PartsOf(AxisSet moving, const Mesh& mesh);

/// Every step from `now` that leaves the axes outside `moving` alone:
///   slice           replicated axes shard a dim further
///   all_reduce      partial axes are joined
///   reduce_scatter  partial axes are joined and shard a dim further
///   all_to_all      the innermost axes of one dim go to another dim, or change their order
///   all_gather      the innermost axes of a dim no longer shard it
///   pad             the innermost axes of a dim make the value partial: outside its piece a rank has nothing to add
/// Sums are joined before maxima: a value that is both is the largest of sums.
std::vector<Move> MovesFrom(const Placements& now, AxisSet moving, const Mesh& mesh);

}  // namespace espalier
