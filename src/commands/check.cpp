// espalier check: parses, validates, and prints the effective deck with the origin of each value, and the device that
// it would use here.
#include <fmt/core.h>

#include "commands.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/epochs.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/model/model.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

std::string RanksText(const Deck& deck, int given) {
  const int ranks = given > 0 ? given : SmallestRanks(deck);
  if (deck.parallel.dp_shard != -1 || given > 0) return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
  return ranks == 1 ? "any number of ranks" : fmt::format("any multiple of {} ranks", ranks);
}

/// Whether it runs on this host's CPU, not only plans for one.
bool RunsOnCpu(const Deck& deck) {
  return deck.run.device != RunDevice::kSleep && PlanDevice(deck).device == RunDevice::kCpu;
}

int64_t CountParameters(const Deck& deck) {
  const Split split = SplitLayers(deck, static_cast<int>(deck.parallel.pp * deck.pipeline.chunks));
  return ParameterCount(BuildModel(deck, split, deck.batch.micro, Purpose::kTrain));
}

std::string LengthText(const Deck& deck) {
  return AwaitsData(deck) ? fmt::format("run.epochs = {}", deck.run.epochs) : Counted(deck.run.steps, "step");
}

}  // namespace

int CheckCommand(const CheckOptions& options) {
  auto [loaded, steps] = CountSteps(LoadDeck(options.arguments.deck, options.arguments.overrides));
  ReadOrder(loaded.deck);
  if (options.ranks > 0) ResolveMesh(loaded, options.ranks);
  RequirePatternsMatch(loaded);
  const Deck& deck = loaded.deck;
  fmt::print("# {}: {} parameters, {} tokens a step, {}, on {}\n", deck.name, CountParameters(deck),
             TokensPerStep(deck), LengthText(deck), RanksText(deck, options.ranks));
  if (!steps.empty()) fmt::print("# run.steps: {}\n", steps);
  if (const BatchRamp ramp(deck.batch); ramp.Grows()) fmt::print("# batch: {}\n", Describe(ramp));
  if (const std::string order = DescribeOrder(deck); !order.empty()) fmt::print("# order {}\n", order);
  if (deck.run.device == RunDevice::kAuto) fmt::print("# run.device = \"auto\" {}\n", PredictDevice(deck));
  if (deck.run.device == RunDevice::kSleep) {
    const PlannedDevice planned = PlanDevice(deck);
    fmt::print("# {}: its programs are those of {}\n", planned.reason, DeckName(planned.device));
  }
  if (const std::string advice = PrecisionAdvice(deck); !advice.empty() && RunsOnCpu(deck))
    fmt::print("# {}\n", advice);
  for (const std::string& line : DescribeGroups(deck)) fmt::print("# {}\n", line);
  for (const std::string& line : SettingsWithoutEffect(loaded)) fmt::print("# {}\n", line);
  fmt::print("\n{}", EffectiveDeck(loaded));
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
