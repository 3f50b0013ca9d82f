#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"
#include "tune/space.hpp"

namespace espalier {
namespace {

// Shorter parts of a sequence than this are considered only up to a cp of kAlwaysCp.
constexpr int64_t kMinTokens = 1024;
constexpr int kAlwaysCp = 4;

std::vector<int> Degrees(int ranks) {
  std::vector<int> divisors;
  for (int d = 1; d <= ranks; ++d)
    if (ranks % d == 0) divisors.push_back(d);
  return divisors;
}

/// Checks the relations of tp, cp and the model, with all other degrees 1.
bool SuitsModel(const Deck& deck, int tp, int cp, ContextMode mode) {
  Deck changed = deck;
  Deck::Parallel& p = changed.parallel;
  p.pp = p.dp_replicate = p.dp_shard = 1;
  p.regather_group = 0;
  p.cp = cp;
  p.tp = tp;
  p.context = mode;
  changed.pipeline = {ScheduleKind::k1F1B, 1, {}};
  changed.batch.micro = changed.batch.global;
  changed.batch.ramp_start = 0;
  changed.model.layers = 1;
  return IsValid(changed, cp * tp);
}

std::vector<ContextMode> ModesOf(const SearchContext& c, int cp) {
  if (cp == 1 || c.fixed.Has("parallel.context")) return {c.deck.parallel.context};
  return {ContextMode::kRing, ContextMode::kAllGather, ContextMode::kAllToAll};
}

}  // namespace

FixedKeys::FixedKeys(const std::vector<std::string>& keys, const Deck& deck) {
  std::vector<std::string> names(SearchedKeys().begin(), SearchedKeys().end()), messages;
  for (const std::string& key : keys) {
    if (std::ranges::find(names, key) == names.end())
      messages.push_back(fmt::format("command line: --fix {}: not a key that a search sets{} (allowed: {})", key,
                                     DidYouMean(Nearest(key, names)), fmt::join(names, ", ")));
    if (key == "parallel.dp_shard" && deck.parallel.dp_shard < 1)
      messages.push_back(
          "command line: --fix parallel.dp_shard: it is -1, which is what other degrees leave (give it a "
          "number to fix)");
    keys_.insert(key);
  }
  if (!messages.empty()) throw UserError(ExitStatus::kDeck, std::move(messages));
}

Groups GroupsOf(const SearchContext& c) {
  Groups found;
  const auto matches = [&](const char* key, int value, int deck) { return !c.fixed.Has(key) || value == deck; };
  for (int tp : Degrees(c.ranks)) {
    if (!matches("parallel.tp", tp, c.deck.parallel.tp)) continue;
    const bool one_node = tp <= c.costs.cluster().ranks_per_node || c.fixed.Has("parallel.tp");
    for (int cp : Degrees(c.ranks / tp)) {
      if (!matches("parallel.cp", cp, c.deck.parallel.cp)) continue;
      const bool long_enough = cp <= kAlwaysCp || c.deck.model.seq_len / cp >= kMinTokens || c.fixed.Has("parallel.cp");
      for (ContextMode mode : ModesOf(c, cp)) {
        if (!SuitsModel(c.deck, tp, cp, mode)) continue;
        if (one_node && long_enough) found.groups.push_back({tp, cp, mode});
        found.tp_crosses_nodes = found.tp_crosses_nodes || !one_node;
        found.cp_too_short = found.cp_too_short || (one_node && !long_enough);
      }
    }
  }
  return found;
}

}  // namespace espalier
