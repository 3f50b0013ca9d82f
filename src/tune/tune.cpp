#include "espalier/tune/tune.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "espalier/deck/offload.hpp"
#include "espalier/tune/memory_choice.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/parallel.hpp"
#include "espalier/util/units.hpp"
#include "tune/choose.hpp"
#include "tune/expected_peaks.hpp"
#include "tune/rejections.hpp"
#include "tune/trial.hpp"

namespace espalier {
namespace {

constexpr size_t kTimedAtOnce = 1024;       // layouts whose schedules are replayed side by side
constexpr size_t kRefined = 100;            // refinements of the fastest: other splits, other depths of prefetch
constexpr size_t kConventionalRefined = 3;  // conventional layouts with the schedule of the fastest interleaved ones
constexpr int kRounds = 4;                  // of choices, as long as few fit
constexpr size_t kEnoughFit = 5;            // fitting layouts that end the rounds
constexpr size_t kTriedAtOnce = 4;          // layouts that are compiled before the next are judged by them
constexpr int64_t kLong = 20;               // parts of the instructions of a search: longer programs must promise more
constexpr double kLeastRatio = 0.95;        // of a simulated step and its formula, unless a lower one is found
constexpr size_t kMostSmallerModels = 8;    // for each layout that may be simulated
constexpr size_t kRefinedOffloads = 3;      // candidates whose shares on the host are chosen anew
constexpr int kSimulatedForFewest = 6;      // candidates for a smaller number of ranks
constexpr double kShareStep = 0.05;         // measured shares that differ by less count as equal

/// The deck with a number for dp_shard, if the other degrees allow one.
Deck WithShards(Deck deck, int ranks) {
  const Deck::Parallel& p = deck.parallel;
  const int64_t others = int64_t{p.pp} * p.dp_replicate * p.cp * p.tp;
  if (p.dp_shard == -1 && ranks % others == 0) deck.parallel.dp_shard = static_cast<int>(ranks / others);
  return deck;
}

/// The same for the cluster's device.
Deck DeckFor(Deck deck, int ranks, const Cluster& cluster) {
  deck.run.device = cluster.device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
  return WithShards(std::move(deck), ranks);
}

/// How far a layout is from plain 1F1B with FSDP: among near ties the plainest is preferred.
int Complexity(const Deck& deck) {
  const ScheduleKind kind = deck.pipeline.schedule;
  const int schedule = kind == ScheduleKind::k1F1B || deck.parallel.pp == 1 ? 0
                       : kind == ScheduleKind::kInterleaved                 ? 1
                                                                            : 2;
  return schedule + (deck.parallel.dp_replicate > 1) + (deck.parallel.cp > 1) + !deck.pipeline.split.empty() +
         (deck.parallel.reduce != ReduceFrequency::kStep);
}

class Search {
 public:
  Search(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options)
      : options_(options),
        deck_(DeckFor(deck, ranks, costs.cluster())),
        fixed_(options.fixed, deck),
        costs_(costs.Of(JobOf(deck_, ranks))),
        fullest_(costs_.OfTheFullestRank()),
        context_{deck_, ranks, costs_, fullest_, MemoryOf(costs.cluster(), options), fixed_} {}

  TuneResult Run() {
    result_.memory_bytes = context_.memory_bytes;
    ScoreSpace();
    if (scored_.empty()) ThrowNone();
    Refine();
    TryBest();
    Rank();
    result_.rejections = RejectionsOf(context_, scored_[0].us, shared_);
    return std::move(result_);
  }

  std::optional<double> FastestByFormula() {
    ScoreSpace();
    return scored_.empty() ? std::nullopt : std::optional(scored_[0].us);
  }

 private:
  static int64_t MemoryOf(const Cluster& cluster, const TuneOptions& options) {
    if (options.memory_bytes > 0) return options.memory_bytes;
    return cluster.BytesForPrograms();
  }

