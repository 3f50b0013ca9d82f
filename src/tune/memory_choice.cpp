// Shares of states on the host, and what becomes of activations, are chosen together. A few probes say what each key
// saves and costs by itself: everything on the device; each open key with "all"; and activations that are all computed
// again and moved. Bytes and times are taken to add up, so each combination of shares on a coarse grid has a
// prediction; activations save what then is missing. In the order of the predicted step combinations are compiled and
// simulated, until none of the others promises a shorter step than the best that fits. Where a peak is larger than
// predicted, the others are expected to be, too. Activations that are only computed again are an alternative each time,
// and one treatment of all layers in the end.
//
// Microbatches repeat, so of many of them the search compiles a few, and extends the step by what a further one takes.
// The fastest combinations are then made with all of them, exactly.
#include "espalier/tune/memory_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "espalier/costs/order.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/offload.hpp"
#include "espalier/util/parallel.hpp"
#include "tune/trial.hpp"

namespace espalier {
namespace {

constexpr int kSteps = 4;          // of a share, from none to all
constexpr size_t kMaxFitting = 5;  // combinations that fit, of which the best is taken
constexpr double kSlack = 0.02;    // of the largest peak: a combination that misses the budget by less is tried
constexpr int kMaxExact = 3;       // combinations that fit and are made with all microbatches
constexpr double kNear = 0.002;    // of the shortest estimated step: those within it are made so

/// Rates in the ratios of the rough times (ops/op_times.hpp), of a GPU of 800 TFLOP/s.
Cluster RoughCluster() {
  Cluster c;
  c.name = c.path = "rough times";
  c.ranks_per_node = 8;
  c.compute.name = "GPU";
  c.compute.bf16_tflops = c.compute.fp32_tflops = c.compute.fp8_tflops = 800;
  c.compute.memory_bytes_per_us = 4e6;
  c.node.bytes_per_us = c.node.pair_bytes_per_us = 4e5;
  c.network.bytes_per_us = c.network.pair_bytes_per_us = 8e4;
  c.host.out_bytes_per_us = c.host.in_bytes_per_us = 53e3;
  c.node.base_us = c.node.message_us = c.network.base_us = c.network.message_us = c.host.copy_us = 6;
  return c;
}

/// The microbatches of two short steps that stand for the whole one.
struct Fold {
  int64_t sequences = 0;      ///< of a microbatch, on all ranks
  int64_t few = 0, more = 0;  ///< microbatches
  double further = 0;         ///< differences between the two that the whole step has besides the second
};

/// Nothing if the step has too few microbatches to be worth it, or a file prescribes all of them.
std::optional<Fold> FoldOf(const Deck& deck, int ranks) {
  if (TraitsOf(deck.pipeline).given != nullptr) return std::nullopt;
  const int64_t microbatches = BatchOf(deck, ResolveMesh(deck, ranks)).microbatches, stages = deck.parallel.pp;
  // A pipeline takes turns to become steady; some schedules want multiples of the stages.
  const int64_t few = stages == 1 ? 2 : 4 * stages, more = few + 2 * stages;
  if (microbatches < 2 * (few + more)) return std::nullopt;
  return Fold{deck.batch.global / microbatches, few, more, double(microbatches - more) / double(more - few)};
}

class MemoryChooser {
 public:
  MemoryChooser(const Deck& deck, int ranks, DeviceKind device, int64_t budget, const Costs& costs, int threads)
      : deck_(deck),
        ranks_(ranks),
        device_(device),
        budget_(budget),
        costs_(costs),
        threads_(threads),
        times_(TimesOf(costs.cluster(), costs.cluster().path, deck)) {
    deck_.run.device = device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
    for (const OffloadShare& share : kOffloadedStates)
      if (share.Of(deck_) == kAutoShare) open_.push_back(share.share);
    fold_ = FoldOf(deck_, ranks);
  }

  MemoryChoice Run() {
    Search();
    if (fold_) MakeExact();
    return Report(*best_);
  }

