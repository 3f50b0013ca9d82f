// The bytes that ops of strips touch.
#include "planners.hpp"

namespace espalier {
namespace {

TouchedBytes TouchedBytesOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const OperandBoxes boxes = BoxesOf(graph, op, mesh, coordinate);
  const auto ranges = [&](const std::vector<int>& values, const std::vector<std::vector<Box>>& boxes_of) {
    std::vector<std::vector<ByteRange>> all;
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<ByteRange>& of_operand = all.emplace_back();
      for (const Box& box : boxes_of[i]) of_operand.push_back(BytesOf(graph.value(values[i]), box, mesh, coordinate));
    }
    return all;
  };
  return {ranges(op.inputs, boxes.inputs), ranges(op.outputs, boxes.outputs)};
}

}  // namespace

void FindTouchedBytes(Program& program, const Emission& emission, const GraphFacts& facts,
                      const Coordinate& coordinate) {
  for (const auto& [op, microbatch] : emission.ops)
    if (facts.ops[op].strip >= 0)
      if (const auto [place, fresh] = program.touched.try_emplace(op); fresh)
        place->second = TouchedBytesOf(*program.graph, program.graph->op(op), program.mesh, coordinate);
}

}  // namespace espalier
