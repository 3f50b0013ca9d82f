#include "commands/simulate/predict.hpp"

#include <fmt/core.h>

#include <chrono>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/choices.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// "deck.toml:3: run.device = "cpu"".
std::string Setting(const LoadedDeck& loaded, std::string_view key, std::string_view value) {
  const auto origin = loaded.origins.find(key);
  return fmt::format("{}{} = \"{}\"", origin == loaded.origins.end() ? "" : origin->second + ": ", key, value);
}

const std::string& ClusterFile(const Deck& deck, const std::string& path) {
  const std::string& file = path.empty() && deck.run.device == RunDevice::kSleep ? deck.run.cluster : path;
  if (file.empty())
    throw UserError(ExitStatus::kDeck,
                    "command line: --cluster FILE is missing: the cluster whose times are used (inputs/clusters has "
                    "some)");
  return file;
}

/// A deck that names one device is not timed on another.
void CheckDevice(const LoadedDeck& loaded, const Target& target) {
  const auto& run = loaded.deck.run;
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view remedy) {
    throw UserError(ExitStatus::kDeck,
                    fmt::format("{}: the cluster file {} describes {} ({})", Setting(loaded, key, value),
                                target.cluster.path, target.device == RunDevice::kCpu ? "CPUs" : "GPUs", remedy));
  };
  const bool named = run.device == RunDevice::kCpu || run.device == RunDevice::kCuda;
  if (named && run.device != target.device)
    refuse("run.device", DeckName(run.device),
           fmt::format("leave it out, or give run.device={}, or another --cluster", DeckName(target.device)));
  if (target.device == RunDevice::kCpu && run.transport == Transport::kNccl)
    refuse("run.transport", DeckName(run.transport), "nccl is for GPUs: leave it out, or give run.transport=mpi");
}

}  // namespace

Target ChooseTarget(const LoadedDeck& loaded, const std::string& path) {
  const auto& run = loaded.deck.run;
  Target target;
  target.cluster = LoadCluster(ClusterFile(loaded.deck, path));
  target.device = target.cluster.device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
  target.interference = run.device != RunDevice::kSleep;
  target.reason = fmt::format("run.device = \"{}\"; {}", DeckName(run.device), target.cluster.path);
  CheckDevice(loaded, target);
  return target;
}

Simulation SimulatePlan(const WorldPlan& plan, const Target& target, SimulateOptions options) {
  options.interference = target.interference;
  // The programs belong to the plan.
  const auto program_of = [&](int rank) {
    return std::shared_ptr<const Program>(std::shared_ptr<void>(), &plan.programs.at(rank));
  };
  const Costs costs(target.cluster, target.routing, JobOf(plan.training.deck, plan.training.mesh.Ranks()));
  Simulation simulation = Simulate({plan.training.mesh, plan.representative, program_of}, costs, options);
  if (simulation.step_us > 0) return simulation;
  throw UserError(
      ExitStatus::kDeck,
      fmt::format("{}: a step takes no time at all (remove the measured rows with us = 0)", target.cluster.path));
}

Prediction Predict(const Deck& deck, int ranks, Target target, SimulateOptions options) {
  using Clock = std::chrono::steady_clock;
  Deck planned = deck;
  planned.run.device = target.device;
  Prediction prediction;
  prediction.target = std::move(target);
  const auto start = Clock::now();
  prediction.memory = ChooseMemoryOfPlan(planned, ranks, &prediction.target.cluster);
  if (prediction.memory) planned = prediction.memory->deck;
  prediction.plan = PlanWorld(planned, ranks);
  prediction.plan_ms = MillisecondsSince(start);
  const auto planned_at = Clock::now();
  prediction.simulation = SimulatePlan(prediction.plan, prediction.target, options);
  for (const RampSize& size : BatchRamp(deck.batch).SizesWithin(deck.run.steps))
    prediction.ramp_us.push_back(
        size.sequences == deck.batch.global
            ? prediction.simulation.step_us
            : SimulatePlan(PlanWorld(WithSequences(planned, size.sequences), ranks), prediction.target, options)
                  .step_us);
  prediction.simulate_ms = MillisecondsSince(planned_at);
  return prediction;
}

}  // namespace espalier
