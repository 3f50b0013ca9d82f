#include "commands/calibrate/demands.hpp"

#include "commands/plan/memory_choice.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/model/groups_of_parameters.hpp"

namespace espalier {

WorldPlan PlanForGpus(const std::string& deck, std::vector<std::string> overrides, int ranks) {
  overrides.insert(overrides.end(), {"run.device=cuda", "run.costs=\"\""});
  LoadedDeck loaded = LoadDeck(deck, overrides);
  if (ranks == 0) ranks = SmallestRanks(loaded.deck);
  ReadSchedule(loaded.deck);
  ResolveMesh(loaded, ranks);
  RequirePatternsMatch(loaded);
  if (const auto memory = ChooseMemoryOfPlan(loaded.deck, ranks, nullptr)) loaded.deck = memory->deck;
  return PlanWorld(loaded.deck, ranks);
}

}  // namespace espalier
