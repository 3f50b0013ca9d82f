#include "espalier/executor/demands.hpp"

#include <algorithm>

#include "espalier/graph/columns.hpp"
#include "espalier/kernels/shapes.hpp"

namespace espalier {
namespace {

/// The boxes of an operand, and their distance in memory; 0 if it varies.
struct Blocks {
  std::vector<Tensor> tensors;  ///< without memory
  int64_t stride_bytes = 0;
};

Blocks BlocksOf(const Value& value, const std::vector<Box>& boxes, const Program& program,
                const Coordinate& coordinate) {
  Blocks blocks;
  std::vector<int64_t> offsets;
  for (const Box& box : boxes) {
    blocks.tensors.push_back({nullptr, value.type.dtype, ExtentsOf(box), {}});
    if (boxes.size() > 1) offsets.push_back(BytesOf(value, box, program.mesh, coordinate).offset);
  }
  if (boxes.size() > 1) blocks.stride_bytes = offsets[1] - offsets[0];
  for (size_t b = 1; b < boxes.size(); ++b)
    if (offsets[b] - offsets[b - 1] != blocks.stride_bytes || blocks.tensors[b].shape != blocks.tensors[0].shape)
      blocks.stride_bytes = 0;
  return blocks;
}

/// The GEMMs of a matmul: one, or one per block if the blocks of a strip's rows are uneven.
std::vector<Gemm> GemmsOf(const Op& op, bool accumulate, const Program& program, const Coordinate& coordinate) {
  const OperandBoxes boxes = BoxesOf(*program.graph, op, program.mesh, coordinate);
  const auto blocks_of = [&](int value, const std::vector<Box>& boxes_of) {
    return BlocksOf(program.graph->value(value), boxes_of, program, coordinate);
  };
  const Blocks output = blocks_of(op.outputs[0], boxes.outputs[0]);
  std::vector<Tensor> gradients;  // gradients of the neighbours of the first weight
  for (size_t o = 1; o < op.outputs.size(); ++o)
    gradients.push_back(blocks_of(op.outputs[o], boxes.outputs[o]).tensors.at(0));
  std::vector<Blocks> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(blocks_of(op.inputs[i], boxes.inputs[i]));
  const size_t count = output.tensors.size();
  const bool batched = TakesBlocks(op) && count > 1 && output.stride_bytes > 0 && inputs[0].stride_bytes > 0;
  std::vector<Gemm> gemms;
  for (size_t b = 0; b < (batched ? 1 : count); ++b) {
    std::vector<Tensor> from;
    for (const Blocks& input : inputs) from.push_back(input.tensors[input.tensors.size() == 1 ? 0 : b]);
    std::vector<Tensor> to = {output.tensors[b]};
    to.insert(to.end(), gradients.begin(), gradients.end());
    KernelCall call{.inputs = from, .outputs = to, .attributes = &op.attributes, .accumulate = accumulate};
    if (batched) {
      call.blocks = static_cast<int64_t>(count);
      call.input_stride_bytes = inputs[0].stride_bytes;
      call.output_stride_bytes = output.stride_bytes;
    }
    gemms.push_back(GemmOf(call));
  }
  return gemms;
}

/// attention_grad with inputs for documents or dropout, which cuDNN does not support.
bool HasOthers(const Op& op) { return op.inputs.size() > (op.attributes.texts.contains(kColumns) ? 4 : 6); }

/// Adds a demand, or combines its number of calls with an equal demand's.
void AddCall(const AttentionDemand& demand, std::vector<AttentionDemand>& demands,
             int64_t (*combine)(int64_t, int64_t)) {
  const auto same = [&](const AttentionDemand& other) { return other.IsSameCall(demand); };
  if (const auto it = std::ranges::find_if(demands, same); it != demands.end())
    it->calls = combine(it->calls, demand.calls);
  else
    demands.push_back(demand);
}

}  // namespace

std::vector<GemmDemand> GemmsOf(const Program& program, const Coordinate& coordinate) {
  std::vector<GemmDemand> demands;
  for (const Instruction& instruction : program.instructions) {
    const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
    if (op.kind != OpKind::kMatmul) continue;
    for (const Gemm& gemm : GemmsOf(op, instruction.accumulate, program, coordinate))
      if (gemm.shape.blocks * gemm.shape.m * gemm.shape.n * gemm.shape.k > 0)
        demands.push_back({gemm, instruction.workspace.bytes});
  }
  return Distinct(std::move(demands));
}

void AddAttentionGradsOf(const Program& program, const Coordinate& coordinate, std::vector<AttentionDemand>& demands) {
  std::vector<AttentionDemand> of_rank;
  for (const Instruction& instruction : program.instructions) {
    const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
    if (op.kind != OpKind::kAttentionGrad || HasOthers(op)) continue;
    const OperandBoxes boxes = BoxesOf(*program.graph, op, program.mesh, coordinate);
    const auto tensors = [&](const std::vector<int>& values, const std::vector<std::vector<Box>>& boxes_of) {
      std::vector<Tensor> made;
      for (size_t i = 0; i < values.size(); ++i) {
        const Box& box = boxes_of[i].at(0);
        made.push_back({nullptr, program.graph->value(values[i]).type.dtype, ExtentsOf(box), {}});
        for (const Range& range : box) made.back().start.push_back(range.begin);
      }
      return made;
    };
    AddCall({tensors(op.inputs, boxes.inputs), tensors(op.outputs, boxes.outputs), op.attributes, 1}, of_rank,
            [](int64_t there, int64_t here) { return there + here; });
  }
  for (const AttentionDemand& demand : of_rank) AddDemand(demand, demands);
}

void AddDemand(const AttentionDemand& demand, std::vector<AttentionDemand>& demands) {
  AddCall(demand, demands, [](int64_t there, int64_t here) { return std::max(there, here); });
}

std::vector<GemmDemand> Distinct(std::vector<GemmDemand> demands) {
  std::ranges::sort(demands);
  demands.erase(std::unique(demands.begin(), demands.end()), demands.end());
  return demands;
}

}  // namespace espalier
