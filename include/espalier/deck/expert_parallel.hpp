// How parallel.ep divides into the degrees of the mesh.
#pragma once

#include "espalier/deck/deck.hpp"
#include "espalier/mesh/axes.hpp"

namespace espalier {

/// parallel.ep is the product of `dp_shard`, which divides parallel.dp_shard, and of whole degrees of cp and tp. The
/// nearest ranks come first: tp if it divides ep, then cp if it divides what is left.
struct ExpertParallel {
  int dp_shard = 1;
  bool cp = false, tp = false;
};
constexpr ExpertParallel ExpertParallelOf(const Deck::Parallel& p) {
  ExpertParallel e;
  int rest = p.ep;
  if (e.tp = rest % p.tp == 0; e.tp) rest /= p.tp;
  if (e.cp = rest % p.cp == 0; e.cp) rest /= p.cp;
  e.dp_shard = rest;
  return e;
}

/// Number of ranks from the first to the last that share the experts of a layer.
constexpr int SpanOf(const Deck::Parallel& p) {
  const ExpertParallel e = ExpertParallelOf(p);
  return e.dp_shard > 1 ? e.dp_shard * p.cp * p.tp : e.cp ? p.cp * p.tp : e.tp ? p.tp : 1;
}

/// Whether the ranks that share experts are neither ranks of tp alone nor of cp alone: their messages have a lane of
/// their own.
constexpr bool HasExpertLane(const Deck::Parallel& p) {
  const ExpertParallel e = ExpertParallelOf(p);
  return e.dp_shard > 1 || (e.cp && e.tp && p.cp > 1 && p.tp > 1);
}

/// Whether ranks differ only in their samples: along dp, apart from the part of ep that dp_shard has.
constexpr bool HasReplicas(const Deck::Parallel& p) {
  return p.dp_replicate != 1 || p.dp_shard != ExpertParallelOf(p).dp_shard;
}

/// The axes that shard the experts of a layer.
constexpr AxisSet ExpertAxes(const Deck::Parallel& p) {
  const ExpertParallel e = ExpertParallelOf(p);
  return AxisSet{Axis::kEp} | (e.cp ? AxisSet{Axis::kCp} : AxisSet{}) | (e.tp ? kTensorAxes : AxisSet{});
}

}  // namespace espalier
