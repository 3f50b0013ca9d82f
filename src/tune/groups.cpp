#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/deck/expert_parallel.hpp"
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

/// [parallel] with the degrees of a group, and all others as small as they can be.
Deck::Parallel SmallestOf(Deck::Parallel p, const Group& group) {
  p.pp = p.dp_replicate = p.dp_shard = 1;
  p.regather_group = 0;
  p.cp = group.cp;
  p.tp = group.tp;
  p.ep = group.ep;
  p.context = group.context;
  p.dp_shard = ExpertParallelOf(p).dp_shard;
  return p;
}

/// Checks the relations of tp, cp, ep and the model.
bool SuitsModel(const Deck& deck, const Group& group) {
  Deck changed = deck;
  Deck::Parallel& p = changed.parallel;
  p = SmallestOf(p, group);
  changed.pipeline.schedule = ScheduleKind::k1F1B;
  changed.pipeline.chunks = 1;
  changed.pipeline.split.clear();
  changed.batch.micro = changed.batch.global;
  changed.batch.global *= p.dp_shard;
  changed.batch.ramp_start = 0;
  changed.model.layers = 1;
  changed.model.experts.first_layer = 0;
  return IsValid(changed, p.dp_shard * p.cp * p.tp);
}

std::vector<int> ExpertDegrees(const SearchContext& c) {
  if (c.fixed.Has("parallel.ep") || c.deck.model.experts.count == 0) return {c.deck.parallel.ep};
  std::vector<int> degrees = Degrees(c.ranks);
  std::erase_if(degrees, [&](int ep) { return c.deck.model.experts.count % ep != 0; });
  return degrees;
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
    const bool one_node = tp <= c.costs.cluster().NearRanks() || c.fixed.Has("parallel.tp");
    for (int cp : Degrees(c.ranks / tp)) {
      if (!matches("parallel.cp", cp, c.deck.parallel.cp)) continue;
      const bool long_enough = cp <= kAlwaysCp || c.deck.model.seq_len / cp >= kMinTokens || c.fixed.Has("parallel.cp");
      for (ContextMode mode : ModesOf(c, cp))
        for (int ep : ExpertDegrees(c)) {
          const Group group{tp, cp, mode, ep};
          if (!SuitsModel(c.deck, group)) continue;
          const int span = SpanOf(SmallestOf(c.deck.parallel, group));
          const bool near = span <= c.costs.cluster().NearRanks() || c.fixed.Has("parallel.ep");
          if (one_node && long_enough && near) found.groups.push_back(group);
          found.tp_crosses_nodes = found.tp_crosses_nodes || !one_node;
          found.cp_too_short = found.cp_too_short || (one_node && !long_enough);
          found.ep_crosses_nodes = found.ep_crosses_nodes || (one_node && long_enough && !near);
        }
    }
  }
  return found;
}

}  // namespace espalier
