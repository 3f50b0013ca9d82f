// A step's gradient is the sum over its microbatches. The op that makes a weight gradient adds it to an fp32 accumulator
// right away (the first microbatch overwrites), so nothing of a microbatch outlives it and synchronisation comes once, after
// the last. Loss and token count are summed the same way.
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {

void MergeGradients(Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.role != Role::kW && !Define(op.kind).accumulates) continue;
    for (int output : op.outputs) {
      graph.values[output].kind = ValueKind::kAccumulator;
      graph.values[output].frequency = Frequency::kStep;
    }
  }
  graph.Renumber();
}

}  // namespace espalier