  void ScoreSpace() {
    const Groups groups = GroupsOf(context_);
    State(groups);
    for (const Group& group : groups.groups) scorers_.emplace_back(context_, group, shared_);
    std::vector<std::vector<Scored>> fitting(scorers_.size());
    std::vector<SpaceCounts> counts(scorers_.size());
    ParallelFor(
        scorers_.size(), [&](size_t i) { scorers_[i].ScoreAll(fitting[i], counts[i]); }, options_.threads);
    for (size_t i = 0; i < scorers_.size(); ++i) {
      result_.considered += counts[i].considered;
      result_.invalid += counts[i].invalid;
      result_.too_large += counts[i].too_large;
      if (counts[i].smallest && (!smallest_ || counts[i].smallest_bytes < smallest_bytes_))
        smallest_ = counts[i].smallest, smallest_bytes_ = counts[i].smallest_bytes;
      for (Scored& scored : fitting[i]) scored_.push_back(std::move(scored)), scorer_of_.push_back(i);
    }
    result_.scored = std::ssize(scored_);
    Sort(&Scored::least_us);
    TimeHopeful();
    Sort(&Scored::us);
  }

  /// Replays schedules in the order of their lower bounds, until no other layout can be within kHopeful of the fastest.
  /// Others cannot be chosen, and are dropped.
  void TimeHopeful() {
    double fastest = std::numeric_limits<double>::max();
    size_t timed = 0;
    while (timed < scored_.size() && scored_[timed].least_us <= kHopeful * fastest) {
      const size_t count = std::min(kTimedAtOnce, scored_.size() - timed);
      ParallelFor(
          count, [&](size_t i) { scorers_[scorer_of_[timed + i]].Time(scored_[timed + i]); }, options_.threads);
      for (size_t i = 0; i < count; ++i) fastest = std::min(fastest, scored_[timed + i].us);
      timed += count;
    }
    scored_.resize(timed);
    scorer_of_.resize(timed);
  }

  void State(const Groups& groups) {
    if (groups.tp_crosses_nodes)
      result_.rules.push_back(
          fmt::format("tp above {} crosses nodes and was left out (--fix parallel.tp keeps the deck's)",
                      context_.costs.cluster().NearRanks()));
    if (groups.ep_crosses_nodes)
      result_.rules.push_back(
          fmt::format("ep that spans more than {} ranks, with the cp and tp between, crosses nodes and was left out "
                      "(--fix parallel.ep keeps the deck's)",
                      context_.costs.cluster().NearRanks()));
    if (groups.cp_too_short)
      result_.rules.push_back("cp that leaves a rank fewer than 1,024 tokens of a sequence was left out above cp 4");
  }

  [[noreturn]] void ThrowNone() const {
    if (result_.too_large == 0) {
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("tune: none of {} layouts of {} ranks is valid: batch.global = {} and the model's sizes "
                      "have too few divisors in common with the number of ranks",
                      result_.considered, context_.ranks, context_.deck.batch.global));
    }
    throw UserError(
        ExitStatus::kDoesNotFit,
        fmt::format("tune: none of {} layouts on {} ranks fits {:.4g} GB; the smallest, {}, needs {:.4g} GB "
                    "or more ({})",
                    result_.too_large, context_.ranks, double(context_.memory_bytes) / kGiga, ToString(*smallest_),
                    double(smallest_bytes_) / kGiga, Remedy(smallest_bytes_)));
  }
  /// A change that makes room for a layout of this size.
  std::string Remedy(int64_t bytes) const {
    const bool fits = bytes <= MemoryOf(context_.costs.cluster(), {});
    return fmt::format("{}take more ranks, or a device with more memory",
                       fits ? "leave less free (--reserve 0), " : "");
  }

  /// Scores and their scorers, ascending by `us`.
  void Sort(double Scored::*us) {
    std::vector<size_t> order(scored_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](size_t i, size_t j) {
      const Scored &a = scored_[i], &b = scored_[j];
      return std::tie(a.*us, a.layout, a.split) < std::tie(b.*us, b.layout, b.split);
    });
    std::vector<Scored> scored;
    std::vector<size_t> scorer_of;
    for (size_t i : order) scored.push_back(std::move(scored_[i])), scorer_of.push_back(scorer_of_[i]);
    scored_ = std::move(scored);
    scorer_of_ = std::move(scorer_of);
  }

