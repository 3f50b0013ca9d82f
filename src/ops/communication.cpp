// Ops that move data between ranks (slice.cpp has those that need no message). Passes before lower_reshards use only
// `reshard`; the others are what it is lowered to. The placements of their outputs are stated, not inferred.
// `ring_shift` is different: it keeps the placements, but each member then holds the shard of another member.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum EachEinsum(const OpContext& c) {
  Einsum einsum;
  for (const Type& type : c.inputs) einsum.inputs.push_back(DimsOfRank(type.shape.size()));
  einsum.outputs = einsum.inputs;
  return einsum;
}
std::vector<Type> EachType(const OpContext& c) {
  std::vector<Type> types;
  for (const Type& type : c.inputs) types.push_back(MakeType(type.dtype, type.shape));
  return types;
}

Einsum SendEinsum(const OpContext& c) {
  Einsum einsum = EachEinsum(c);
  einsum.outputs.clear();
  return einsum;
}
std::vector<Type> Nothing(const OpContext&) { return {}; }

/// Every shard moves unchanged to the next member of a group.
Einsum ShiftEinsum(const OpContext& c) {
  Einsum einsum = EachEinsum(c);
  einsum.shardable = DimsOfRank(8);
  return einsum;
}

}  // namespace

OpDefinition Moving(OpKind kind, std::string_view summary) {
  return {.kind = kind, .summary = summary, .einsum = EachEinsum, .infer = EachType};
}

std::vector<OpDefinition> CommunicationOps() {
  return {
      Moving(OpKind::kReshard, "the same values under other placements"),
      Moving(OpKind::kAllGather, "the shards of a group, concatenated on every member"),
      Moving(OpKind::kReduceScatter, "partial values reduced, each member keeping its shard"),
      Moving(OpKind::kAllReduce, "partial values reduced on every member"),
      Moving(OpKind::kAllToAll, "shards of one dim become shards of another within a group"),
      {.kind = OpKind::kRingShift,
       .summary = "each member's shards, passed on to the next member of its group",
       .einsum = ShiftEinsum,
       .infer = EachType,
       .jointly_linear = true},
      Moving(OpKind::kGatherStages, "scalars of every stage, known to all stages"),
      {.kind = OpKind::kSend, .summary = "values for another stage", .einsum = SendEinsum, .infer = Nothing},
      {.kind = OpKind::kRecv, .summary = "values from another stage", .einsum = SendEinsum, .infer = Nothing},
  };
}

}  // namespace espalier
