// espalier calibrate --attention: times every attention_grad of some decks on this machine's GPU, for each value of
// run.attention_backward.
#include <fmt/core.h>

#include "commands/calibrate/demands.hpp"
#include "commands/commands.hpp"
#include "espalier/deck/choices.hpp"
#include "espalier/executor/attention_times.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

std::string Shown(const std::string& way) {
  return way == kUnorderedBackward ? "run.deterministic_attention=false" : way;
}

std::string Describe(const AttentionDemand& demand) {
  const LocalOp local = LocalOpOf("attention_grad", CallOf(demand));
  const Shape &q = local.inputs[0], &k = local.inputs[1];
  const int64_t e = demand.attributes.Integer("head_dim");
  return fmt::format("{} x {} queries of {} heads, {} keys of {} heads, head_dim {}, {} times a step", q[0], q[1],
                     q[2] / e, k[1], k[2] / e, e, demand.calls);
}

/// Times all ways and prints their medians.
TimedAttention TimeAndPrint(const AttentionDemand& demand, std::span<const std::string> ways) {
  fmt::print("{}\n", Describe(demand));
  TimedAttention timed = TimeWays(LoadCudaModule(), demand, ways, [](const std::string& way, const std::string& why) {
    fmt::print("  {:<34} left out: {}\n", Shown(way), why);
  });
  for (const std::string& way : ways) {
    const auto it = timed.microseconds.find(way);
    if (it == timed.microseconds.end()) continue;
    AttentionDemand call = demand;
    call.attributes.texts["backward"] = way;
    fmt::print("  {:<34} {:>10.1f} us {:>8} MiB of workspace\n", Shown(way), it->second,
               PlannedWorkspace("attention_grad", CallOf(call)) >> 20);
  }
  return timed;
}

/// Prints the fastest deterministic way that computes every demand.
void PrintFastest(const TimesByWay& step) {
  const std::vector<std::string> fastest = FastestWays(step);
  if (fastest.empty()) {
    fmt::print("no way computes all of them: run.attention_backward makes no difference here\n");
    return;
  }
  const double time = step.at(fastest[0]);
  fmt::print("run.attention_backward={}", fastest[0]);
  const std::string first = DeterministicWays().front();
  if (const auto it = step.find(first); it != step.end())
    fmt::print(": {:.1f} ms a step, {:.3f} of \"{}\"", time / 1000, time / it->second, first);
  fmt::print("\n");
}

}  // namespace

int CalibrateAttention(const CalibrateOptions& options) {
  std::vector<AttentionDemand> demands;
  for (const std::string& deck : options.measure.decks) {
    const WorldPlan plan = PlanForGpus(deck, options.measure.overrides, options.ranks);
    for (const auto& [rank, program] : plan.programs)
      AddAttentionGradsOf(program, plan.training.mesh.CoordinateOf(rank), demands);
  }
  if (demands.empty())
    throw UserError(ExitStatus::kDeck,
                    "calibrate --attention: cuDNN takes no attention of these decks (data.isolate_documents)");
  std::vector<std::string> ways = DeterministicWays();
  ways.emplace_back(kUnorderedBackward);
  std::vector<TimedAttention> timed;
  for (const AttentionDemand& demand : demands) timed.push_back(TimeAndPrint(demand, ways));
  PrintFastest(TimesOfStep(timed));
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
