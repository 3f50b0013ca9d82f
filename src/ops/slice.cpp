// Parts of values, without communication: of a reshard, a shard cut out of a replicated value, and its adjoint; and
// chunks of a rank's rows (pass chunk_loss).
//
// The rows (tokens) of a rank are those of its shard [b,s,...], in the order of memory. A chunk is some of them, on
// every rank as one sequence. It has the placements of the whole; its first two extents, over all ranks, are
// attributes.
#include "ops.hpp"

namespace espalier {
namespace {

/// Unsharded dims of the same letter have other extents in the result.
Einsum RowsEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.inputs[0].shape.size());
  return {{dims}, {dims}, dims};
}
std::vector<Type> RowsInfer(const OpContext& c) {
  Shape shape = c.Extents(0);
  shape.at(0) = c.op.attributes.Integer("sequences");
  shape.at(1) = c.op.attributes.Integer("tokens");
  return {MakeType(c.ElementType(0), std::move(shape))};
}

/// The part is read and written; the rest of the larger tensor is not touched.
double TakenBytes(const LocalOp& op, bool) { return 2 * OutputBytes(op); }
double PutBytes(const LocalOp& op, bool) { return 2 * InputBytes(op, 0); }

}  // namespace

OpDefinition Slice() {
  return Moving("this rank's shard of a replicated value; no communication",
                {.rows = Rows::kTogether, .work = TakenBytes, .key = kNoAttributes});
}
OpDefinition Pad() {
  return Moving("a shard as a partial value: nothing to add outside it; no communication",
                {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes});
}
OpDefinition TakeRows() {
  return {.summary = "a chunk of a rank's rows, from row `first` on",
          .einsum = RowsEinsum,
          .infer = RowsInfer,
          .kernel = {.rows = Rows::kTogether, .work = TakenBytes, .key = kNoAttributes},
          .jointly_linear = true};
}
OpDefinition PutRows() {
  return {.summary = "writes a chunk of a rank's rows to its place, from row `first` on",
          .einsum = RowsEinsum,
          .infer = RowsInfer,
          .kernel = {.rows = Rows::kTogether, .work = PutBytes, .key = kNoAttributes},
          .jointly_linear = true};
}

}  // namespace espalier
