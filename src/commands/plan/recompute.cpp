#include "commands/plan/recompute.hpp"

#include <fmt/core.h>

#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

constexpr size_t kRecomputeWidth = 120, kRecomputeIndent = 18;

int64_t BudgetOf(const Deck& deck, const Cluster* cluster) {
  if (deck.recompute.budget > 0) return deck.recompute.budget;
  if (cluster != nullptr) return cluster->compute.memory_bytes - cluster->compute.reserved_bytes;
  throw UserError(ExitStatus::kDeck,
                  "recompute.mode = \"auto\" chooses by the memory of a rank, which only a run knows by itself (set "
                  "recompute.budget to its bytes, or give --cluster FILE)");
}

}  // namespace

std::optional<RecomputeChoice> ChooseRecomputeOfPlan(const Deck& deck, int ranks, const Cluster* cluster) {
  if (deck.recompute.mode != RecomputeMode::kAuto) return std::nullopt;
  const bool cuda = cluster != nullptr ? cluster->device == DeviceKind::kCuda : deck.run.device == RunDevice::kCuda;
  return ChooseRecompute(deck, ranks, cuda ? DeviceKind::kCuda : DeviceKind::kCpu, BudgetOf(deck, cluster));
}

void PrintRecompute(const RecomputeChoice& choice) {
  fmt::print("\nrecompute   auto, for {} of a rank{}\n{:>5} {:>9} {:>9} {:>6}  layers\n", Gigabytes(choice.budget),
             choice.fits ? "" : ": even full recompute does not fit", "stage", "saves", "of", "adds");
  for (size_t s = 0; s < choice.stages.size(); ++s) {
    const StageRecomputeChoice& stage = choice.stages[s];
    fmt::print("{}\n",
               Wrap(fmt::format("{:>5} {:>9} {:>9} {:>4.1f} %  {}", s, Gigabytes(stage.peak_without - stage.peak_bytes),
                                Gigabytes(stage.peak_without), 100 * stage.added, ToString(stage)),
                    kRecomputeWidth, kRecomputeIndent));
  }
}

nlohmann::ordered_json RecomputeJson(const RecomputeChoice& choice) {
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

}  // namespace espalier
