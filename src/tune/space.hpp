// The search space: every layout of a deck on a number of ranks, and the score of each. Layouts of equal tp, cp,
// ep and parallel.context are one group: they share the profiles of their layers.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tune/formula.hpp"
#include "tune/in_flight.hpp"
#include "tune/memory_bound.hpp"

namespace espalier {

/// The keys that a search keeps at the deck's value.
class FixedKeys {
 public:
  /// Throws UserError (kDeck) for keys that a search does not set.
  FixedKeys(const std::vector<std::string>& keys, const Deck& deck);
  bool Has(std::string_view key) const { return keys_.contains(std::string(key)); }

 private:
  std::set<std::string, std::less<>> keys_;
};

/// The question that a search answers.
struct SearchContext {
  const Deck& deck;  ///< dp_shard is known or open
  int ranks = 1;
  const Costs& costs;
  const Costs& fullest;  ///< the same for a program of one rank: the others wait for it
  int64_t memory_bytes = 0;
  const FixedKeys& fixed;
};

struct Group {
  int tp = 1, cp = 1;
  ContextMode context = ContextMode::kRing;
  int ep = 1;
};
/// Groups that may be valid, and why others were left out by the rules of doc/tune.md.
struct Groups {
  std::vector<Group> groups;
  bool tp_crosses_nodes = false;  ///< a valid tp was skipped because it exceeds the ranks of a node
  bool ep_crosses_nodes = false;  ///< the same of ep
  bool cp_too_short = false;      ///< a valid cp was skipped because it leaves each rank too few tokens
};
Groups GroupsOf(const SearchContext& context);

struct Scored {
  Layout layout;
  std::vector<int64_t> split;  ///< layers per chunk; empty: balanced by flops
  int64_t least_bytes = 0;
  int64_t expected_bytes = 0;  ///< the bound and the surplus of a smaller model; 0: not asked
  double least_us = 0;         ///< LeastUs
  double us = 0;               ///< FormulaUs
};

/// Counts of a search. Settings of a layout that make the same program count once.
struct SpaceCounts {
  int64_t considered = 0, invalid = 0, too_large = 0;
  int64_t smallest_bytes = 0;  ///< the smallest bound among layouts that are too large
  std::optional<Layout> smallest;
};

/// Facts about one schedule.
struct ScheduleFacts {
  ScheduleFacts(const Layout& layout, int64_t microbatches);
  std::vector<StageFlights> flights;
  PipelineReplay replay;
};

/// The facts by a schedule's numbers, computed once for all groups. Thread-safe.
class ScheduleCache {
 public:
  std::shared_ptr<const ScheduleFacts> Of(const Layout& layout, int64_t microbatches);

 private:
  using Key = std::tuple<ScheduleKind, int, int, SteadyState, int64_t>;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const ScheduleFacts>> known_;
};

/// All scorers share it.
struct Shared {
  ScheduleCache schedules;
  SharedProfiles profiles;
};

/// Scores layouts of one group.
class Scorer {
 public:
  Scorer(const SearchContext& context, const Group& group, Shared& shared)
      : context_(context),
        group_(group),
        schedules_(shared.schedules),
        shared_profiles_(shared.profiles),
        deck_(context.deck) {}

  /// Appends every layout of the group whose memory bound fits, without `us`.
  void ScoreAll(std::vector<Scored>& fitting, SpaceCounts& counts);
  /// One layout with given layers per chunk (empty: balanced by FLOPs). Without times if it does not fit.
  Scored Score(const Layout& layout, const std::vector<int64_t>& split);
  /// Replays the schedule of one that ScoreAll made. Thread-safe: all that it needs is known since then.
  void Time(Scored& scored);
  /// Sets `expected_bytes` of one that ScoreAll or Score made. Thread-safe as Time.
  void ExpectPeak(Scored& scored);
  /// Approximate number of instructions of the programs of all stages.
  int64_t InstructionsOf(const Layout& layout);
  /// Layers per chunk that balance the times of the formula rather than FLOPs; empty if that is the same.
  std::vector<int64_t> BalancedByTime(const Layout& layout);

 private:
  struct ProfileKey {
    int64_t micro;
    RecomputeMode recompute;
    bool defers;
    auto operator<=>(const ProfileKey&) const = default;
  };
  /// Keeps profilers for microbatches of one sequence, whose profiles may get times later, and the latest one.
  LayerProfiler& ProfilerOf(const Layout& layout);
  const LayerProfile& ProfileOf(const Layout& layout);
  /// For the memory bound: of a microbatch of one sequence, without times. Layouts that do not fit need no other.
  const LayerProfile& MemoryProfileOf(const Layout& layout);
  const ByPart<PartStates>& StatesOf(const Layout& layout);
  const DataParallelTimes& SyncOf(const Layout& layout);
  const std::vector<ChunkParts>& ChunksOf(const Layout& layout);
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  /// LeastBytes of a layout.
  int64_t LeastBytesOf(const Layout& layout, const std::vector<ChunkParts>& chunks, int64_t enough = kNoLimit);
  /// The result of `us`, FormulaUs or LeastUs, for a layout.
  double TimeOf(const Layout& layout, const std::vector<ChunkParts>& chunks, double (*us)(const StepQuestion&));
  int64_t Microbatches(const Layout& layout) const {
    return deck_.batch.global / (layout.micro * layout.DataParallel());
  }

  void ScoreDegrees(const Layout& degrees, std::vector<Scored>& fitting, SpaceCounts& counts);
  void ScoreSettings(const Layout& base, std::vector<Scored>& fitting, SpaceCounts& counts);
  bool IsValidLayout(const Layout& layout);

  const SearchContext& context_;
  const Group group_;
  ScheduleCache& schedules_;
  SharedProfiles& shared_profiles_;
  Deck deck_;                                                    ///< scratch for checks of relations
  std::map<std::pair<int64_t, bool>, LayerProfiler> profilers_;  ///< by micro and deferred W; until ScoreAll ends
  std::map<ProfileKey, LayerProfile> profiles_, memory_profiles_;
  using StateKey = std::tuple<int, int, bool, bool, bool>;
  std::map<StateKey, ByPart<PartStates>> states_;
  std::map<std::tuple<int, int, int>, DataParallelTimes> syncs_;
  std::map<std::tuple<int, ScheduleKind>, std::vector<ChunkParts>> chunks_;
};

}  // namespace espalier
