// Values in fp8, for matmuls. `spec` gives the dims of the result, which may be stored transposed, and of its
// scales: "bsk->bsk,y" has one scale per rank, "bsk->bsk,bsy" one per row. y counts the shards of the dims that a scale
// spans, so that each rank has the scales of its own shard: `shards` of them, placed on all axes of these dims.
// "bsk->bsk,yu" has one per block of 32 along the last dim (block_scales.hpp): f8e8m0, `scale_bytes` on every rank.
//
// Rows of experts, "ebsk->ebsk,ebs", have a scale each. The second input has their experts: rows that are not used come
// last and are not read. Each expert's weight has its own scales: "enk->enk,e" one, "enk->enk,en" one per row.
#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum QuantizeEinsum(const OpContext& c) {
  const QuantizeSpec spec = QuantizeSpecOf(c.op.attributes);
  if (spec.IsOfExpertRows()) return {{spec.from, "ebs"}, {spec.to, spec.scales}, "ebs", Reduce::kSum, "e"};
  if (spec.IsOfExpertWeights()) return {{spec.from}, {spec.to, spec.scales}, "e", Reduce::kSum, "e"};
  return {{spec.from}, {spec.to, spec.scales}, "bsnky"};
}

std::vector<Type> QuantizeInfer(const OpContext& c) {
  CHECK(c.ElementType(0) == Dtype::kBf16, "quantize: {}", Name(c.ElementType(0)));
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == Name(Dtype::kF8E4M3) || to == Name(Dtype::kF8E5M2), "quantize to {}", to);
  const Einsum einsum = QuantizeEinsum(c);
  const auto extent = [&](char dim) {
    return dim == 'y'   ? c.op.attributes.Integer("shards")
           : dim == 'u' ? c.op.attributes.Integer("scale_bytes")
                        : c.Extents(0).at(einsum.inputs[0].find(dim));
  };
  const auto shape = [&](const std::string& dims) {
    Shape extents;
    for (char dim : dims) extents.push_back(extent(dim));
    return extents;
  };
  return {MakeType(to == Name(Dtype::kF8E4M3) ? Dtype::kF8E4M3 : Dtype::kF8E5M2, shape(einsum.outputs[0])),
          MakeType(einsum.outputs[1].back() == 'u' ? Dtype::kF8E8M0 : Dtype::kF32, shape(einsum.outputs[1]))};
}

double QuantizeBytes(const LocalOp& op, bool) {
  const QuantizeSpec spec = QuantizeSpecOf(op.op.attributes);
  if (spec.IsOfExpertRows()) return FilledShare(op.op.attributes) * (InputBytes(op, 0) + OutputBytes(op));
  return InputBytes(op, 0) * (spec.ReadsTwice() ? 2 : 1) + OutputBytes(op);
}

}  // namespace

OpDefinition Quantize() {
  return {.summary = "fp8 values and their scales, which are powers of two",
          .einsum = QuantizeEinsum,
          .infer = QuantizeInfer,
          .kernel = {.rows = Rows::kIndependent, .work = QuantizeBytes, .key = Texts("spec", "to")}};
}

}  // namespace espalier