 private:
  using Share = double Deck::Offload::*;
  using Shares = std::vector<int>;  // by open state: of kSteps
  /// The bytes that a key saves and the time that it costs if all of it is on the host.
  struct Lever {
    double bytes = 0, us = 0;
  };
  struct Prediction {
    Shares shares;
    double us = 0;
    double missing = 0;  ///< bytes, if activations save as much as they can; negative: what is free then
  };
  /// A combination that was tried: its deck, with the keys that were still open, and the result.
  struct Made {
    Deck asked;
    OffloadTrial trial;
    std::optional<RecomputeChoice> layers;
  };

  static bool LayersAreOpen(const Deck& deck) {
    return deck.recompute.mode == RecomputeMode::kAuto || deck.offload.activations == kAutoShare;
  }
  bool ModeIsOpen() const { return deck_.recompute.mode == RecomputeMode::kAuto; }
  bool ActivationsAreOpen() const { return deck_.offload.activations == kAutoShare; }
  Deck WithShares(const Shares& shares) const {
    Deck deck = deck_;
    for (size_t i = 0; i < open_.size(); ++i) deck.offload.*open_[i] = double(shares[i]) / kSteps;
    return deck;
  }
  /// Layers that are open do this.
  static Deck Closed(Deck deck, RecomputeMode mode, double activations) {
    if (deck.recompute.mode == RecomputeMode::kAuto) deck.recompute.mode = mode;
    if (deck.offload.activations == kAutoShare) deck.offload.activations = activations;
    return deck;
  }

  /// Compiles and simulates a deck that leaves nothing open.
  OffloadTrial Measure(const Deck& deck) const {
    if (!fold_) {
      const Trial trial = Try(deck, ranks_, costs_, std::numeric_limits<int64_t>::max(), ranks_);
      return TrialOf(deck, trial, trial.step_us);
    }
    const double few = TryTraining(Shortened(deck, fold_->few), ranks_, costs_).step_us;
    const Trial more = TryTraining(Shortened(deck, fold_->more), ranks_, costs_);
    return TrialOf(deck, more, more.step_us + fold_->further * (more.step_us - few));
  }
  OffloadTrial TrialOf(const Deck& deck, const Trial& trial, double step_us) const {
    return {deck,
            trial.fits && trial.peak_bytes <= budget_,
            !fold_,
            trial.peak_bytes,
            trial.host_bytes,
            step_us,
            trial.breakdown,
            trial.parts,
            trial.measured_share};
  }
  Deck Shortened(const Deck& deck, int64_t microbatches) const {
    return WithSequences(deck, microbatches * fold_->sequences);
  }

  /// Chooses for layers that are open, and measures.
  Made Make(const Deck& asked, int threads) const {
    if (!LayersAreOpen(asked)) return {asked, Measure(asked), std::nullopt};
    RecomputeChoice layers =
        ChooseRecompute(fold_ ? Shortened(asked, fold_->more) : asked, ranks_, device_, budget_, threads, times_);
    layers.deck.batch = asked.batch;
    const Deck chosen = layers.deck;
    return {asked, Measure(chosen), std::move(layers)};
  }
  /// The same for several, side by side.
  std::vector<Made> MakeAll(const std::vector<Deck>& asked) const {
    std::vector<Made> made(asked.size());
    ParallelFor(
        asked.size(), [&](size_t i) { made[i] = Make(asked[i], 1); }, threads_);
    return made;
  }

  /// All combinations of shares, ascending by their predicted step.
  std::vector<Prediction> Grid(const OffloadTrial& all_kept, const std::vector<Lever>& levers,
                               const Lever& layers) const {
    const double short_of = double(all_kept.peak_bytes - budget_);
    std::vector<Prediction> grid;
    for (Shares shares(open_.size());;) {
      double missing = short_of, us = all_kept.step_us;
      for (size_t i = 0; i < shares.size(); ++i) {
        missing -= levers[i].bytes * shares[i] / kSteps;
        us += levers[i].us * shares[i] / kSteps;
      }
      // Layers begin with what is cheapest.
      if (layers.bytes > 0) us += layers.us * std::pow(std::clamp(missing / layers.bytes, 0.0, 1.0), 2);
      grid.push_back({shares, us, missing - layers.bytes});
      size_t digit = 0;
      while (digit < shares.size() && shares[digit] == kSteps) shares[digit++] = 0;
      if (digit == shares.size()) break;
      ++shares[digit];
    }
    std::ranges::sort(grid, {}, [](const Prediction& p) { return std::tuple(p.us, p.shares); });
    return grid;
  }

