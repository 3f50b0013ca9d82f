#include "espalier/passes/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "espalier/ops/verify.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::span<const Pass> Passes() {
  using enum Property;
#define ESPALIER_PASS_ROW(name, Function, required, established, ended, why) \
  {name, Function, required, established, ended, why},
  static constexpr Pass kPasses[] = {ESPALIER_PASSES(ESPALIER_PASS_ROW)};
#undef ESPALIER_PASS_ROW
  return kPasses;
}

Properties PropertiesAfter(std::span<const Pass> passes) {
  Properties held = kPropertiesOfModels;
  for (size_t i = 0; i < passes.size(); ++i) {
    for (Property property : kProperties) {
      if (!passes[i].required.Has(property) || held.Has(property)) continue;
      const auto before = passes.first(i);
      const auto ended = std::ranges::find_if(before, [&](const Pass& pass) { return pass.ended.Has(property); });
      CHECK(ended == before.end(), "pass {} requires what pass {} has ended: {}", passes[i].name, ended->name,
            Name(property));
      CHECK(false, "pass {} requires what no pass before it establishes: {}", passes[i].name, Name(property));
    }
    held = (held | passes[i].established).Without(passes[i].ended);
  }
  return held;
}

void RunPasses(Graph& graph, const PassContext& context, const PassObserver& observe, Verification verification) {
  const Properties at_the_end = PropertiesAfter(Passes());
  RepeatedVerifier verifier;
  const bool every_pass = verification == Verification::kEveryPass;
  if (every_pass) verifier.Verify(graph, "model");
  for (const Pass& pass : Passes()) {
    if (every_pass) CheckProperties(graph, context, pass.required, fmt::format("before {}", pass.name));
    pass.run(graph, context);
    if (every_pass) verifier.Verify(graph, pass.name);
    if (every_pass) CheckProperties(graph, context, pass.established, fmt::format("after {}", pass.name));
    if (observe) observe(pass.name, graph);
  }
  if (!every_pass) verifier.Verify(graph, "all passes");
  CheckProperties(graph, context, at_the_end, "after all passes");
}

}  // namespace espalier