  /// Variants of the fastest that are not in the space: layers balanced by time, and the deck's own split; parameters
  /// gathered earlier or later.
  void Refine() {
    for (size_t i = 0, n = std::min(kRefined, scored_.size()); i < n; ++i) {
      const Layout layout = scored_[i].layout;
      Scorer& scorer = scorers_[scorer_of_[i]];
      if (!fixed_.Has("pipeline.split") && layout.pp > 1) {
        Add(layout, scorer.BalancedByTime(layout), scorer_of_[i]);
        const std::vector<int64_t>& own = context_.deck.pipeline.split;
        if (std::ssize(own) == layout.pp * layout.chunks) Add(layout, own, scorer_of_[i]);
      }
      if (!fixed_.Has("overlap.prefetch") && layout.GathersAgain())
        for (int prefetch : {1, 2}) {
          Layout other = layout;
          other.prefetch = prefetch;
          if (prefetch != layout.prefetch) Add(other, scored_[i].split, scorer_of_[i]);
        }
    }
    AddConventional();
    Sort(&Scored::us);
  }
  /// With tp, interleaved schedules have joint jobs in the space: here are the fastest without.
  void AddConventional() {
    if (fixed_.Has("overlap.interleave")) return;
    size_t added = 0;
    for (size_t i = 0, n = scored_.size(); i < n && added < kConventionalRefined; ++i) {
      Layout layout = scored_[i].layout;
      if (layout.schedule != ScheduleKind::kInterleaved || !layout.interleave) continue;
      layout.interleave = false;
      if (!IsConventional(layout)) continue;
      AddNew(layout, scored_[i].split, scorer_of_[i]);
      ++added;
    }
  }
  void Add(const Layout& layout, const std::vector<int64_t>& split, size_t scorer) {
    if (split.empty() && layout.prefetch == context_.deck.overlap.prefetch) return;
    AddNew(layout, split, scorer);
  }
  void AddNew(const Layout& layout, const std::vector<int64_t>& split, size_t scorer) {
    Scored scored = scorers_[scorer].Score(layout, split);
    ++result_.considered;
    if (scored.least_bytes > context_.memory_bytes) {
      ++result_.too_large;
      return;
    }
    ++result_.scored;
    scored_.push_back(std::move(scored));
    scorer_of_.push_back(scorer);
  }

  /// The layout's name, plus keys that the deck does not set itself.
  std::string NameOf(const Scored& scored) const {
    std::string name = ToString(scored.layout);
    if (!scored.split.empty()) name += " own split";
    if (scored.layout.prefetch != context_.deck.overlap.prefetch)
      name += fmt::format(" prefetch {}", scored.layout.prefetch);
    return name;
  }

  Deck DeckOf(const Scored& scored) const {
    Deck deck = WithLayout(context_.deck, scored.layout, scored.split);
    if (fixed_.Has("pipeline.split")) deck.pipeline.split = context_.deck.pipeline.split;
    return deck;
  }