  void Search() {
    const Deck kept = Closed(WithShares(Shares(open_.size())), RecomputeMode::kNone, 0);
    const Made all_kept = Make(kept, threads_);
    if (all_kept.trial.fits) {
      Add(all_kept);
      return;
    }
    std::vector<Deck> probes;
    for (Share share : open_) {
      probes.push_back(kept);
      probes.back().offload.*share = 1;
    }
    if (LayersAreOpen(deck_)) probes.push_back(Closed(WithShares(Shares(open_.size())), RecomputeMode::kFull, 1));
    std::vector<Lever> levers;
    for (const Made& probe : MakeAll(probes))
      levers.push_back(
          {double(all_kept.trial.peak_bytes - probe.trial.peak_bytes), probe.trial.step_us - all_kept.trial.step_us});
    const Lever layers = LayersAreOpen(deck_) ? levers.back() : Lever{};
    TryInOrder(Grid(all_kept.trial, levers, layers));
    if (!best_) Consider(WithShares(Shares(open_.size(), kSteps)));
    TryAlike();
  }

  void TryInOrder(const std::vector<Prediction>& grid) {
    double slack = kSlack * double(budget_);
    size_t fitting = 0;
    for (const Prediction& p : grid) {
      if (fitting > 0 && (fitting == kMaxFitting || p.us >= made_[*best_].trial.step_us)) return;
      if (p.missing > slack) continue;
      const Deck deck = WithShares(p.shares);
      const OffloadTrial* trial = &Consider(deck);
      if (!trial->fits && LayersAreOpen(deck)) trial = &Consider(Closed(deck, RecomputeMode::kFull, 1));
      if (!trial->fits) {
        if (trial->peak_bytes > budget_) slack = std::min(slack, p.missing - double(trial->peak_bytes - budget_));
        continue;
      }
      ++fitting;
      if (ActivationsAreOpen() && ModeIsOpen()) Consider(Closed(deck, RecomputeMode::kAuto, 0));
    }
  }

  const OffloadTrial& Consider(const Deck& deck) { return Add(Make(deck, threads_)); }
  /// Notes whether it is the best.
  const OffloadTrial& Add(Made made) {
    made_.push_back(std::move(made));
    NoteBest(made_.size() - 1);
    return made_.back().trial;
  }
  void NoteBest(size_t i) {
    if (!best_ || Worth(made_[i].trial) < Worth(made_[*best_].trial)) best_ = i;
  }
  /// Ascending: the fastest of those that fit, then the smallest.
  static std::tuple<bool, double> Worth(const OffloadTrial& t) {
    return {!t.fits, t.fits ? t.step_us : double(t.peak_bytes)};
  }

  /// With the states of the best: a mode for all layers, and all activations on the host.
  void TryAlike() {
    if (!ActivationsAreOpen()) return;
    Deck other = deck_;
    for (Share share : open_) other.offload.*share = made_[*best_].trial.deck.offload.*share;
    std::vector<Deck> alike;
    for (const auto& [mode, name] : kChoices<RecomputeMode>) {
      if (mode == RecomputeMode::kAuto || (!ModeIsOpen() && mode != deck_.recompute.mode)) continue;
      other.recompute.mode = mode;
      if (ModeIsOpen()) alike.push_back(other);
      alike.push_back(Closed(other, mode, 1));
    }
    for (Made& made : MakeAll(alike)) Add(std::move(made));
  }

  /// The choice as text, to recognise equal ones.
  static std::string TextOf(const Deck& deck) {
    std::string text = fmt::format("{} {}; {}", DeckName(deck.recompute.mode), fmt::join(deck.recompute.layers, "; "),
                                   deck.offload.layers);
    for (const OffloadShare& share : kOffloadShares) text += fmt::format(" {}", share.Of(deck));
    return text;
  }

