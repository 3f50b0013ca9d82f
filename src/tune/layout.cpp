#include "tune/layout.hpp"

#include <fmt/core.h>

#include "espalier/schedule/schedule_file.hpp"

namespace espalier {

bool Layout::GathersAgain() const { return Shards() > 1 && zero == 3 && regather != Regather::kNever; }

bool IsConventional(const Layout& l) {
  const bool schedule = l.pp == 1 || l.schedule == ScheduleKind::k1F1B || l.schedule == ScheduleKind::kInterleaved;
  return schedule && l.cp == 1 && l.dp_replicate == 1 && !l.interleave;
}

Layout LayoutOf(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  return {.pp = p.pp,
          .dp_replicate = p.dp_replicate,
          .dp_shard = p.dp_shard,
          .cp = p.cp,
          .tp = p.tp,
          .ep = p.ep,
          .context = p.context,
          .schedule = deck.pipeline.schedule,
          .of_file = deck.pipeline.of_file == nullptr ? nullptr : &deck.pipeline.of_file->traits,
          .chunks = deck.pipeline.chunks,
          .micro = deck.batch.micro,
          .recompute = deck.recompute.mode,
          .regather = deck.recompute.regather,
          .zero = p.zero,
          .reduce = p.reduce,
          .prefetch = deck.overlap.prefetch,
          .interleave = deck.overlap.interleave};
}

void SetLayout(Deck& deck, const Layout& layout) {
  Deck::Parallel& p = deck.parallel;
  p.pp = layout.pp;
  p.dp_replicate = layout.dp_replicate;
  p.dp_shard = layout.dp_shard;
  p.cp = layout.cp;
  p.tp = layout.tp;
  p.ep = layout.ep;
  p.context = layout.context;
  p.zero = layout.zero;
  p.reduce = layout.reduce;
  deck.pipeline.schedule = layout.schedule;
  deck.pipeline.chunks = layout.chunks;
  deck.batch.micro = layout.micro;
  deck.recompute.mode = layout.recompute;
  deck.recompute.regather = layout.regather;
  deck.overlap.prefetch = layout.prefetch;
  deck.overlap.interleave = layout.interleave;
}

Deck WithLayout(const Deck& deck, const Layout& layout, const std::vector<int64_t>& split) {
  Deck changed = deck;
  SetLayout(changed, layout);
  changed.pipeline.split = split;
  return changed;
}

const std::vector<std::string_view>& SearchedKeys() {
  static const std::vector<std::string_view> keys = {
      "parallel.pp",       "parallel.dp_replicate", "parallel.dp_shard",   "parallel.cp",      "parallel.tp",
      "parallel.ep",       "parallel.zero",         "parallel.reduce",     "parallel.context", "pipeline.schedule",
      "pipeline.chunks",   "pipeline.split",        "batch.micro",         "recompute.mode",   "recompute.regather",
      "recompute.layers",  "offload.optimizer",     "offload.activations", "offload.layers",   "offload.parameters",
      "offload.gradients", "overlap.prefetch",      "overlap.interleave"};
  return keys;
}

std::string ToString(const Layout& l) {
  std::string text;
  const auto add = [&](std::string_view name, int degree) {
    if (degree > 1) text += fmt::format("{} {} ", name, degree);
  };
  add("tp", l.tp);
  add("ep", l.ep);
  add("cp", l.cp);
  if (l.cp > 1) text += fmt::format("{} ", DeckName(l.context));
  add("pp", l.pp);
  if (l.dp_replicate > 1)
    text += fmt::format("dp {}x{} ", l.dp_replicate, l.dp_shard);
  else
    add("dp", l.dp_shard);
  if (l.pp > 1) text += fmt::format("{} ", DeckName(l.schedule));
  if (l.pp > 1 && TraitsOf(l.schedule).max_chunks > TraitsOf(l.schedule).min_chunks)
    text += fmt::format("x{} ", l.chunks);
  if (l.interleave) text += "interleave ";
  text += fmt::format("micro {}", l.micro);
  if (l.recompute != RecomputeMode::kNone) text += fmt::format(" {}", DeckName(l.recompute));
  if (l.GathersAgain()) text += " fsdp";
  if (l.ReducesEach()) text += l.ShardsGradients() ? " reduce-sharded" : " reduce-whole";
  return text;
}

}  // namespace espalier
