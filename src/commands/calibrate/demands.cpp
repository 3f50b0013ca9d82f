#include "commands/calibrate/demands.hpp"

#include <algorithm>

#include "espalier/kernels/shapes.hpp"

namespace espalier {
namespace {

/// Local shards without memory.
std::vector<Tensor> TensorsOf(const std::vector<Operand>& operands, const Program& program,
                              const Coordinate& coordinate) {
  std::vector<Tensor> tensors;
  for (const Operand& operand : operands) {
    const Type& type = program.graph->values[static_cast<size_t>(operand.value)].type;
    tensors.push_back({nullptr, type.dtype, LocalShape(type, program.mesh, coordinate), {}});
  }
  return tensors;
}

}  // namespace

std::vector<GemmDemand> GemmsOf(const Program& program, const Coordinate& coordinate) {
  std::vector<GemmDemand> demands;
  for (const Instruction& instruction : program.instructions) {
    const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
    if (op.kind != OpKind::kMatmul) continue;
    const std::vector<Tensor> inputs = TensorsOf(instruction.inputs, program, coordinate),
                              outputs = TensorsOf(instruction.outputs, program, coordinate);
    const KernelCall call{
        .inputs = inputs, .outputs = outputs, .attributes = &op.attributes, .accumulate = instruction.accumulate};
    const Gemm gemm = GemmOf(call);
    if (gemm.shape.m * gemm.shape.n * gemm.shape.k > 0) demands.push_back({gemm, instruction.workspace.bytes});
  }
  return Distinct(std::move(demands));
}

std::vector<GemmDemand> Distinct(std::vector<GemmDemand> demands) {
  std::ranges::sort(demands);
  demands.erase(std::unique(demands.begin(), demands.end()), demands.end());
  return demands;
}

}  // namespace espalier