  /// Makes the best with all microbatches, and those about as fast. If none of them fits that seemed to, searches again
  /// with all microbatches.
  void MakeExact() {
    fold_.reset();
    std::vector<size_t> order(made_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return Worth(made_[i].trial); });
    const OffloadTrial first = made_[order.front()].trial;
    best_.reset();
    int fitting = 0;
    std::set<std::string> seen;
    for (size_t i : order) {
      const OffloadTrial& estimate = made_[i].trial;
      if (!seen.insert(TextOf(estimate.deck)).second) continue;
      const bool near = estimate.step_us <= (1 + kNear) * first.step_us;
      if (estimate.fits != first.fits || (fitting > 0 && (fitting == kMaxExact || !near))) break;
      made_[i] = Make(made_[i].asked, threads_);
      NoteBest(i);
      if (made_[i].trial.fits) ++fitting;
      if (!first.fits) break;
    }
    if (fitting > 0 || !first.fits) return;
    made_.clear();
    best_.reset();
    Search();
  }

  MemoryChoice Report(size_t taken) {
    MemoryChoice choice{made_[taken].trial.deck, budget_, made_[taken].trial.fits, std::move(made_[taken].layers), {}};
    choice.deck.recompute.budget = 0;
    choice.offload = OffloadChoice{costs_.cluster().path, {}, taken};
    for (Made& made : made_) choice.offload->trials.push_back(std::move(made.trial));
    return choice;
  }

  Deck deck_;
  const int ranks_;
  const DeviceKind device_;
  const int64_t budget_;
  const Costs& costs_;
  const int threads_;
  const std::shared_ptr<const OpTimes> times_;
  std::vector<Share> open_;
  std::optional<Fold> fold_;  // none: steps are made with all microbatches
  std::vector<Made> made_;
  std::optional<size_t> best_;  // of these
};

/// For recompute.mode = "auto" alone: of the choice by layers and the modes the one whose simulated step is shortest.
MemoryChoice ChooseLayers(const Deck& deck, int ranks, DeviceKind device, int64_t budget, const Costs& costs,
                          int threads) {
  std::vector<RecomputeChoice> candidates = RecomputeCandidates(deck, ranks, device, budget, threads);
  size_t best = 0;
  if (candidates.size() > 1) {
    std::vector<double> step_us(candidates.size());
    ParallelFor(
        candidates.size(), [&](size_t i) { step_us[i] = TryTraining(candidates[i].deck, ranks, costs).step_us; },
        threads);
    best = static_cast<size_t>(std::ranges::min_element(step_us) - step_us.begin());
  }
  MemoryChoice choice{candidates[best].deck, budget, candidates[best].fits, {}, {}};
  choice.layers = std::move(candidates[best]);
  return choice;
}

}  // namespace

int64_t MemoryBudget(const Deck& deck, int64_t device_bytes) {
  const int64_t budget = deck.recompute.budget > 0 ? deck.recompute.budget : device_bytes;
  const int64_t arena = deck.offload.device_bytes;
  return budget > 0 && arena > 0 ? std::min(budget, arena) : std::max(budget, arena);
}

Costs CostsOfChoice(const Deck& deck) {
  if (!deck.run.costs.empty()) return Costs(LoadCluster(deck.run.costs));
  if (deck.run.device == RunDevice::kSleep) return Costs(LoadCluster(deck.run.cluster));
  return Costs(RoughCluster());
}

MemoryChoice ChooseMemory(const Deck& deck, int ranks, DeviceKind device, int64_t budget, const Costs& costs,
                          int threads) {
  if (!LeavesOffloadOpen(deck)) return ChooseLayers(deck, ranks, device, budget, costs, threads);
  MemoryChoice choice = MemoryChooser(deck, ranks, device, budget, costs, threads).Run();
  choice.deck.run.device = deck.run.device;
  return choice;
}

}  // namespace espalier
