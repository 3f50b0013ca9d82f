// recompute.mode = "auto" where no run has been started: the choice that a run with the same budget makes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "espalier/costs/cluster.hpp"
#include "espalier/tune/recompute.hpp"

namespace espalier {

/// The choice for a deck that asks for one, else none. The budget is recompute.budget, or the memory of the cluster's
/// device less what it reserves. Throws UserError (kDeck) if there is neither. `cluster` may be null.
std::optional<RecomputeChoice> ChooseRecomputeOfPlan(const Deck& deck, int ranks, const Cluster* cluster);

/// The ops that each stage computes again, the bytes that saves, and the work that it adds.
void PrintRecompute(const RecomputeChoice& choice);
nlohmann::ordered_json RecomputeJson(const RecomputeChoice& choice);

}  // namespace espalier
