// Strips: an op may be several ops, each of which computes some rows (tokens) of the same outputs, so that the messages
// of one strip overlap with the kernels of another (pass `tensor_strips`). Values stay whole: the strips of an op write
// disjoint rows of one buffer, in order, and readers of a strip read the same rows.
//
// A sequence that is sharded on `axes` has its strips in every shard: strip 1 of 2 of 12 tokens over tp 3 is
//
//   shards  0 1 2 3 | 4 5 6 7 | 8 9 10 11        strip 1: tokens 2 3, 6 7 and 10 11
//
// so that each rank of a gather sends, and each rank of a reduce-scatter keeps, a part of its own shard.
//
// Element-wise ops of a step have strips, too, if their states are on the host (pass `stream_states`): strip i works on
// piece i of every shard, as do the copies around it.
#pragma once

#include <optional>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// Strip `index` of `count`: of the sequences of a batch (`dim` 0), or of the tokens of one sequence (`dim` 1), in each
/// of its shards over `axes`.
struct Strip {
  int index = 0;
  int count = 1;
  size_t dim = 1;
  AxisSet axes = {};
  bool operator==(const Strip&) const = default;
};

/// The strip of an op; none if it computes all rows. Its attributes are strip, strips, strip_dim and strip_axes.
std::optional<Strip> StripOf(const Op& op);
void SetStrip(Op& op, const Strip& strip);

/// True if each row of every output follows from the same row of some inputs and from whole other inputs (weights), so
/// that the op may have strips. Reshards are not told apart: collectives over tp move rows unchanged.
bool IsRowwise(const Graph& graph, const Op& op);

/// True if a kernel for GPUs computes several blocks of rows at once: a matmul's does, but not in fp8.
bool TakesBlocks(const Op& op);

/// Global boxes of a value's strip that the rank at `coordinate` holds, in ascending order, none of them empty.
std::vector<Box> StripBoxes(const Type& type, const Strip& strip, const Mesh& mesh, const Coordinate& coordinate);

/// Global boxes of each operand that an op touches on a rank: its whole shard, or the rows of its strip.
struct OperandBoxes {
  std::vector<std::vector<Box>> inputs, outputs;
};
OperandBoxes BoxesOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// The global box that the rank at `coordinate` holds of a value: its shard, or the piece of it.
Box HeldBox(const Value& value, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes of a box in what a rank holds of a value; CHECKs that they are contiguous.
struct ByteRange {
  int64_t offset = 0;  ///< from the start of what it holds
  int64_t bytes = 0;
};
ByteRange BytesOf(const Value& value, const Box& box, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
