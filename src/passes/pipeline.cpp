#include "espalier/passes/pipeline.hpp"

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

namespace {

Properties RequiredBy(std::span<const Pass> passes) {
  Properties all;
  for (const Pass& pass : passes) all = all | pass.required;
  return all;
}

}  // namespace

void RunPasses(Graph& graph, const PassContext& context, const PassObserver& observe, Verification verification) {
  const Properties at_the_end = PropertiesAfter(Passes());
  RepeatedVerifier verifier;
  const auto verify = [&](Properties properties, std::string_view after) {
    verifier.Verify(graph, after);
    CheckProperties(graph, context, properties, after);
  };
  const bool every_pass = verification == Verification::kEveryPass;
  if (every_pass) verify(kPropertiesOfModels, "model");
  for (size_t i = 0; i < Passes().size(); ++i) {
    const Pass& pass = Passes()[i];
    pass.run(graph, context);
    if (every_pass) verify(PropertiesAfter(Passes().first(i + 1)) & RequiredBy(Passes().subspan(i + 1)), pass.name);
    if (observe) observe(pass.name, graph);
  }
  verify(at_the_end, "all passes");
}

}  // namespace espalier
