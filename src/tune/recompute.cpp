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
#include <cmath>
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
  size_t chunk = 0;                          ///< index among the chunks of the stage
  bool last = false;                         ///< of its chunk
  bool may_leave = true;                     ///< its values may wait on the host: backward does not begin with them
  std::optional<LayerRecompute> fixed = {};  ///< what it computes again, if the deck says so
};

/// The stage as profiles predict it, for an option of each layer.
class StageModel {
 public:
  StageModel(std::vector<LayerOfStage> layers, const StageFlights& flights, RecomputeOptions& options)
      : layers_(std::move(layers)), flights_(flights), chosen_(layers_.size()), live_(flights.moments.size()) {
    for (const LayerOfStage& layer : layers_) {
      options_.push_back(options.Of(layer.part, layer.fixed, layer.may_leave));
      Add(options_.size() - 1, options_.back().front(), +1, live_);
      times_.Add(options_.back().front(), +1);
    }
  }

  const std::vector<LayerOfStage>& Layers() const { return layers_; }
  const RecomputeOption& OptionOf(size_t layer) const { return options_[layer][chosen_[layer]]; }
  /// Bytes of activations at the highest moment.
  double Peak() const { return *std::ranges::max_element(live_); }
  /// The same if all layers had this option.
  double PeakOf(const LayerChoice& uniform, RecomputeOptions& options) const {
    std::vector<double> live(live_.size());
    for (size_t l = 0; l < layers_.size(); ++l) Add(l, options.Option(layers_[l].part, For(l, uniform)), +1, live);
    return *std::ranges::max_element(live);
  }
  /// Time that is added to the work of the stage's layers if all had this option.
  double AddedBy(const LayerChoice& uniform, RecomputeOptions& options) const {
    Times now, none;
    for (size_t l = 0; l < layers_.size(); ++l) {
      now.Add(options.Option(layers_[l].part, For(l, uniform)), +1);
      none.Add(options_[l].front(), +1);
    }
    return now.Total() - none.Total();
  }
  /// The option for all layers, as a layer can have it.
  LayerChoice For(size_t l, LayerChoice uniform) const {
    uniform.offload = uniform.offload && layers_[l].may_leave;
    return uniform;
  }

  /// Takes the step that lowers the peak by the most bytes per work; returns the work, or nothing if none lowers it.
  std::optional<double> Step() {
    std::optional<double> best;  // work per byte
    size_t best_layer = 0, best_option = 0;
    std::set<std::tuple<Part, size_t, bool, LayerChoice>> seen;
    const double now = Height(live_), before = times_.Total();
    for (size_t l = 0; l < layers_.size(); ++l) {
      const LayerOfStage& layer = layers_[l];
      if (!seen.emplace(layer.part, layer.chunk, layer.last, OptionOf(l).choice).second) continue;
      for (size_t o = 0; o < options_[l].size(); ++o) {
        std::vector<double> live = live_;
        Add(l, OptionOf(l), -1, live);
        Add(l, options_[l][o], +1, live);
        Times times = times_;
        times.Add(OptionOf(l), -1);
        times.Add(options_[l][o], +1);
        const double saved = now - Height(live), work = times.Total() - before;
        if (saved <= kLeastSaved * now) continue;
        // Without more work: the most bytes.
        const double price = work > 0 ? work / saved : -saved;
        if (!best || price < *best) best = price, best_layer = l, best_option = o;
      }
    }
    if (!best) return std::nullopt;
    if (options_[best_layer][best_option].choice.offload) best_layer = Spaced(best_layer, best_option);
    for (const double sign : {-1.0, +1.0}) {
      Add(best_layer, OptionOf(best_layer), sign, live_);
      times_.Add(OptionOf(best_layer), sign);
      chosen_[best_layer] = best_option;
    }
    return times_.Total() - before;
  }

 private:
  static constexpr double kLeastSaved = 1e-9, kPower = 16;

  /// Times of the layers of the stage in a microbatch. Copies out are hidden by forward, and copies in by backward.
  struct Times {
    double work = 0, forward = 0, out = 0, in = 0;
    void Add(const RecomputeOption& option, double sign) {
      work += sign * option.work;
      forward += sign * option.forward;
      out += sign * option.out;
      in += sign * option.in;
    }
    double Total() const { return work + std::max(0.0, out - forward) + std::max(0.0, in - (work - forward)); }
  };

  /// A layer like this one, the first from it on that is so far from others on the host that their copies are hidden by
  /// the layers between. The layer itself if there is none.
  size_t Spaced(size_t layer, size_t option) const {
    const RecomputeOption& o = options_[layer][option];
    const double gap = std::max({o.out / o.forward, o.in / (o.work - o.forward), 1.0});
    const auto alike = [&](size_t l) {
      const LayerOfStage &a = layers_[layer], &b = layers_[l];
      return std::tie(a.part, a.chunk, a.last, OptionOf(layer).choice) ==
             std::tie(b.part, b.chunk, b.last, OptionOf(l).choice);
    };
    for (size_t l = layer; l < layers_.size(); ++l) {
      bool alone = alike(l);
      for (size_t other = 0; other < layers_.size(); ++other)
        if (other != l && layers_[other].chunk == layers_[l].chunk && OptionOf(other).choice.offload)
          alone = alone && std::abs(layers_[other].number - layers_[l].number) >= gap;
      if (alone) return l;
    }
    return layer;
  }
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
        live[m] += sign * (option.extra + option.staged);
    }
  }

  std::vector<LayerOfStage> layers_;
  const StageFlights flights_;
  std::vector<std::vector<RecomputeOption>> options_;  // by layer
  std::vector<size_t> chosen_;                         // by layer: its option
  std::vector<double> live_;                           // by moment
  Times times_;
};

using LayerChoices = std::vector<std::pair<int, LayerChoice>>;  // by layer from 0

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
  double Added(const LayerChoice& uniform) const { return model_.AddedBy(uniform, options_) / work_; }
  /// Whether a choice for all layers promises to save most of what is needed. Profiles know nothing of holes.
  bool MayFit(const LayerChoice& uniform, int64_t budget) const {
    return most_ - model_.PeakOf(uniform, options_) >= kMost * double(peaks_.at(0) - budget);
  }

  /// The choice of each layer at a place.
  LayerChoices At(int place) const {
    LayerChoices choice;
    for (size_t l = 0; l < model_.Layers().size(); ++l)
      choice.emplace_back(model_.Layers()[l].number, chosen_[static_cast<size_t>(place)][l]);
    return choice;
  }
  LayerChoices At(const LayerChoice& uniform) const {
    LayerChoices choice;
    for (size_t l = 0; l < model_.Layers().size(); ++l)
      choice.emplace_back(model_.Layers()[l].number, model_.For(l, uniform));
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
    std::vector<LayerChoice>& chosen = chosen_.emplace_back();
    for (size_t l = 0; l < model_.Layers().size(); ++l) chosen.push_back(model_.OptionOf(l).choice);
  }

  StageModel model_;
  RecomputeOptions& options_;
  const double work_;
  const double most_;                             // bytes at the highest moment without recomputation
  std::vector<double> saved_, added_;             // by place
  std::vector<std::vector<LayerChoice>> chosen_;  // by place and layer
  int below_ = -1, above_ = 0, next_ = 0;         // the last place that does not fit, the first that does
  double realised_ = 1;                           // bytes saved per byte that profiles promise
  std::map<int, int64_t> peaks_;                  // by place
};

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

}  // namespace espalier
