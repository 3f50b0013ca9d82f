// The single steps from one set of placements to another: collectives and local ops.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/graph/op_kind.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

/// In the order of preference among equals.
enum class MoveKind : uint8_t { kSlice, kAllReduce, kReduceScatter, kAllToAll, kAllGather, kPad };
/// The op that makes the move.
OpKind OpOf(MoveKind kind);
/// Slices and pads are local.
bool IsLocal(MoveKind kind);

struct Move {
  MoveKind kind;
  AxisSet axes;           ///< the group
  Placements placements;  ///< afterwards
  int64_t
      sent;  ///< elements that a rank sends if sizes divide evenly, in units of 1 / UnitsPerShard(moving) of a shard
};

/// The unit of traffic: the region that the ranks along `moving` hold together, divided by this number. All traffic is
/// a whole number of units.
int64_t UnitsPerShard(AxisSet moving, const Mesh& mesh);

/// Every step from `now` that leaves the axes outside `moving` alone:
///   slice           replicated axes shard a dim further
///   all_reduce      partial axes are reduced
///   reduce_scatter  partial axes are reduced and shard a dim further
///   all_to_all      the innermost axes of one dim move to another dim, or change their order
///   all_gather      the innermost axes of a dim no longer shard it
///   pad             the innermost axes of a dim make the value partial: outside its shard a rank contributes nothing
/// Partial sums are reduced before partial maxima: a value that is both is a maximum of sums.
std::vector<Move> MovesFrom(const Placements& now, AxisSet moving, const Mesh& mesh);

}  // namespace espalier
