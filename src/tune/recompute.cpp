// A stage walks a path from nothing to everything, layer by layer: what is computed again, what waits on the host.
// Profiles of single layers (recompute_options.hpp) and the microbatches in flight predict what is live at each moment
// of the schedule; the next step of the path lowers the highest of them by the most bytes per added time, and of equal
// layers it takes the first: backward reaches it last, so what it makes again is live when others are gone. Copies add
// no time while the stage's kernels hide them. A stage stops as early as fits. How far that is, profiles only
// promise: the program of the whole model is compiled at that place, and its exact peak says how wrong they are. All
// stages move at once, so a few compilations find the places of all.
#include "espalier/tune/recompute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/tune/tune.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/parallel.hpp"
#include "tune/stage_path.hpp"

namespace espalier {
namespace {

constexpr int kMaxRounds = 8;

/// The layers of each choice, ascending.
template <typename Choice>
std::map<Choice, std::vector<int>> ByChoice(const std::vector<std::pair<int, Choice>>& choices) {
  std::map<Choice, std::vector<int>> layers;
  for (const auto& [layer, choice] : choices) layers[choice].push_back(layer);
  for (auto& [choice, numbers] : layers) std::ranges::sort(numbers);
  return layers;
}

/// The deck that recomputes so by hand. If the stage of the head needs memory, the head's norm is computed again.
void SetRecompute(Deck::Recompute& r, const std::vector<LayerChoices>& stages, int stage_of_head) {
  r.ops.clear();
  r.layers.clear();
  r.mode = std::ranges::all_of(stages[static_cast<size_t>(stage_of_head)],
                               [&](const auto& layer) { return layer.second.what == LayerRecompute{}; })
               ? RecomputeMode::kNone
               : RecomputeMode::kSelective;
  std::vector<std::pair<int, LayerRecompute>> all;
  for (const LayerChoices& stage : stages)
    for (const auto& [layer, choice] : stage) all.emplace_back(layer, choice.what);
  for (const auto& [what, layers] : ByChoice(all))
    if (what != LayerRecompute{r.mode, {}})
      r.layers.push_back(fmt::format("{}: {}", ToString(what), LayerRanges(layers)));
}

void SetOffload(Deck::Offload& o, const std::vector<LayerChoices>& stages) {
  std::vector<int> layers;
  for (const LayerChoices& stage : stages)
    for (const auto& [layer, choice] : stage)
      if (choice.offload) layers.push_back(layer);
  std::ranges::sort(layers);
  o.activations = 0;
  o.layers = LayerRanges(layers);
}

class RecomputeChooser {
 public:
  RecomputeChooser(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads,
                   std::shared_ptr<const OpTimes> times)
      : deck_(deck),
        ranks_(ranks),
        device_(device),
        budget_(budget),
        threads_(threads),
        options_(ForProfiles(deck, ranks, device, std::move(times)), ranks) {}

  RecomputeChoice Run() {
    const std::vector<int64_t> none = PeaksOf(Nothing(), {});
    const auto stages = static_cast<size_t>(schedule_.stages);
    if (std::ranges::all_of(none, [&](int64_t peak) { return peak <= budget_; })) return Report(none, none);
    MakePaths();
    for (size_t s = 0; s < stages; ++s) paths_[s].Note(none[s], budget_, false);
    Search();
    std::vector<LayerChoices> choice;
    std::vector<int64_t> peaks;
    for (const StagePath& path : paths_) {
      choice.push_back(path.At(path.Place()));
      peaks.push_back(path.PeakAt(path.Place()));
      added_.push_back(path.Added(path.Place()));
    }
    choice_ = std::move(choice);
    TryModes(peaks);
    return Report(none, peaks);
  }

  /// After Run, which found a choice that fits: every mode that fits, as the deck's own.
  std::vector<RecomputeChoice> Modes(const RecomputeChoice& by_layer) {
    if (paths_.empty()) MakePaths();
    choice_.resize(paths_.size());
    added_.resize(paths_.size());
    std::vector<RecomputeChoice> modes;
    std::vector<int64_t> none;
    for (const StageRecomputeChoice& stage : by_layer.stages) none.push_back(stage.peak_without);
    for (const auto& [mode, name] : kChoices<RecomputeMode>) {
      if (mode == RecomputeMode::kNone || mode == RecomputeMode::kAuto) continue;
      Deck deck = deck_;
      deck.recompute.mode = mode;
      const std::vector<int64_t> peaks = PeaksOf(deck, {});
      if (std::ranges::any_of(peaks, [&](int64_t peak) { return peak > budget_; })) continue;
      for (size_t s = 0; s < paths_.size(); ++s) {
        choice_[s] = paths_[s].At({{mode, {}}, false});
        added_[s] = paths_[s].Added({{mode, {}}, false});
      }
      modes.push_back(Report(none, peaks));
      modes.back().deck.recompute = deck.recompute;
      modes.back().deck.recompute.budget = 0;
    }
    return modes;
  }

