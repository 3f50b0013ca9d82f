// Shares of states on the host, and what becomes of activations, are chosen together. A few probes say what each key
// saves and costs by itself: everything on the device; each open key with "all"; and activations that are all computed
// again and moved. Bytes and times are taken to add up, so each combination of shares on a coarse grid has a
// prediction; activations save what then is missing. In the order of the predicted step combinations are compiled and
// simulated, until none of the others promises a shorter step than the best that fits. Where a peak is larger than
// predicted, the others are expected to be, too. Activations that are only computed again are an alternative each time,
// and one treatment of all layers in the end.
#include "espalier/tune/memory_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "espalier/costs/order.hpp"
#include "tune/trial.hpp"

namespace espalier {
namespace {

constexpr int kSteps = 4;          // of a share, from none to all
constexpr size_t kMaxFitting = 5;  // combinations that fit, of which the best is taken
constexpr double kSlack = 0.02;    // of the largest peak: a combination that misses the budget by less is tried

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

using Share = double Deck::Offload::*;
constexpr Share kStates[] = {&Deck::Offload::optimizer, &Deck::Offload::parameters, &Deck::Offload::gradients};

class MemoryChooser {
 public:
  MemoryChooser(const Deck& deck, int ranks, DeviceKind device, int64_t budget, const Costs& costs, int threads)
      : deck_(deck),
        ranks_(ranks),
        device_(device),
        budget_(budget),
        costs_(costs.Of(JobOf(deck, ranks))),
        threads_(threads),
        times_(TimesOf(costs.cluster(), costs.cluster().path)) {
    deck_.run.device = device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
    for (Share share : kStates)
      if (deck_.offload.*share == kAutoShare) open_.push_back(share);
  }

  MemoryChoice Run() {
    const Deck kept = Closed(WithShares(Shares(open_.size())), RecomputeMode::kNone, 0);
    const OffloadTrial all_kept = Measure(kept);
    if (all_kept.fits) return Report(Add(all_kept, std::nullopt));
    const auto lever = [&](const Deck& moved) {
      const OffloadTrial trial = Measure(moved);
      return Lever{double(all_kept.peak_bytes - trial.peak_bytes), trial.step_us - all_kept.step_us};
    };
    std::vector<Lever> levers;
    for (Share share : open_) {
      Deck moved = kept;
      moved.offload.*share = 1;
      levers.push_back(lever(moved));
    }
    const Lever layers =
        LayersAreOpen(deck_) ? lever(Closed(WithShares(Shares(open_.size())), RecomputeMode::kFull, 1)) : Lever{};
    Search(Grid(all_kept, levers, layers));
    if (!best_) Consider(WithShares(Shares(open_.size(), kSteps)));
    TryAlike();
    return Report(*best_);
  }

 private:
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

  OffloadTrial Measure(const Deck& deck) const {
    const Trial trial = Try(deck, ranks_, costs_, std::numeric_limits<int64_t>::max(), ranks_);
    return {deck,
            trial.fits && trial.peak_bytes <= budget_,
            trial.peak_bytes,
            trial.host_bytes,
            trial.step_us,
            trial.breakdown,
            trial.parts};
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

  void Search(const std::vector<Prediction>& grid) {
    double slack = kSlack * double(budget_);
    size_t fitting = 0;
    for (const Prediction& p : grid) {
      if (fitting > 0 && (fitting == kMaxFitting || p.us >= trials_[*best_].step_us)) return;
      if (p.missing > slack) continue;
      const Deck deck = WithShares(p.shares);
      size_t trial = Consider(deck);
      if (!trials_[trial].fits && LayersAreOpen(deck)) trial = Consider(Closed(deck, RecomputeMode::kFull, 1));
      if (!trials_[trial].fits) {
        if (trials_[trial].peak_bytes > budget_)
          slack = std::min(slack, p.missing - double(trials_[trial].peak_bytes - budget_));
        continue;
      }
      ++fitting;
      if (ActivationsAreOpen() && ModeIsOpen()) Consider(Closed(deck, RecomputeMode::kAuto, 0));
    }
  }

  /// Compiles and simulates a combination; chooses for layers that are open.
  size_t Consider(const Deck& deck) {
    if (!LayersAreOpen(deck)) return Add(Measure(deck), std::nullopt);
    RecomputeChoice layers = ChooseRecompute(deck, ranks_, device_, budget_, threads_, times_);
    const Deck chosen = layers.deck;
    return Add(Measure(chosen), std::move(layers));
  }
  /// Notes whether it is the best: the fastest that fits, or else the smallest.
  size_t Add(OffloadTrial trial, std::optional<RecomputeChoice> layers) {
    trials_.push_back(std::move(trial));
    layers_of_.push_back(std::move(layers));
    const auto worth = [&](const OffloadTrial& t) {
      return std::tuple(!t.fits, t.fits ? t.step_us : double(t.peak_bytes));
    };
    const size_t last = trials_.size() - 1;
    if (!best_ || worth(trials_[last]) < worth(trials_[*best_])) best_ = last;
    return last;
  }

  /// With the states of the best: a mode for all layers, and all activations on the host.
  void TryAlike() {
    if (!ActivationsAreOpen()) return;
    Deck other = deck_;
    for (Share share : open_) other.offload.*share = trials_[*best_].deck.offload.*share;
    for (const auto& [mode, name] : kChoices<RecomputeMode>) {
      if (mode == RecomputeMode::kAuto || (!ModeIsOpen() && mode != deck_.recompute.mode)) continue;
      other.recompute.mode = mode;
      if (ModeIsOpen()) Consider(other);
      Consider(Closed(other, mode, 1));
    }
  }

  MemoryChoice Report(size_t taken) {
    MemoryChoice choice{trials_[taken].deck, budget_, trials_[taken].fits, std::move(layers_of_[taken]), {}};
    choice.deck.recompute.budget = 0;
    choice.offload = OffloadChoice{costs_.cluster().path, std::move(trials_), taken};
    return choice;
  }

  Deck deck_;
  const int ranks_;
  const DeviceKind device_;
  const int64_t budget_;
  const Costs costs_;
  const int threads_;
  const std::shared_ptr<const OpTimes> times_;
  std::vector<Share> open_;
  std::vector<OffloadTrial> trials_;
  std::vector<std::optional<RecomputeChoice>> layers_of_;  // by trial
  std::optional<size_t> best_;                             // of the trials
};

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
  if (LeavesOffloadOpen(deck)) {
    MemoryChoice choice = MemoryChooser(deck, ranks, device, budget, costs, threads).Run();
    choice.deck.run.device = deck.run.device;
    return choice;
  }
  RecomputeChoice layers = ChooseRecompute(deck, ranks, device, budget, threads);
  MemoryChoice choice{layers.deck, budget, layers.fits, {}, {}};
  choice.layers = std::move(layers);
  return choice;
}

}  // namespace espalier
