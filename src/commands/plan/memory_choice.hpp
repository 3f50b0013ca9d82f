// Chooses what a deck leaves open about memory where no run has been started: as a run with the same budget does.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "espalier/costs/cluster.hpp"
#include "espalier/tune/memory_choice.hpp"

namespace espalier {

/// The choice for a deck that leaves something open, else none. The budget is recompute.budget or offload.device_bytes,
/// else the memory of the cluster's device less what it reserves. Offload follows the times of the cluster; without one
/// (null), those that a run takes. Throws UserError (kDeck) if there is no budget.
std::optional<MemoryChoice> ChooseMemoryOfPlan(const Deck& deck, int ranks, const Cluster* cluster);

/// Prints what each stage computes again and moves, the bytes that saves, and the time that it adds; the combinations
/// of shares that were tried, and where the copies of the one that was taken hide.
void PrintMemoryChoice(const MemoryChoice& choice);
/// The entries "recompute" and "offload" of a plan.
nlohmann::ordered_json MemoryChoiceJson(const MemoryChoice& choice);

}  // namespace espalier
