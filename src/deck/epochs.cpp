#include "espalier/deck/epochs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "relations.hpp"

namespace espalier {
namespace {

constexpr std::string_view kSteps = "run.steps";

bool Reads(const std::vector<std::string_view>& keys) { return std::ranges::find(keys, kSteps) != keys.end(); }

[[noreturn]] void Refuse(const LoadedDeck& loaded, const std::string& why) {
  throw UserError(ExitStatus::kDeck,
                  fmt::format("{}: run.epochs = {}: {}", loaded.origins.at("run.epochs"), loaded.deck.run.epochs, why));
}

/// Whole samples of all passes. 0.29 x 100 is 29, although the product of the doubles is slightly less.
int64_t SamplesOf(double epochs, int64_t samples) {
  constexpr double kAFewUlps = 1 + 1e-15;
  return static_cast<int64_t>(std::min(epochs * static_cast<double>(samples) * kAFewUlps, kMaxTokens));
}

void FollowSteps(LoadedDeck& loaded) {
  for (const DeckKey& key : DeckSchema()) {
    const auto* derived = std::get_if<Derived>(&key.fallback);
    if (derived != nullptr && Reads(derived->keys) &&
        loaded.origins.at(key.FullName()) == fmt::format("from {}", derived->text))
      Set(loaded.deck, key, derived->compute(loaded.deck));
  }
}

void CheckSteps(const LoadedDeck& with_steps, const LoadedDeck& loaded) {
  const int64_t steps = with_steps.deck.run.steps;
  std::string broken = FaultOf(steps, FindDeckKey(kSteps)->allowed);
  for (const Relation& relation : DeckRelations())
    if (broken.empty() && Reads(relation.keys)) broken = relation.broken(with_steps.deck);
  if (!broken.empty()) Refuse(loaded, fmt::format("makes {} steps: {}", steps, broken));
}

}  // namespace

LoadedDeck WithStepsOfEpochs(LoadedDeck loaded, int64_t samples) {
  const double epochs = loaded.deck.run.epochs;
  if (!AwaitsData(loaded.deck)) return loaded;
  const BatchRamp ramp(loaded.deck.batch);
  const int64_t within = SamplesOf(epochs, samples), first = ramp.SequencesOf(1);
  if (within < first)
    Refuse(loaded, fmt::format("{} of {} samples, and the first step alone has {} (run.epochs of {:.3g} is enough; or "
                               "lower {})",
                               within, samples, first, std::ceil(1000.0 * double(first) / double(samples)) / 1000,
                               ramp.Grows() ? "batch.ramp_start" : "batch.global"));
  LoadedDeck with_steps = loaded;
  with_steps.deck.run.steps = ramp.StepsWithin(within);
  with_steps.deck.run.epochs = 0;
  with_steps.origins["run.epochs"] = "replaced by run.steps";
  with_steps.origins["run.steps"] = fmt::format("from run.epochs = {} of {} samples", epochs, samples);
  FollowSteps(with_steps);
  CheckSteps(with_steps, loaded);
  return with_steps;
}

std::string LongerRun(const LoadedDeck& loaded, int64_t steps) {
  const bool of_epochs = loaded.origins.at("run.steps").starts_with("from ");
  return of_epochs ? "a larger run.epochs" : fmt::format("run.steps=N above {}", steps);
}

}  // namespace espalier
