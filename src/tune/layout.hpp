// A point of the search space: the keys of a deck that a search sets, without the deck.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct Layout {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1;
  ContextMode context = ContextMode::kRing;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  const ScheduleTraits* of_file = nullptr;  ///< of the deck's pipeline.file, for kFile
  int chunks = 1;
  int64_t micro = 1;
  RecomputeMode recompute = RecomputeMode::kNone;
  Regather regather = Regather::kAuto;
  int zero = 3;
  ReduceFrequency reduce = ReduceFrequency::kStep;
  int prefetch = 1;
  bool interleave = false;
  auto operator<=>(const Layout&) const = default;

  const ScheduleTraits& Traits() const {
    return schedule == ScheduleKind::kFile && of_file != nullptr ? *of_file : TraitsOf(schedule);
  }
  SteadyState Steady() const { return interleave ? SteadyState::kJoint : SteadyState::kAlternating; }
  /// Ranks among which the optimizer state is sharded.
  int Shards() const { return dp_shard * cp; }
  int DataParallel() const { return dp_replicate * dp_shard; }
  int Ranks() const { return pp * DataParallel() * cp * tp; }
  /// Parameters are gathered for every layer and microbatch instead of once per step.
  bool GathersAgain() const;
  /// Gradients are reduced after each microbatch (ReduceOf).
  bool ReducesEach() const {
    return reduce == ReduceFrequency::kMicrobatch || (reduce == ReduceFrequency::kAuto && zero >= 2 && Shards() > 1);
  }
  /// How gradients are summed over microbatches: whole, or in the shards of the optimizer state.
  bool ShardsGradients() const { return ReducesEach() && zero >= 2; }
};

/// The layouts that are tried first by hand: 1F1B or interleaved, tp and dp, without cp, copies of the shards and joint
/// jobs.
bool IsConventional(const Layout& layout);

/// The layout of a deck whose dp_shard is known.
Layout LayoutOf(const Deck& deck);

/// The deck with the layout and the layers per chunk (empty: balanced by cost).
Deck WithLayout(const Deck& deck, const Layout& layout, const std::vector<int64_t>& split);
/// The same in place.
void SetLayout(Deck& deck, const Layout& layout);

/// The keys that a search sets, in the order of the schema.
const std::vector<std::string_view>& SearchedKeys();

/// "tp 8 pp 16 dp 128 1f1b micro 1 selective": distinguishes layouts; axes of degree 1 are left out.
std::string ToString(const Layout& layout);

}  // namespace espalier
