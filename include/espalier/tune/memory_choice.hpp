// Chooses what a deck leaves open about memory: recompute.mode and keys of [offload] that are "auto". The choice fits a
// budget, and of the combinations that do, its simulated step is the shortest that the search finds. Pure and
// deterministic: a function of deck, ranks, device, budget and costs. The choice is a deck that states it by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/simulate/simulate.hpp"
#include "espalier/tune/recompute.hpp"

namespace espalier {

/// A combination that was compiled and simulated.
struct OffloadTrial {
  Deck deck;  ///< states it by hand
  bool fits = false;
  bool exact = true;  ///< false: peaks and times are those of a step of few microbatches, but for step_us, which is
                      ///< extended by the time of the others
  int64_t peak_bytes = 0;  ///< of the largest rank, over all programs of a run
  int64_t host_bytes = 0;  ///< of the rank that has most on the host
  double step_us = 0;
  Breakdown breakdown;  ///< of the slowest rank
  ByStepPart<PartTimes> parts{};
  double measured_share = 0;  ///< of its costs, the part that was measured on the cluster
};

struct OffloadChoice {
  std::string times;                 ///< whose times decided: the path of a cluster file, or "rough times"
  std::vector<OffloadTrial> trials;  ///< in the order of the search
  size_t choice = 0;                 ///< index of the one that was taken
  const OffloadTrial& Taken() const { return trials[choice]; }
};

struct MemoryChoice {
  Deck deck;
  int64_t budget = 0;
  bool fits = false;                      ///< false: nothing that was tried fits; the choice is the smallest of it
  std::optional<RecomputeChoice> layers;  ///< if layers were chosen one by one
  std::optional<OffloadChoice> offload;   ///< if a key of [offload] is "auto"
};

/// The budget of a deck: recompute.budget, or `device_bytes` if that is 0; at most offload.device_bytes. 0: none of the
/// three is known.
int64_t MemoryBudget(const Deck& deck, int64_t device_bytes);

/// The costs by which a run chooses: of the file in run.costs, of run.cluster if it sleeps, else rough ones. Throws
/// UserError as LoadCluster.
Costs CostsOfChoice(const Deck& deck);

/// Chooses for a deck that leaves memory open (LeavesMemoryOpen), by steps that are simulated with `costs`. If only
/// recompute.mode is "auto", layers are chosen by rough times or those of run.costs, the same for every cluster, and
/// `costs` decide between that choice and the fixed modes. Throws as Compile, and UserError (kDeck) if `costs` has no
/// times of copies to the host that a step makes.
MemoryChoice ChooseMemory(const Deck& deck, int ranks, DeviceKind device, int64_t budget, const Costs& costs,
                          int threads = 0);

}  // namespace espalier
