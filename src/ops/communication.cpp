// Ops that move data between ranks, or between the memories of one (slice.cpp has those that need no message). Passes
// before lower_reshards use only `reshard`; the others are what it is lowered to. The placements of their outputs are
// stated, not inferred. `ring_shift` is different: it keeps the placements, but each member then holds the shard of
// another member.
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

/// Costs take messages by the bytes on the wire.
double NoBytes(const LocalOp&, bool) { return 0; }
KernelTraits NoKernel() { return {.rows = Rows::kTogether, .work = NoBytes, .key = kNoAttributes}; }

}  // namespace

OpDefinition Moving(std::string_view summary, const KernelTraits& kernel) {
  return {.summary = summary, .einsum = EachEinsum, .infer = EachType, .kernel = kernel};
}

OpDefinition Reshard() { return Moving("the same values under other placements", NoKernel()); }
OpDefinition AllGather() { return Moving("the shards of a group, concatenated on every member", NoKernel()); }
OpDefinition ReduceScatter() { return Moving("partial values reduced, each member keeping its shard", NoKernel()); }
OpDefinition AllReduce() { return Moving("partial values reduced on every member", NoKernel()); }
OpDefinition AllToAll() { return Moving("shards of one dim become shards of another within a group", NoKernel()); }
OpDefinition RingShift() {
  return {.summary = "each member's shards, passed on to the next member of its group",
          .einsum = ShiftEinsum,
          .infer = EachType,
          .kernel = NoKernel(),
          .jointly_linear = true};
}
OpDefinition GatherStages() { return Moving("scalars of every stage, known to all stages", NoKernel()); }
OpDefinition Send() {
  return {.summary = "values for another stage", .einsum = SendEinsum, .infer = Nothing, .kernel = NoKernel()};
}
OpDefinition Recv() {
  return {.summary = "values from another stage", .einsum = SendEinsum, .infer = Nothing, .kernel = NoKernel()};
}

OpDefinition CopyOut() {
  return Moving("tensors, or pieces of them, copied from the memory of the device to that of the host", NoKernel());
}
OpDefinition CopyIn() {
  return Moving("tensors, or pieces of them, copied from the memory of the host to that of the device", NoKernel());
}

}  // namespace espalier
