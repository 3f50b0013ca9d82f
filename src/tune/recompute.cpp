// A stage walks a path from nothing to everything, layer by layer. Profiles of single layers (recompute_options.hpp)
// and the microbatches in flight predict what is live at each moment of the schedule; the next step of the path lowers
// the highest of them by the most bytes per work, and of equal layers it takes the first: backward reaches it last, so
// what it makes again is live when others are gone. A stage stops as early as fits. How far that is, profiles only
// promise: the program of the whole model is compiled at that place, and its exact peak says how wrong they are. All
// stages move at once, so a few compilations find the places of all.
#include "espalier/tune/recompute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/tune/tune.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/parallel.hpp"
#include "tune/in_flight.hpp"
#include "tune/recompute_options.hpp"

namespace espalier {
namespace {

constexpr int kMaxRounds = 8;
constexpr double kMost = 0.4;      // a mode that promises less of what is needed is not compiled
constexpr double kEnough = 0.001;  // a place that would save less of a stage's work is not looked for

/// A transformer layer of a stage.
struct LayerOfStage {
  int number = 0;  ///< from 0
  Part part = kFirstKind;
  size_t chunk = 0;   ///< index among the chunks of the stage
  bool last = false;  ///< of its chunk
};

/// The stage as profiles predict it, for an option of each layer.
class StageModel {
 public:
  StageModel(std::vector<LayerOfStage> layers, const StageFlights& flights, RecomputeOptions& options)
      : layers_(std::move(layers)), flights_(flights), chosen_(layers_.size()), live_(flights.moments.size()) {
    for (const LayerOfStage& layer : layers_) {
      options_.push_back(&options.Of(layer.part));
      Add(options_.size() - 1, options_.back()->front(), +1, live_);
    }
  }

  const std::vector<LayerOfStage>& Layers() const { return layers_; }
  const std::vector<size_t>& Chosen() const { return chosen_; }
  const RecomputeOption& OptionOf(size_t layer) const { return (*options_[layer])[chosen_[layer]]; }
  /// Bytes of activations at the highest moment.
  double Peak() const { return *std::ranges::max_element(live_); }
  /// The same if all layers had this option.
  double PeakOf(const LayerRecompute& uniform, RecomputeOptions& options) const {
    std::vector<double> live(live_.size());
    for (size_t l = 0; l < layers_.size(); ++l) Add(l, options.Option(layers_[l].part, uniform), +1, live);
    return *std::ranges::max_element(live);
  }

  /// Takes the step that lowers the peak by the most bytes per work; returns the work, or nothing if none lowers it.
  std::optional<double> Step() {
    std::optional<double> best;  // work per byte
    size_t best_layer = 0, best_option = 0;
    std::set<std::tuple<Part, size_t, bool, size_t>> seen;
    const double now = Height(live_);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const LayerOfStage& layer = layers_[l];
      if (!seen.emplace(layer.part, layer.chunk, layer.last, chosen_[l]).second) continue;
      for (size_t o = 0; o < options_[l]->size(); ++o) {
        std::vector<double> live = live_;
        Add(l, OptionOf(l), -1, live);
        Add(l, (*options_[l])[o], +1, live);
        const double saved = now - Height(live), work = (*options_[l])[o].work - OptionOf(l).work;
        if (saved <= kLeastSaved * now) continue;
        // Without more work: the most bytes.
        const double price = work > 0 ? work / saved : -saved;
        if (!best || price < *best) best = price, best_layer = l, best_option = o;
      }
    }
    if (!best) return std::nullopt;
    const double before = OptionOf(best_layer).work;
    Add(best_layer, OptionOf(best_layer), -1, live_);
    chosen_[best_layer] = best_option;
    Add(best_layer, OptionOf(best_layer), +1, live_);
    return OptionOf(best_layer).work - before;
  }

 private:
  static constexpr double kLeastSaved = 1e-9, kPower = 16;

  /// Nearly the highest moment. Others that are as high count, too: only together can they be lowered.
  double Height(const std::vector<double>& live) const {
    const double most = *std::ranges::max_element(live);
    double sum = 0;
    for (double bytes : live) sum += std::pow(bytes / most, kPower);
    return most * std::pow(sum, 1 / kPower);
  }
  void Add(size_t l, const RecomputeOption& option, double sign, std::vector<double>& live) const {
    const LayerOfStage& layer = layers_[l];
    for (size_t m = 0; m < live.size(); ++m) {
      const InFlight& moment = flights_.moments[m];
      live[m] += sign * (moment.before_b[layer.chunk] * option.kept + moment.before_w[layer.chunk] * option.kept_for_w);
      // Backward begins with the last layer of a chunk.
      if (moment.role == Role::kB && moment.chunk == static_cast<int>(layer.chunk) && layer.last)
        live[m] += sign * option.extra;
    }
  }

