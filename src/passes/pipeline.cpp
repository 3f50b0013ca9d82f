#include "espalier/passes/pipeline.hpp"

#include "espalier/ops/verify.hpp"

namespace espalier {

std::span<const Pass> Passes() {
#define ESPALIER_PASS_ROW(name, Function, why) {name, Function, why},
  static constexpr Pass kPasses[] = {ESPALIER_PASSES(ESPALIER_PASS_ROW)};
#undef ESPALIER_PASS_ROW
  return kPasses;
}

void RunPasses(Graph& graph, const PassContext& context, const PassObserver& observe, Verification verification) {
  RepeatedVerifier verifier;
  const bool every_pass = verification == Verification::kEveryPass;
  if (every_pass) verifier.Verify(graph, "model");
  for (const Pass& pass : Passes()) {
    pass.run(graph, context);
    if (every_pass) verifier.Verify(graph, pass.name);
    if (observe) observe(pass.name, graph);
  }
  if (!every_pass) verifier.Verify(graph, "all passes");
}

}  // namespace espalier
