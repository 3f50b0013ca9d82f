#include "train/startup/memory_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/deck/offload.hpp"
#include "espalier/tune/memory_choice.hpp"
#include "espalier/util/agreed_error.hpp"
#include "espalier/util/host_name.hpp"
#include "train/startup/fit.hpp"

namespace espalier {
namespace {

// The part of free memory that is left on CPUs, where other processes and page cache share it.
constexpr int64_t kLeftOnCpus = 16;

struct Chosen {
  std::string mode;
  std::vector<std::string> layers;
  std::vector<double> shares;  // by kOffloadShares
  std::string offloaded;
  auto Fields() { return std::tie(mode, layers, shares, offloaded); }
};

/// The bytes that every rank can have for its arena.
int64_t AgreeOnBudget(const Deck& deck, World& world, const Device& device) {
  const int64_t share = SmallestShare(world, {HostName(), BytesToCome(deck, device), device.ArenaLimits()});
  if (share == std::numeric_limits<int64_t>::max())
    throw AgreedError(ExitStatus::kDeck,
                      "\"auto\" of recompute.mode or [offload]: this system does not say how much memory is free (set "
                      "recompute.budget to the bytes that a rank may have)");
  return device.Kind() == DeviceKind::kCpu ? share - share / kLeftOnCpus : share;
}

void ReportLayers(const RecomputeChoice& choice) {
  double most = 0;
  for (const StageRecomputeChoice& stage : choice.stages) most = std::max(most, stage.added);
  const Deck::Recompute& r = choice.deck.recompute;
  const bool nothing = r.mode == RecomputeMode::kNone && r.layers.empty();
  spdlog::info("recompute.mode = \"auto\" for {} of a rank: {}{}", Gigabytes(choice.budget),
               nothing ? "nothing is recomputed"
                       : fmt::format("{}; adds at most {:.1f} % to the work of a stage (espalier plan says more)",
                                     r.layers.empty() ? std::string(DeckName(r.mode))
                                                      : fmt::format("{}", fmt::join(r.layers, "; ")),
                                     100 * most),
               choice.fits ? "" : "; even full recompute does not fit");
}

void ReportOffload(const MemoryChoice& choice) {
  const Deck::Offload& o = choice.deck.offload;
  spdlog::info(
      "offload \"auto\" for {} of a rank, by {}: optimizer {}, parameters {}, gradients {}, activations {}{} (espalier "
      "plan says more)",
      Gigabytes(choice.budget), choice.offload->times, o.optimizer, o.parameters, o.gradients,
      o.layers.empty() ? fmt::format("{}", o.activations) : "of layers " + o.layers,
      choice.fits ? "" : "; nothing that was tried fits");
}

}  // namespace

Deck WithChosenMemory(Deck& deck, World& world, const Device& device) {
  if (!LeavesMemoryOpen(deck)) return deck;
  if (deck.recompute.budget == 0) deck.recompute.budget = AgreeOnBudget(deck, world, device);
  Deck chosen = deck;
  const Chosen choice = OnRankZero(world, [&] {
    const MemoryChoice made =
        ChooseMemory(deck, world.Size(), device.Kind(), MemoryBudget(deck, 0), CostsOfChoice(deck));
    if (deck.recompute.mode == RecomputeMode::kAuto && made.layers) ReportLayers(*made.layers);
    if (made.offload) ReportOffload(made);
    const Deck::Recompute& recompute = made.deck.recompute;
    Chosen found{std::string(DeckName(recompute.mode)), recompute.layers, {}, made.deck.offload.layers};
    for (const OffloadShare& share : kOffloadShares) found.shares.push_back(share.Of(made.deck));
    return found;
  });
  chosen.recompute.mode = ParseChoice<RecomputeMode>(choice.mode).value();
  chosen.recompute.layers = choice.layers;
  chosen.recompute.budget = 0;
  for (size_t i = 0; i < choice.shares.size(); ++i) chosen.offload.*kOffloadShares[i].share = choice.shares[i];
  chosen.offload.layers = choice.offloaded;
  return chosen;
}

}  // namespace espalier
