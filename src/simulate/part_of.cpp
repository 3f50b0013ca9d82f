#include "espalier/graph/transfers.hpp"
#include "espalier/simulate/simulate.hpp"

namespace espalier {

std::string_view Name(StepPart part) {
  static constexpr ByStepPart<std::string_view> kNames = {
      {"forward", "recompute", "backward", "dispatch", "combine", "update"}};
  return kNames[part];
}

StepPart PartOf(const Graph& graph, const Op& op) {
  switch (op.kind) {
    case OpKind::kDispatch:
    case OpKind::kCombineGrad:
      return StepPart::kDispatch;
    case OpKind::kCombine:
    case OpKind::kDispatchGrad:
      return StepPart::kCombine;
    default:
      break;
  }
  if (IsCollective(op.kind) && IsExpertTransfer(graph, op))
    return op.kind == OpKind::kAllGather ? StepPart::kDispatch : StepPart::kCombine;
  if (op.frequency() == Frequency::kStep) return StepPart::kUpdate;
  if (op.role == Role::kF) return StepPart::kForward;
  return !op.outputs.empty() && IsRecomputed(graph.value(op.outputs[0])) ? StepPart::kRecompute : StepPart::kBackward;
}

}  // namespace espalier