  std::vector<LayerOfStage> layers_;
  const StageFlights flights_;
  std::vector<const std::vector<RecomputeOption>*> options_;  // by layer
  std::vector<size_t> chosen_;                                // by layer: its option
  std::vector<double> live_;                                  // by moment
};

/// The path of a stage, and what is known of its places: 0 recomputes nothing, Steps() all that is worth it.
class StagePath {
 public:
  /// `work`: of the stage's kernels in a microbatch.
  StagePath(StageModel model, double work, RecomputeOptions& options)
      : model_(std::move(model)), options_(options), work_(work), most_(model_.Peak()) {
    Keep(0, 0);
    for (int step = 0; step < kMaxSteps; ++step) {
      const std::optional<double> added = model_.Step();
      if (!added) break;
      Keep(most_ - model_.Peak(), added_.back() + *added);
    }
    above_ = Steps() + 1;
  }

  int Steps() const { return static_cast<int>(saved_.size()) - 1; }
  /// The work that is added at a place, relative to the stage's.
  double Added(int place) const { return added_[static_cast<size_t>(place)] / work_; }
  double Added(const LayerRecompute& uniform) const {
    double added = 0;
    for (const LayerOfStage& layer : model_.Layers())
      added += options_.Option(layer.part, uniform).work - options_.Option(layer.part, {}).work;
    return added / work_;
  }
  /// Whether a choice for all layers promises to save most of what is needed. Profiles know nothing of holes.
  bool MayFit(const LayerRecompute& uniform, int64_t budget) const {
    return most_ - model_.PeakOf(uniform, options_) >= kMost * double(peaks_.at(0) - budget);
  }

  /// The recomputation of each layer at a place.
  std::vector<std::pair<int, LayerRecompute>> At(int place) const {
    std::vector<std::pair<int, LayerRecompute>> choice;
    for (size_t l = 0; l < model_.Layers().size(); ++l) {
      const LayerOfStage& layer = model_.Layers()[l];
      choice.emplace_back(layer.number, options_.Of(layer.part)[chosen_[static_cast<size_t>(place)][l]].what);
    }
    return choice;
  }
  std::vector<std::pair<int, LayerRecompute>> At(const LayerRecompute& uniform) const {
    std::vector<std::pair<int, LayerRecompute>> choice;
    for (const LayerOfStage& layer : model_.Layers()) choice.emplace_back(layer.number, uniform);
    return choice;
  }

  /// Whether the best place is known.
  bool Settled() const {
    if (above_ - below_ <= 1) return true;
    return above_ <= Steps() && Added(above_) - Added(below_ + 1) < kEnough;
  }
  /// The place to compile next, or the best one if it is settled: the earliest known to fit, or the last of the path.
  int Place() const { return Settled() ? std::min(above_, Steps()) : next_; }
  /// Notes the peak at Place().
  void Note(int64_t peak, int64_t budget, bool halve) {
    const int place = Place();
    peaks_[place] = peak;
    if (Settled()) return;
    (peak <= budget ? above_ : below_) = place;
    if (Settled()) return;
    const double saved = saved_[static_cast<size_t>(place)], needed = double(peaks_.at(0) - budget);
    if (place > 0 && saved > 0) realised_ = std::clamp(double(peaks_.at(0) - peak) / saved, 0.05, 20.0);
    const auto first = std::ranges::find_if(saved_, [&](double s) { return s * realised_ >= needed; });
    next_ = halve ? (below_ + above_) / 2 : static_cast<int>(first - saved_.begin());
    next_ = std::clamp(next_, below_ + 1, std::min(above_ - 1, Steps()));
    // Holes between buffers may grow while buffers get fewer, so the far end is not always the smallest.
    if (place > 0 && peak > budget) next_ = std::min(next_, place + std::max(1, (Steps() - place + 1) / 2));
  }
  bool Knows(int place) const { return peaks_.contains(place); }
  int64_t PeakAt(int place) const { return peaks_.at(place); }

 private:
  static constexpr int kMaxSteps = 4096;

  void Keep(double saved, double added) {
    saved_.push_back(saved);
    added_.push_back(added);
    chosen_.push_back(model_.Chosen());
  }

  StageModel model_;
  RecomputeOptions& options_;
  const double work_;
  const double most_;                        // bytes at the highest moment without recomputation
  std::vector<double> saved_, added_;        // by place
  std::vector<std::vector<size_t>> chosen_;  // by place and layer: the option
  int below_ = -1, above_ = 0, next_ = 0;    // the last place that does not fit, the first that does
  double realised_ = 1;                      // bytes saved per byte that profiles promise
  std::map<int, int64_t> peaks_;             // by place
};

using LayerChoices = std::vector<std::pair<int, LayerRecompute>>;  // by layer from 0

/// "0-3, 8".
std::string LayerRanges(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end - i > 1 ? fmt::format("{}-{}", layers[i], layers[end - 1]) : fmt::format("{}", layers[i]);
    i = end;
  }
  return text;
}