  /// Compiles and simulates the deck's own layout and the best others; while few fit, the best of the rest.
  void TryBest() {
    for (size_t i = 0; i < scored_.size(); ++i)
      instructions_.push_back(scorers_[scorer_of_[i]].InstructionsOf(scored_[i].layout));
    tried_.resize(scored_.size());
    const auto most = static_cast<size_t>(options_.simulated), enough = std::min(kEnoughFit, (most + 1) / 2);
    for (int round = 0; round == 0 || (round < kRounds && CountFitting() < enough); ++round) {
      std::vector<size_t> next = ChooseFitting(most);
      if (next.empty()) break;
      if (round == 0) PutOwnFirst(next);
      const size_t hopeless = TryInTurn(next);
      if (hopeless > 0) TryInTurn(ChooseOpen(hopeless, options_.instructions / kLong));
    }
    result_.compiled = std::ssize(chosen_);
    for (size_t i = 0; i < scored_.size(); ++i)
      if (!tried_[i] && !peaks_.MayFit(scored_[i])) ++result_.expected_too_large;
  }
  /// The best of the layouts that were not tried. Smaller models say which do not fit; the next take their places.
  std::vector<size_t> ChooseFitting(size_t count) {
    for (size_t smaller_models = 0;;) {
      std::vector<size_t> chosen = ChooseOpen(count, std::numeric_limits<int64_t>::max()), open;
      for (size_t i : chosen)
        if (scored_[i].expected_bytes == 0 && peaks_.IsUncertain(scored_[i])) open.push_back(i);
      if (open.empty() || smaller_models >= kMostSmallerModels * count || LeavesMemoryOpen(deck_)) return chosen;
      smaller_models += open.size();
      ParallelFor(
          open.size(), [&](size_t i) { scorers_[scorer_of_[open[i]]].ExpectPeak(scored_[open[i]]); }, options_.threads);
      for (size_t i : open) peaks_.NoteExpected(scored_[i]);
    }
  }
  /// The best of the layouts that may fit and were not tried, with programs of up to `longest` instructions, as indices
  /// of the scored.
  std::vector<size_t> ChooseOpen(size_t count, int64_t longest) const {
    std::vector<size_t> open;
    std::vector<Scored> scored;
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < scored_.size(); ++i) {
      if (tried_[i] || instructions_[i] > longest || !peaks_.MayFit(scored_[i])) continue;
      open.push_back(i);
      scored.push_back(scored_[i]);
      lengths.push_back(instructions_[i]);
    }
    std::vector<size_t> chosen = Choose(scored, lengths, {count, options_.instructions});
    for (size_t& i : chosen) i = open[i];
    return chosen;
  }
  /// Puts the layout of the deck at the beginning, if it is among the scored.
  void PutOwnFirst(std::vector<size_t>& layouts) const {
    const Layout own = LayoutOf(deck_);
    for (size_t i = 0; i < scored_.size(); ++i) {
      if (scored_[i].layout != own || scored_[i].split != deck_.pipeline.split) continue;
      std::erase(layouts, i);
      layouts.insert(layouts.begin(), i);
      return;
    }
  }
  /// Tries a few at a time, without those that their like show to be too large. Returns how many it left out as
  /// hopeless.
  size_t TryInTurn(const std::vector<size_t>& layouts) {
    size_t hopeless = 0;
    for (size_t begin = 0; begin < layouts.size(); begin += kTriedAtOnce) {
      const size_t end = std::min(begin + kTriedAtOnce, layouts.size());
      std::vector<size_t> few(layouts.data() + begin, layouts.data() + end);
      std::erase_if(few, [&](size_t i) { return !peaks_.MayFit(scored_[i]); });
      hopeless += std::erase_if(few, [&](size_t i) { return IsHopeless(i); });
      TryAll(few);
    }
    return hopeless;
  }
  void TryAll(const std::vector<size_t>& layouts) {
    std::vector<Trial> trials(layouts.size());
    ParallelFor(
        layouts.size(),
        [&](size_t i) {
          trials[i] = Try(DeckOf(scored_[layouts[i]]), context_.ranks, context_.costs, context_.memory_bytes);
        },
        options_.threads);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Scored& scored = scored_[layouts[i]];
      if (trials[i].peak_bytes > 0) peaks_.NoteCompiled(scored, trials[i].peak_bytes);
      if (trials[i].step_us > 0) {
        fastest_us_ = std::min(fastest_us_, trials[i].step_us);
        least_ratio_ = std::min(least_ratio_, trials[i].step_us / scored.us);
      }
      tried_[layouts[i]] = true;
      chosen_.push_back(layouts[i]);
      trials_.push_back(std::move(trials[i]));
    }
  }
  size_t CountFitting() const {
    return static_cast<size_t>(std::ranges::count_if(trials_, [](const Trial& t) { return t.fits; }));
  }

  /// Its programs are long, and it is no near tie of the fastest even if the formula is as far above its simulation as
  /// for any other.
  bool IsHopeless(size_t i) const {
    return instructions_[i] > options_.instructions / kLong &&
           scored_[i].us * least_ratio_ > fastest_us_ * (1 + kModelError);
  }

  /// The end of a sentence about a compiled layout that does not fit.
  std::string WhatLacks(const Trial& trial) const {
    if (trial.peak_bytes > context_.memory_bytes)
      return fmt::format("; the smallest needs {:.4g} GB or more ({})", double(trial.peak_bytes) / kGiga,
                         Remedy(trial.peak_bytes));
    return fmt::format(
        "; the smallest needs {:.4g} GB of the host for a rank, and host.memory_bytes has {:.4g} GB for a "
        "node (take more nodes)",
        double(trial.host_bytes) / kGiga, double(context_.costs.cluster().host.memory_bytes) / kGiga);
  }

  void Rank() {
    const Trial* smallest = nullptr;
    for (size_t i = 0; i < trials_.size(); ++i) {
      const Trial& trial = trials_[i];
      const Scored& scored = scored_[chosen_[i]];
      if (!trial.fits && trial.why_not.empty()) {
        ++result_.compiled_too_large;
        if (smallest == nullptr || trial.peak_bytes < smallest->peak_bytes) smallest = &trial;
      }
      if (!trial.fits) continue;
      result_.ranking.push_back({DeckOf(scored), NameOf(scored), scored.least_bytes, scored.us, trial.peak_bytes,
                                 trial.step_us, trial.breakdown, trial.measured_share,
                                 LimitOf(trial.breakdown, trial.step_us)});
    }
    if (result_.ranking.empty())
      throw UserError(ExitStatus::kDoesNotFit,
                      fmt::format("tune: none of the {} best layouts on {} ranks fits {:.4g} GB once compiled{}",
                                  result_.compiled, context_.ranks, double(context_.memory_bytes) / kGiga,
                                  smallest == nullptr ? "" : WhatLacks(*smallest)));
    std::ranges::stable_sort(result_.ranking, {}, &Candidate::step_us);
    if (options_.refine_offload) RefineOffload();
    const auto baseline =
        std::ranges::find_if(result_.ranking, [](const Candidate& c) { return IsConventional(LayoutOf(c.deck)); });
    if (baseline != result_.ranking.end()) result_.baseline = static_cast<size_t>(baseline - result_.ranking.begin());
    Recommend();
  }

  /// Chooses the shares on the host of the fastest candidates anew, for each by itself.
  void RefineOffload() {
    const size_t count = std::min(kRefinedOffloads, result_.ranking.size());
    for (size_t i = 0; i < count; ++i) {
      const Candidate& c = result_.ranking[i];
      Deck open = c.deck;
      if (!fixed_.Has("recompute.mode") && open.recompute.ops.empty() && open.recompute.layers.empty())
        open.recompute.mode = RecomputeMode::kAuto;
      SetOffloadShares(open, kAutoShare);
      const MemoryChoice choice =
          ChooseMemory(open, context_.ranks, context_.costs.cluster().device, MemoryBudget(open, context_.memory_bytes),
                       context_.costs, options_.threads);
      const OffloadTrial& taken = choice.offload->Taken();
      if (!taken.fits || taken.step_us >= c.step_us) continue;
      result_.ranking[i] = {choice.deck,     c.layout + ", auto",  c.least_bytes,
                            c.formula_us,    taken.peak_bytes,     taken.step_us,
                            taken.breakdown, taken.measured_share, LimitOf(taken.breakdown, taken.step_us)};
    }
    std::ranges::stable_sort(result_.ranking, {}, &Candidate::step_us);
  }

  void Recommend() {
    const std::vector<Candidate>& ranking = result_.ranking;
    if (ranking.size() > 1) result_.margin = ranking[1].step_us / ranking[0].step_us - 1;
    const auto near = [&](const Candidate& c) { return c.step_us <= ranking[0].step_us * (1 + kModelError); };
    const auto worth = [&](const Candidate& c) {
      return std::tuple(-static_cast<int>(c.measured_share / kShareStep), Complexity(c.deck));
    };
    for (size_t i = 1; i < ranking.size() && near(ranking[i]); ++i) {
      ++result_.near_ties;
      if (worth(ranking[i]) < worth(ranking[result_.choice])) result_.choice = i;
    }
  }

  const TuneOptions& options_;
  const Deck deck_;
  const FixedKeys fixed_;
  const Costs costs_, fullest_;
  const SearchContext context_;
  Shared shared_;
  std::vector<Scorer> scorers_;  // by group
  std::vector<Scored> scored_;   // ascending by time, once timed
  std::vector<size_t> scorer_of_;
  std::optional<Layout> smallest_;
  int64_t smallest_bytes_ = 0;
  std::vector<int64_t> instructions_;  // by index of the scored
  std::vector<bool> tried_;            // the same
  std::vector<size_t> chosen_;         // indices of the compiled, in their order
  std::vector<Trial> trials_;
  double fastest_us_ = std::numeric_limits<double>::max(), least_ratio_ = kLeastRatio;
  ExpectedPeaks peaks_{context_.memory_bytes};
  TuneResult result_;
};

}  // namespace

