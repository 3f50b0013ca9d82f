// Logical dim names -> mesh axes: the only table that defines data, sequence, tensor and loss parallelism and ZeRO.
#pragma once

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"

namespace espalier {

/// The placements of a value's layout, such as "batch,stream,embed", on the axes of `mesh` with a degree above 1.
/// States, and layouts ending in ";state", are sharded further over dp_shard and cp (ZeRO), those of experts over tp,
/// too, on StateDim. Axes on one dim, major first: batch dp_replicate, dp_shard; sequence cp, tp; parameters tp,
/// dp_shard, cp. Where tp is named, kv_replicate follows it, except in kv_heads. "matrices", the first dim, has the
/// axes that shard weights, as long as each rank has an element; "all_axes" has the axes among them that no dim before
/// it has.
Placements LayoutPlacements(const Value& value, const Deck& deck, const Mesh& mesh);

}  // namespace espalier