 private:
  /// With a number for dp_shard, for the device, with these times if there are any.
  static Deck ForProfiles(Deck deck, int ranks, DeviceKind device, std::shared_ptr<const OpTimes> times) {
    if (times != nullptr) deck.run.costs = times->Origin(), deck.times = std::move(times);
    Deck::Parallel& p = deck.parallel;
    if (p.dp_shard == -1) p.dp_shard = ranks / (p.pp * p.dp_replicate * p.cp * p.tp);
    deck.run.device = device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
    return deck;
  }
  bool Recomputes() const { return deck_.recompute.mode == RecomputeMode::kAuto; }
  bool Offloads() const { return deck_.offload.activations == kAutoShare; }
  Deck Nothing() const {
    Deck none = deck_;
    if (Recomputes()) none.recompute.mode = RecomputeMode::kNone;
    if (Offloads()) none.offload.activations = 0;
    return none;
  }

  Deck With(const std::vector<LayerChoices>& choices) const {
    Deck by_hand = deck_;
    if (Recomputes()) SetRecompute(by_hand.recompute, choices, schedule_.stage_of_chunk.back());
    if (Offloads()) SetOffload(by_hand.offload, choices);
    return by_hand;
  }

  /// By stage: the peak of its largest rank. 0 for stages in `known`, which need no look.
  std::vector<int64_t> PeaksOf(const Deck& deck, const std::set<int>& known) {
    const std::vector<RampSize> sizes = BatchRamp(deck.batch).Sizes();
    std::set<int64_t> sequences = {sizes.front().sequences, deck.batch.global};
    std::vector<int64_t> peaks;
    for (int64_t size : sequences) {
      const Deck sized = size == deck.batch.global ? deck : WithSequences(deck, size);
      const Compilation c = Compile(sized, ranks_, Purpose::kTrain, device_, {}, Verification::kAtTheEnd);
      ++compilations_;
      if (size == deck.batch.global) schedule_ = c.schedule;
      peaks.resize(static_cast<size_t>(c.schedule.stages));
      std::set<int> distinct;
      for (int rank : ClassRepresentatives(c))
        if (!known.contains(c.mesh.CoordinateOf(rank)[Axis::kPp])) distinct.insert(rank);
      const std::vector<int> ranks(distinct.begin(), distinct.end());
      std::vector<int64_t> bytes(ranks.size());
      const ProgramMaker maker(c);
      ParallelFor(
          ranks.size(), [&](size_t i) { bytes[i] = maker.ArenaBytes(c.mesh.CoordinateOf(ranks[i]))[Space::kDevice]; },
          threads_);
      for (size_t i = 0; i < ranks.size(); ++i) {
        int64_t& peak = peaks[static_cast<size_t>(c.mesh.CoordinateOf(ranks[i])[Axis::kPp])];
        peak = std::max(peak, bytes[i]);
      }
    }
    return peaks;
  }

  void MakePaths() {
    const Deck::Model& m = deck_.model;
    const std::vector<LayerKind> kinds = KindsOf(m);
    const std::vector<int> chunk_of = SplitLayers(deck_, schedule_.Chunks()).chunk_of_layer;
    const std::optional<RecomputePlan> fixed =
        Recomputes() ? std::nullopt : std::optional<RecomputePlan>(deck_.recompute);
    for (const StageFlights& flights : FlightsOf(schedule_)) {
      std::vector<LayerOfStage> layers;
      double work = 0;
      for (size_t i = 0; i < flights.chunks.size(); ++i) {
        const int chunk = flights.chunks[i];
        for (int l = 1; l <= m.AllLayers(); ++l) {
          if (chunk_of[std::min(static_cast<size_t>(l), chunk_of.size() - 1)] != chunk) continue;
          const auto kind = static_cast<size_t>(std::ranges::find(kinds, KindOf(m, l)) - kinds.begin());
          if (!layers.empty() && layers.back().chunk == i)
            layers.back().last = false, layers.back().may_leave = Offloads();
          LayerOfStage& layer = layers.emplace_back(l - 1, l > m.layers ? kFurther : kFirstKind + kind, i, true,
                                                    Offloads() && chunk == chunk_of.back());
          if (fixed) layer.fixed = fixed->Of(l - 1, std::ssize(layers) - 1);
          work += options_.KernelWork(layer.part);
        }
        if (chunk == chunk_of.front()) work += options_.KernelWork(kEmbedding);
        if (chunk == chunk_of.back()) work += options_.KernelWork(kHead);
      }
      paths_.emplace_back(StageModel(std::move(layers), flights, options_), work, options_);
    }
  }