TuneResult Tune(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options) {
  return Search(deck, ranks, costs, options).Run();
}

TuneResult TuneWithOffload(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options) {
  const bool open =
      AllSharesAre(deck, 0) && deck.offload.layers.empty() &&
      std::ranges::none_of(options.fixed, [](const std::string& key) { return key.starts_with("offload."); });
  if (!open) return Tune(deck, ranks, costs, options);
  TuneOptions refined = options;
  refined.refine_offload = true;
  Deck moved = deck;
  moved.offload.optimizer = 1;
  Deck all = moved;
  SetOffloadShares(all, 1);
  for (const auto& [choice, text] : {std::pair<const Deck*, const char*>{&deck, ""},
                                     {&moved, "offload.optimizer = \"all\""},
                                     {&all, "all keys of [offload] = \"all\""}}) {
    try {
      TuneResult result = Tune(*choice, ranks, costs, choice == &deck ? options : refined);
      result.offload = text;
      return result;
    } catch (const UserError& error) {
      if (error.status() != ExitStatus::kDoesNotFit || choice == &all) throw;
    }
  }
  CHECK(false, "the last choice returns or throws");
}

std::optional<Candidate> ChoiceWithJoinedHeads(const TuneResult& result, int ranks, const Costs& costs,
                                               const TuneOptions& options) {
  Candidate joined = result.ranking.at(result.choice);
  if (joined.deck.fusion.join_matmuls != JoinMatmuls::kNever) return std::nullopt;
  joined.deck.fusion.join_matmuls = JoinMatmuls::kHeads;
  const int64_t memory_bytes = options.memory_bytes > 0 ? options.memory_bytes : costs.cluster().BytesForPrograms();
  const Trial trial = Try(joined.deck, ranks, costs, memory_bytes);
  if (!trial.fits || !trial.why_not.empty() || trial.step_us >= joined.step_us) return std::nullopt;
  joined.peak_bytes = trial.peak_bytes;
  joined.step_us = trial.step_us;
  joined.breakdown = trial.breakdown;
  joined.measured_share = trial.measured_share;
  joined.limit = LimitOf(trial.breakdown, trial.step_us);
  return joined;
}

std::optional<FewestRanks> FindFewestRanks(const Deck& deck, int ranks, const Costs& costs, TuneOptions options) {
  options.simulated = kSimulatedForFewest;
  for (int fewer = 1; fewer < ranks; fewer *= 2) try {
      return FewestRanks{fewer, TuneWithOffload(deck, fewer, costs, options)};
    } catch (const UserError&) {  // no layout of so few is valid, or none fits
    }
  return std::nullopt;
}

std::string LayoutName(const Deck& deck, int ranks) { return ToString(LayoutOf(WithShards(deck, ranks))); }

std::optional<double> FastestByFormula(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options) {
  return Search(deck, ranks, costs, options).FastestByFormula();
}

}  // namespace espalier
