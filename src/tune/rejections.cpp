#include "tune/rejections.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/util/error.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

struct Obvious {
  std::string name;
  Layout layout;
};

/// The first relation that a layout breaks.
std::string WhatIsBroken(const Deck& deck, int ranks) {
  try {
    ResolveMesh(deck, ranks);
  } catch (const UserError& error) {
    return error.messages().at(0);
  }
  return "it breaks a relation between pipeline.schedule, pipeline.chunks, parallel.pp and model.layers";
}

Layout Plain(const SearchContext& c, int tp, int pp) {
  Layout l = LayoutOf(c.deck);
  l.tp = tp;
  l.pp = pp;
  l.cp = l.dp_replicate = l.ep = 1;
  l.dp_shard = c.ranks / (tp * pp);
  l.schedule = ScheduleKind::k1F1B;
  l.chunks = 1;
  l.micro = 1;
  return l;
}

std::vector<Obvious> ObviousLayouts(const SearchContext& c) {
  const Cluster& cluster = c.costs.cluster();
  const int node = std::min(cluster.ranks_per_node, c.ranks);
  std::vector<Obvious> obvious;
  const auto add = [&](std::string name, const Layout& layout) {
    if (layout.Ranks() == c.ranks) obvious.push_back({std::move(name), layout});
  };
  add("pure FSDP", Plain(c, 1, 1));
  if (node > 1) add(fmt::format("FSDP with tp {}", node), Plain(c, node, 1));
  if (node > 1 && c.deck.model.experts.count % node == 0 && c.deck.model.experts.count > 0) {
    Layout experts = Plain(c, 1, 1);
    experts.ep = node;
    add(fmt::format("FSDP with ep {}", node), experts);
  }
  Layout copies = Plain(c, 1, 1);
  std::swap(copies.dp_replicate, copies.dp_shard);
  add("pure data parallelism without shards", copies);
  const int far = 2 * std::max(node, cluster.ranks_per_domain);
  if (far <= c.ranks) add(fmt::format("tp {}, across nodes", far), Plain(c, far, 1));
  for (int pp = 2; pp <= c.ranks / node && pp <= c.deck.model.layers; pp *= 2)
    if (node > 1) add(fmt::format("tp {} with pp {}, 1f1b", node, pp), Plain(c, node, pp));
  if (c.deck.parallel.dp_shard >= 1) add("the deck's own layout", LayoutOf(c.deck));
  return obvious;
}

/// The fastest variant that fits among all recompute modes, or the smallest.
Scored BestOf(Scorer& scorer, const SearchContext& c, Layout layout) {
  Scored best;
  for (RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    layout.recompute = mode;
    const Scored scored = scorer.Score(layout, {});
    const auto worth = [&](const Scored& s) {
      const bool fits = s.least_bytes <= c.memory_bytes;
      return std::pair(fits ? 0 : 1, fits ? s.us : static_cast<double>(s.least_bytes));
    };
    if (best.least_bytes == 0 || worth(scored) < worth(best)) best = scored;
  }
  return best;
}

std::string ReasonOf(const SearchContext& c, const Obvious& obvious, double best_us, Shared& shared) {
  const Layout& l = obvious.layout;
  const Deck deck = WithLayout(c.deck, l, {});
  if (!IsValid(deck, c.ranks)) return WhatIsBroken(deck, c.ranks);
  Scorer scorer(c, {l.tp, l.cp, l.context, l.ep}, shared);
  const Scored best = BestOf(scorer, c, l);
  if (best.least_bytes > c.memory_bytes)
    return fmt::format("needs {:.3g} GB or more{}, and a device has {:.3g}", double(best.least_bytes) / kGiga,
                       best.layout.recompute == RecomputeMode::kFull ? " even with full recompute" : "",
                       double(c.memory_bytes) / kGiga);
  const double slower = best.us / best_us - 1;
  if (slower < kModelError) return "";
  return fmt::format("{:.0f} % slower by formula ({:.4g} s, {})", 100 * slower, best.us / 1e6, ToString(best.layout));
}

}  // namespace

std::vector<Rejection> RejectionsOf(const SearchContext& context, double best_us, Shared& shared) {
  std::vector<Rejection> rejections;
  for (const Obvious& obvious : ObviousLayouts(context))
    if (std::string reason = ReasonOf(context, obvious, best_us, shared); !reason.empty())
      rejections.push_back({obvious.name, std::move(reason)});
  return rejections;
}

}  // namespace espalier