std::map<LayerRecompute, std::vector<int>> ByWhat(const LayerChoices& choice) {
  std::map<LayerRecompute, std::vector<int>> layers;
  for (const auto& [layer, what] : choice) layers[what].push_back(layer);
  for (auto& [what, numbers] : layers) std::ranges::sort(numbers);
  return layers;
}

/// The deck that makes these choices by hand. If the stage of the head needs memory, the head's norm is computed again.
Deck WithChoices(const Deck& deck, const std::vector<LayerChoices>& stages, int stage_of_head) {
  Deck by_hand = deck;
  Deck::Recompute& r = by_hand.recompute;
  r.ops.clear();
  r.layers.clear();
  const LayerRecompute nothing;
  r.mode = std::ranges::all_of(stages[static_cast<size_t>(stage_of_head)],
                               [&](const auto& layer) { return layer.second == nothing; })
               ? RecomputeMode::kNone
               : RecomputeMode::kSelective;
  r.budget = 0;
  LayerChoices all;
  for (const LayerChoices& stage : stages) all.insert(all.end(), stage.begin(), stage.end());
  for (const auto& [what, layers] : ByWhat(all))
    if (what != LayerRecompute{r.mode, {}})
      r.layers.push_back(fmt::format("{}: {}", ToString(what), LayerRanges(layers)));
  return by_hand;
}

class RecomputeChooser {
 public:
  RecomputeChooser(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads)
      : deck_(deck),
        ranks_(ranks),
        device_(device),
        budget_(budget),
        threads_(threads),
        options_(ForProfiles(deck, ranks, device)) {}

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

 private:
  /// With a number for dp_shard, for the device.
  static Deck ForProfiles(Deck deck, int ranks, DeviceKind device) {
    Deck::Parallel& p = deck.parallel;
    if (p.dp_shard == -1) p.dp_shard = ranks / (p.pp * p.dp_replicate * p.cp * p.tp);
    deck.run.device = device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu;
    return deck;
  }
  Deck Nothing() const {
    Deck none = deck_;
    none.recompute.mode = RecomputeMode::kNone;
    return none;
  }

  Deck With(const std::vector<LayerChoices>& choices) const {
    return WithChoices(deck_, choices, schedule_.stage_of_chunk.back());
  }

  /// By stage: the peak of its largest rank. Of stages in `known`, which need no look, 0.
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
          ranks.size(), [&](size_t i) { bytes[i] = maker.Make(c.mesh.CoordinateOf(ranks[i])).arena_bytes; }, threads_);
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
    for (const StageFlights& flights : FlightsOf(schedule_)) {
      std::vector<LayerOfStage> layers;
      double work = 0;
      for (size_t i = 0; i < flights.chunks.size(); ++i) {
        const int chunk = flights.chunks[i];
        for (int l = 1; l <= m.AllLayers(); ++l) {
          if (chunk_of[std::min(static_cast<size_t>(l), chunk_of.size() - 1)] != chunk) continue;
          const auto kind = static_cast<size_t>(std::ranges::find(kinds, KindOf(m, l)) - kinds.begin());
          if (!layers.empty() && layers.back().chunk == i) layers.back().last = false;
          layers.push_back({l - 1, l > m.layers ? kFurther : kFirstKind + kind, i, true});
          work += options_.KernelWork(layers.back().part);
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
    for (RecomputeMode mode : {RecomputeMode::kAttention, RecomputeMode::kSelective, RecomputeMode::kFull}) {
      const LayerRecompute uniform{mode, {}};
      std::vector<LayerChoices> choices = choice_;
      std::set<int> others;
      for (size_t s = 0; s < paths_.size(); ++s) {
        const bool fits = peaks[s] <= budget_, less = paths_[s].Added(uniform) < added_[s];
        if (fits ? less && paths_[s].MayFit(uniform, budget_)
                 : mode == RecomputeMode::kFull || paths_[s].MayFit(uniform, budget_))
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
      for (auto& [what, layers] : ByWhat(choice_[s])) stage.layers.emplace_back(what, layers);
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

RecomputeChoice ChooseRecompute(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads) {
  return RecomputeChooser(deck, ranks, device, budget, threads).Run();
}

std::string ToString(const StageRecomputeChoice& stage) {
  std::string text;
  for (const auto& [what, layers] : stage.layers)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", ToString(what), LayerRanges(layers));
  return text.empty() ? "none" : text;
}

}  // namespace espalier
