// espalier simulate: the time of a step on a cluster, from the programs that a run executes, computed in one process.
#include <fmt/core.h>

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/simulate/output.hpp"
#include "commands/simulate/routing.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// "405b on 16384 x H100 80GB".
std::string Title(const Prediction& prediction) {
  return fmt::format("{} on {} x {}", prediction.deck().name, prediction.ranks(),
                     prediction.target.cluster.compute.name);
}

SimulateOptions OptionsOf(const SimulateCommandOptions& options, const Cluster& cluster, int ranks) {
  SimulateOptions simulate;
  simulate.fold = !options.unfolded;
  simulate.jitter = options.jitter.value_or(cluster.jitter);
  simulate.seed = static_cast<uint64_t>(options.seed);
  simulate.slow = ReadSlowParts(options.slow, ranks, cluster.ranks_per_node);
  simulate.record = !options.trace.empty() || !options.svg.empty();
  return simulate;
}

}  // namespace

int SimulateCommand(const SimulateCommandOptions& options) {
  CheckWritable("--json", options.json);
  CheckWritable("--trace", options.trace);
  CheckWritable("--svg", options.svg);
  LoadedDeck loaded = RequireSteps(LoadDeck(options.arguments.deck, options.arguments.overrides));
  const int ranks = options.ranks > 0 ? options.ranks : SmallestRanks(loaded.deck);
  ReadOrder(loaded.deck);
  ResolveMesh(loaded, ranks);
  RequirePatternsMatch(loaded);
  Target target = ChooseTarget(loaded, options.cluster);
  target.routing = ReadRouting(options.routing, loaded.deck, options.seed);
  const SimulateOptions simulate = OptionsOf(options, target.cluster, ranks);
  Prediction prediction = Predict(loaded.deck, ranks, std::move(target), simulate);
  prediction.simulation.timeline.title = Title(prediction);
  const Figures figures = FiguresOf(prediction);
  WriteOutput(options.json, ToJson(prediction, figures).dump(1) + "\n");
  if (!options.trace.empty()) WriteOutput(options.trace, TraceJson(prediction.simulation.timeline));
  if (!options.svg.empty()) WriteOutput(options.svg, DrawSvg({prediction.simulation.timeline}));
  PrintPrediction(prediction, figures, simulate);
  RefuseIfItDoesNotFit(prediction, figures);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
