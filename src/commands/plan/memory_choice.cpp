#include "commands/plan/memory_choice.hpp"

#include <fmt/core.h>

#include "espalier/deck/offload.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

constexpr size_t kMemoryWidth = 120, kMemoryIndent = 18;

/// The end of a sentence about a choice if nothing fits; otherwise empty.
const char* NoneFits(const MemoryChoice& choice) {
  return choice.fits ? "" : choice.offload ? ": nothing that was tried fits" : ": even full recompute does not fit";
}

void PrintLayers(const MemoryChoice& choice) {
  fmt::print("\nrecompute   auto, for {} of a rank{}\n{:>5} {:>9} {:>9} {:>6}  layers\n", Gigabytes(choice.budget),
             NoneFits(choice), "stage", "saves", "of", "adds");
  for (size_t s = 0; s < choice.layers->stages.size(); ++s) {
    const StageRecomputeChoice& stage = choice.layers->stages[s];
    fmt::print("{}\n",
               Wrap(fmt::format("{:>5} {:>9} {:>9} {:>4.1f} %  {}", s, Gigabytes(stage.peak_without - stage.peak_bytes),
                                Gigabytes(stage.peak_without), 100 * stage.added, ToString(stage)),
                    kMemoryWidth, kMemoryIndent));
  }
}

std::string ActivationsText(const Deck& deck) {
  const Deck::Offload& o = deck.offload;
  return o.layers.empty() ? fmt::format("{:.2f}", o.activations) : "layers " + o.layers;
}

const char* Remark(const OffloadTrial& trial) {
  return !trial.fits ? "; does not fit" : !trial.exact ? "; estimated" : "";
}

/// By part of the step: time of copies and messages that kernels hide, and that they wait for.
void PrintCopies(const OffloadTrial& taken) {
  const double exposed = taken.breakdown.exposed_us[CommAxis::kHost],
               hidden = taken.breakdown.hidden_us[CommAxis::kHost];
  if (exposed + hidden == 0) return;
  fmt::print("copies      {} a step, {:.0f} % of them hidden\n", DurationText(exposed + hidden),
             100 * hidden / (exposed + hidden));
  for (const auto& [part, where] :
       {std::pair(StepPart::kForward, "activations leave under the next layer, weights come"),
        std::pair(StepPart::kBackward, "activations, weights and sums come a layer before"),
        std::pair(StepPart::kUpdate, "state comes and goes under other updates")})
    fmt::print("  {:<9} hides {}, waits {}: {}\n", Name(part), DurationText(taken.parts[part].hidden_us),
               DurationText(taken.parts[part].exposed_us), where);
}

void PrintOffload(const MemoryChoice& choice) {
  const OffloadChoice& offload = *choice.offload;
  fmt::print("\noffload     auto, for {} of a rank, by {}{}\n  {:>9} {:>10} {:>9} {:>10} {:>9}  activations\n",
             Gigabytes(choice.budget), offload.times, NoneFits(choice), "optimizer", "parameters", "gradients", "peak",
             "step");
  for (size_t i = 0; i < offload.trials.size(); ++i) {
    const OffloadTrial& trial = offload.trials[i];
    const Deck::Offload& o = trial.deck.offload;
    fmt::print("{}\n",
               Wrap(fmt::format("{} {:>9.2f} {:>10.2f} {:>9.2f} {:>10} {:>9}  {}{}", i == offload.choice ? "*" : " ",
                                o.optimizer, o.parameters, o.gradients, Gigabytes(trial.peak_bytes),
                                DurationText(trial.step_us), ActivationsText(trial.deck), Remark(trial)),
                    kMemoryWidth, kMemoryIndent));
  }
  PrintCopies(offload.Taken());
}

nlohmann::ordered_json LayersJson(const RecomputeChoice& choice) {
  nlohmann::ordered_json json = {{"budget", choice.budget},
                                 {"fits", choice.fits},
                                 {"compilations", choice.compilations},
                                 {"mode", DeckName(choice.deck.recompute.mode)},
                                 {"layers", choice.deck.recompute.layers}};
  for (const StageRecomputeChoice& stage : choice.stages)
    json["stages"].push_back({{"layers", ToString(stage)},
                              {"peak_bytes_without", stage.peak_without},
                              {"peak_bytes", stage.peak_bytes},
                              {"work_added", stage.added}});
  return json;
}

nlohmann::ordered_json OffloadJson(const MemoryChoice& choice) {
  nlohmann::ordered_json json = {{"budget", choice.budget},
                                 {"fits", choice.fits},
                                 {"times", choice.offload->times},
                                 {"choice", choice.offload->choice}};
  for (const OffloadTrial& trial : choice.offload->trials) {
    nlohmann::ordered_json one;
    for (const OffloadShare& share : kOffloadShares) one[std::string(share.name)] = share.Of(trial.deck);
    one.update({{"layers", trial.deck.offload.layers},
                {"recompute_mode", DeckName(trial.deck.recompute.mode)},
                {"recompute_layers", trial.deck.recompute.layers},
                {"fits", trial.fits},
                {"exact", trial.exact},
                {"peak_bytes", trial.peak_bytes},
                {"step_ms", trial.step_us / 1e3}});
    if (trial.exact)
      one.update({{"copies_exposed_ms", trial.breakdown.exposed_us[CommAxis::kHost] / 1e3},
                  {"copies_hidden_ms", trial.breakdown.hidden_us[CommAxis::kHost] / 1e3}});
    json["trials"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

std::optional<MemoryChoice> ChooseMemoryOfPlan(const Deck& deck, int ranks, const Cluster* cluster) {
  if (!LeavesMemoryOpen(deck)) return std::nullopt;
  const int64_t budget = MemoryBudget(deck, cluster != nullptr ? cluster->BytesForPrograms() : 0);
  if (budget == 0)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("{} = \"auto\" chooses by the memory of a rank, which only a run knows by itself (set "
                                "recompute.budget to its bytes, or give --cluster FILE)",
                                deck.recompute.mode == RecomputeMode::kAuto ? "recompute.mode" : "[offload]"));
  const bool cuda = cluster != nullptr ? cluster->device == DeviceKind::kCuda : deck.run.device == RunDevice::kCuda;
  return ChooseMemory(deck, ranks, cuda ? DeviceKind::kCuda : DeviceKind::kCpu, budget,
                      cluster != nullptr ? Costs(*cluster) : CostsOfChoice(deck));
}

void PrintMemoryChoice(const MemoryChoice& choice) {
  if (choice.layers) PrintLayers(choice);
  if (choice.offload) PrintOffload(choice);
}

nlohmann::ordered_json MemoryChoiceJson(const MemoryChoice& choice) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (choice.layers) json["recompute"] = LayersJson(*choice.layers);
  if (choice.offload) json["offload"] = OffloadJson(choice);
  return json;
}

}  // namespace espalier
