// Values in fp8, for matmuls. `spec` gives the dims of the result, which may be stored transposed, and those of its
// scales: "bsk->bsk,y" has one scale per rank, "bsk->bsk,bsy" one per row. y counts the shards of the dims that a scale
// spans, so that each rank has the scales of its own shard: `shards` of them, placed on all axes of these dims.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum QuantizeEinsum(const OpContext& c) {
  const std::string& spec = c.op.attributes.Text("spec");
  const size_t arrow = spec.find("->"), comma = spec.find(',');
  CHECK(arrow != spec.npos && comma != spec.npos && arrow < comma, "quantize: spec {}", spec);
  return {{spec.substr(0, arrow)}, {spec.substr(arrow + 2, comma - arrow - 2), spec.substr(comma + 1)}, "bsnky"};
}

std::vector<Type> QuantizeInfer(const OpContext& c) {
  CHECK(c.ElementType(0) == Dtype::kBf16, "quantize: {}", Name(c.ElementType(0)));
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == Name(Dtype::kF8E4M3) || to == Name(Dtype::kF8E5M2), "quantize to {}", to);
  const Einsum einsum = QuantizeEinsum(c);
  const auto extent = [&](char dim) {
    return dim == 'y' ? c.op.attributes.Integer("shards") : c.Extents(0).at(einsum.inputs[0].find(dim));
  };
  const auto shape = [&](const std::string& dims) {
    Shape extents;
    for (char dim : dims) extents.push_back(extent(dim));
    return extents;
  };
  return {MakeType(to == Name(Dtype::kF8E4M3) ? Dtype::kF8E4M3 : Dtype::kF8E5M2, shape(einsum.outputs[0])),
          MakeType(Dtype::kF32, shape(einsum.outputs[1]))};
}

}  // namespace

OpDefinition Quantize() {
  return {.kind = OpKind::kQuantize,
          .summary = "fp8 values and their scales, which are powers of two",
          .einsum = QuantizeEinsum,
          .infer = QuantizeInfer};
}

}  // namespace espalier