  std::set<int> SettledStages() const {
    std::set<int> settled;
    for (size_t s = 0; s < paths_.size(); ++s)
      if (paths_[s].Settled() && paths_[s].Knows(paths_[s].Place())) settled.insert(static_cast<int>(s));
    return settled;
  }

  void Search() {
    for (int round = 0;; ++round) {
      const std::set<int> settled = SettledStages();
      if (settled.size() == paths_.size()) return;
      std::vector<LayerChoices> choices;
      for (const StagePath& path : paths_) choices.push_back(path.At(path.Place()));
      const std::vector<int64_t> peaks = PeaksOf(With(choices), settled);
      for (size_t s = 0; s < paths_.size(); ++s)
        if (!settled.contains(static_cast<int>(s))) paths_[s].Note(peaks[s], budget_, round >= kMaxRounds / 2);
    }
  }

  /// A mode for all layers of a stage may take less work than a place of the path, whose steps are whole layers. Where
  /// the path does not fit at all, any mode that does is better.
  void TryModes(std::vector<int64_t>& peaks) {
    if (!Recomputes()) return;  // the end of the path is all that there is
    using enum RecomputeMode;
    std::vector<LayerChoice> all = {{{kAttention}}, {{kSelective}}, {{kFull}}};
    if (Offloads())
      all.insert(all.end(), {{{kNone}, true}, {{kAttention}, true}, {{kSelective}, true}, {{kFull}, true}});
    for (const LayerChoice& uniform : all) {
      std::vector<LayerChoices> choices = choice_;
      std::set<int> others;
      for (size_t s = 0; s < paths_.size(); ++s) {
        const bool fits = peaks[s] <= budget_, less = paths_[s].Added(uniform) < added_[s];
        if (fits ? less && paths_[s].MayFit(uniform, budget_)
                 : uniform.what.mode == kFull || paths_[s].MayFit(uniform, budget_))
          choices[s] = paths_[s].At(uniform);
        else
          others.insert(static_cast<int>(s));
      }
      if (others.size() == paths_.size()) continue;
      const std::vector<int64_t> tried = PeaksOf(With(choices), others);
      for (size_t s = 0; s < paths_.size(); ++s) {
        if (others.contains(static_cast<int>(s)) || tried[s] > std::max(budget_, peaks[s])) continue;
        choice_[s] = choices[s];
        peaks[s] = tried[s];
        added_[s] = paths_[s].Added(uniform);
      }
    }
  }

  RecomputeChoice Report(const std::vector<int64_t>& none, const std::vector<int64_t>& peaks) {
    RecomputeChoice report;
    report.deck = choice_.empty() ? Nothing() : With(choice_);
    report.deck.recompute.budget = 0;
    report.budget = budget_;
    report.fits = std::ranges::all_of(peaks, [&](int64_t peak) { return peak <= budget_; });
    report.compilations = compilations_;
    for (size_t s = 0; s < peaks.size(); ++s) {
      StageRecomputeChoice& stage = report.stages.emplace_back();
      stage.peak_without = none[s];
      stage.peak_bytes = peaks[s];
      if (choice_.empty()) continue;
      for (auto& [choice, layers] : ByChoice(choice_[s])) stage.layers.emplace_back(choice, layers);
      stage.added = added_[s];
    }
    return report;
  }

  const Deck deck_;
  const int ranks_;
  const DeviceKind device_;
  const int64_t budget_;
  const int threads_;
  RecomputeOptions options_;
  Schedule schedule_;
  std::vector<StagePath> paths_;      // by stage
  std::vector<LayerChoices> choice_;  // by stage; empty: nothing is computed again
  std::vector<double> added_;         // by stage
  int compilations_ = 0;
};

}  // namespace

RecomputeChoice ChooseRecompute(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads,
                                std::shared_ptr<const OpTimes> times) {
  return RecomputeChooser(deck, ranks, device, budget, threads, std::move(times)).Run();
}

std::vector<RecomputeChoice> RecomputeCandidates(const Deck& deck, int ranks, DeviceKind device, int64_t budget,
                                                 int threads) {
  RecomputeChooser chooser(deck, ranks, device, budget, threads, nullptr);
  std::vector<RecomputeChoice> candidates = {chooser.Run()};
  if (candidates.front().fits) std::ranges::move(chooser.Modes(candidates.front()), std::back_inserter(candidates));
  return candidates;
}

}  // namespace espalier
