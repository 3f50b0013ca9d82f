// espalier calibrate --attention: times every attention_grad of some decks on this machine's GPU, for each value of
// run.attention_backward.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "commands/calibrate/demands.hpp"
#include "commands/commands.hpp"
#include "espalier/deck/choices.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/median.hpp"

namespace espalier {
namespace {

constexpr int kRounds = 5;
constexpr double kWorthChanging = 0.99;

/// A way to compute backward: a value of run.attention_backward, or the way without run.deterministic_attention.
struct Way {
  std::string_view method;

  bool IsDeterministic() const { return method != kUnorderedBackward; }
  std::string Name() const { return IsDeterministic() ? std::string(method) : "run.deterministic_attention=false"; }
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (const Choice<AttentionBackward>& choice : kChoices<AttentionBackward>) ways.push_back({choice.name});
  ways.push_back({kUnorderedBackward});
  return ways;
}

KernelCall CallOf(const AttentionDemand& demand) {
  return {.inputs = demand.inputs, .outputs = demand.outputs, .attributes = &demand.attributes};
}

std::string Describe(const AttentionDemand& demand) {
  const LocalOp local = LocalOpOf("attention_grad", CallOf(demand));
  const Shape &q = local.inputs[0], &k = local.inputs[1];
  const int64_t e = demand.attributes.Integer("head_dim");
  return fmt::format("{} x {} queries of {} heads, {} keys of {} heads, head_dim {}, {} times a step", q[0], q[1],
                     q[2] / e, k[1], k[2] / e, e, demand.calls);
}

/// Times of one demand by way, in rounds that alternate the ways; a way that the library does not support is reported
/// and left out.
class Timer {
 public:
  explicit Timer(AttentionDemand demand) : demand_(std::move(demand)) {}

  /// Median in microseconds, by the index of a way.
  std::map<size_t, double> Run(const std::vector<Way>& ways) {
    fmt::print("{}\n", Describe(demand_));
    std::vector<size_t> left;
    for (size_t i = 0; i < ways.size(); ++i)
      if (IsTaken(ways[i])) left.push_back(i);
    std::map<size_t, std::vector<double>> times;
    for (int round = 0; round < kRounds; ++round)
      for (size_t i : left) times[i].push_back(Time(ways[i]).microseconds);
    std::map<size_t, double> medians;
    for (auto& [way, of_way] : times) {
      medians[way] = MedianOf(of_way);
      demand_.attributes.texts["backward"] = ways[way].method;
      fmt::print("  {:<34} {:>10.1f} us {:>8} MiB of workspace\n", ways[way].Name(), medians[way],
                 PlannedWorkspace("attention_grad", CallOf(demand_)) >> 20);
    }
    return medians;
  }

 private:
  AttentionTime Time(const Way& way) {
    demand_.attributes.texts["backward"] = way.method;
    return LoadCudaModule().TimeAttentionGrad(demand_, PlannedWorkspace("attention_grad", CallOf(demand_)));
  }

  bool IsTaken(const Way& way) {
    std::string why;
    try {
      const AttentionTime time = Time(way);
      if (time.fallbacks.empty()) return true;
      why = time.fallbacks.front();
    } catch (const UserError& error) {
      why = error.what();
    }
    fmt::print("  {:<34} left out: {}\n", way.Name(), why);
    return false;
  }

  AttentionDemand demand_;
};

/// Prints the fastest deterministic way that computes every demand.
void PrintFastest(const std::vector<Way>& ways, const std::map<size_t, double>& steps) {
  const auto first = steps.find(0);
  size_t fastest = ways.size();
  for (const auto& step : steps)
    if (ways[step.first].IsDeterministic() && (fastest == ways.size() || step.second < steps.at(fastest)))
      fastest = step.first;
  if (fastest == ways.size()) {
    fmt::print("no way computes all of them: run.attention_backward makes no difference here\n");
    return;
  }
  if (first != steps.end() && steps.at(fastest) > kWorthChanging * first->second) fastest = 0;
  fmt::print("run.attention_backward={}", ways[fastest].method);
  if (first != steps.end())
    fmt::print(": {:.1f} ms a step, {:.3f} of \"{}\"", steps.at(fastest) / 1000, steps.at(fastest) / first->second,
               ways[0].method);
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
  const std::vector<Way> ways = Ways();
  std::map<size_t, double> steps;  // microseconds of all calls of a step, without ways that some call lacks
  for (size_t i = 0; i < ways.size(); ++i) steps[i] = 0;
  for (const AttentionDemand& demand : demands) {
    const std::map<size_t, double> times = Timer(demand).Run(ways);
    std::erase_if(steps, [&](const auto& step) { return !times.contains(step.first); });
    for (auto& [way, step] : steps) step += times.at(way) * static_cast<double>(demand.calls);
  }
  PrintFastest(ways, steps);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
