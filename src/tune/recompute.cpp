// Every layer of a stage has a chain of options (recompute_options.hpp). The steps of all chains, in the order of bytes
// saved per work added and from the stage's first layer to its last, are one path from nothing to everything. A stage
// is at a place of its path: as early as fits. Bytes of a profile and counts of microbatches in flight predict how far
// it must go; the program of the whole model is compiled at that place, and its exact peak says how wrong that was.
// All stages move at once, so a few compilations find the places of all.
#include "espalier/tune/recompute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

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
constexpr double kNearly = 0.95;   // a choice that promises less of what is needed is not compiled
constexpr double kEnough = 0.001;  // a place that would save less of a stage's work is not looked for

/// Microbatches between F and B, and between B and W, when most are in flight.
struct Flying {
  std::vector<int> before_b, before_w;  ///< by index among the chunks of the stage
};
Flying FlyingOf(const StageFlights& flights) {
  const InFlight* most = &flights.moments.at(0);
  const auto pairs = [](const InFlight& m) {
    int sum = 0;
    for (size_t i = 0; i < m.before_b.size(); ++i) sum += m.before_b[i] + m.before_w[i];
    return sum;
  };
  for (const InFlight& moment : flights.moments)
    if (pairs(moment) > pairs(*most)) most = &moment;
  return {most->before_b, most->before_w};
}

/// The path of a stage, and what is known of its places: 0 recomputes nothing, Steps() everything.
class StagePath {
 public:
  struct Layer {
    int number = 0;  ///< from 0
    Part part = kFirstKind;
    int before_b = 1, before_w = 0;
  };

  StagePath(std::vector<Layer> layers, double other_work, RecomputeOptions& options)
      : layers_(std::move(layers)), work_(other_work) {
    struct Candidate {
      double worth;
      size_t layer, option;
    };
    std::vector<Candidate> candidates;
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      chains_.push_back(options.Chain(layer.part, layer.before_b, layer.before_w));
      const std::vector<RecomputeOption>& chain = chains_.back();
      work_ += chain[0].work;
      for (size_t o = 1; o < chain.size(); ++o) {
        const double saved = BytesOf(l, o - 1) - BytesOf(l, o), added = chain[o].work - chain[o - 1].work;
        candidates.push_back({added <= 0 ? -1 : added / saved, l, o});
      }
    }
    std::ranges::stable_sort(candidates, {}, [](const Candidate& c) { return std::tuple(c.worth, c.option); });
    saved_ = {0};
    added_ = {0};
    for (const Candidate& c : candidates) {
      const std::vector<RecomputeOption>& chain = chains_[c.layer];
      steps_.push_back(c.layer);
      saved_.push_back(saved_.back() + BytesOf(c.layer, c.option - 1) - BytesOf(c.layer, c.option));
      added_.push_back(added_.back() + chain[c.option].work - chain[c.option - 1].work);
    }
    above_ = Steps() + 1;
  }

  int Steps() const { return static_cast<int>(steps_.size()); }
  /// The part of the stage's work that is added at a place.
  double Added(int place) const { return work_ > 0 ? added_[static_cast<size_t>(place)] / work_ : 0; }
  double Added(const LayerRecompute& uniform, RecomputeOptions& options) const {
    double added = 0;
    for (size_t l = 0; l < layers_.size(); ++l)
      added += options.Option(layers_[l].part, uniform).work - chains_[l][0].work;
    return work_ > 0 ? added / work_ : 0;
  }

  /// Whether a choice for all layers promises to fit, by what profiles have been worth so far.
  bool MayFit(const LayerRecompute& uniform, RecomputeOptions& options, int64_t budget) const {
    double saved = 0;
    for (size_t l = 0; l < layers_.size(); ++l)
      saved += BytesOf(l, chains_[l][0]) - BytesOf(l, options.Option(layers_[l].part, uniform));
    return saved * realised_ >= kNearly * double(peaks_.at(0) - budget);
  }

  /// What each layer recomputes at a place.
  std::vector<std::pair<int, LayerRecompute>> At(int place) const {
    std::vector<size_t> option(layers_.size());
    for (int i = 0; i < place; ++i) ++option[steps_[static_cast<size_t>(i)]];
    std::vector<std::pair<int, LayerRecompute>> choice;
    for (size_t l = 0; l < layers_.size(); ++l) choice.emplace_back(layers_[l].number, chains_[l][option[l]].what);
    return choice;
  }
  std::vector<std::pair<int, LayerRecompute>> At(const LayerRecompute& uniform) const {
    std::vector<std::pair<int, LayerRecompute>> choice;
    for (const Layer& layer : layers_) choice.emplace_back(layer.number, uniform);
    return choice;
  }

  /// Whether the best place is known.
  bool Settled() const {
    if (above_ - below_ <= 1) return true;
    return above_ <= Steps() && Added(above_) - Added(below_ + 1) < kEnough;
  }
  /// The place to compile next, or the best one if it is settled: the earliest known to fit, or the last of the path.
  int Place() const {
    if (Settled()) return std::min(above_, Steps());
    return next_;
  }
  /// Notes the peak at Place().
  void Note(int64_t peak, int64_t budget, bool halve) {
    const int place = Place();
    peaks_[place] = peak;
    if (Settled()) return;
    (peak <= budget ? above_ : below_) = place;
    if (Settled()) return;
    const double saved = saved_[static_cast<size_t>(place)], needed = double(peaks_.at(0) - budget);
    if (place > 0 && saved > 0)
      realised_ = std::clamp(double(peaks_.at(0) - peak) / saved, 0.05, 20.0);  // of what the profile promises
    const auto first = std::ranges::find_if(saved_, [&](double s) { return s * realised_ >= needed; });
    next_ = halve ? (below_ + above_) / 2 : static_cast<int>(first - saved_.begin());
    next_ = std::clamp(next_, below_ + 1, std::min(above_ - 1, Steps()));
  }
  bool Knows(int place) const { return peaks_.contains(place); }
  int64_t PeakAt(int place) const { return peaks_.at(place); }

 private:
  double BytesOf(size_t layer, size_t option) const { return BytesOf(layer, chains_[layer][option]); }
  double BytesOf(size_t layer, const RecomputeOption& o) const {
    return double(o.kept) * layers_[layer].before_b + double(o.kept_for_w) * layers_[layer].before_w;
  }

  std::vector<Layer> layers_;
  std::vector<std::vector<RecomputeOption>> chains_;  // by layer
  std::vector<size_t> steps_;                         // by step: the layer that takes its next option
  std::vector<double> saved_, added_;                 // by place
  double work_ = 0;                                   // of a microbatch without recomputation
  int below_ = -1, above_ = 0, next_ = 0;             // the last place that does not fit, the first that does
  double realised_ = 1;
  std::map<int, int64_t> peaks_;  // by place
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
      const Flying weights = FlyingOf(flights);
      std::vector<StagePath::Layer> layers;
      double other = 0;
      for (size_t i = 0; i < flights.chunks.size(); ++i) {
        const int chunk = flights.chunks[i];
        for (int l = 1; l <= m.AllLayers(); ++l) {
          const size_t at = std::min(static_cast<size_t>(l), chunk_of.size() - 1);
          if (chunk_of[at] != chunk) continue;
          const auto kind = static_cast<size_t>(std::ranges::find(kinds, KindOf(m, l)) - kinds.begin());
          layers.push_back(
              {l - 1, l > m.layers ? kFurther : kFirstKind + kind, weights.before_b[i], weights.before_w[i]});
        }
        if (chunk == chunk_of.front()) other += options_.Option(kEmbedding, {}).work;
        if (chunk == chunk_of.back()) other += options_.Option(kHead, {}).work;
      }
      paths_.emplace_back(std::move(layers), other, options_);
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

  /// A mode for all layers of a stage may take less work than a place of the path, whose steps are whole layers.
  void TryModes(std::vector<int64_t>& peaks) {
    for (RecomputeMode mode : {RecomputeMode::kAttention, RecomputeMode::kSelective, RecomputeMode::kFull}) {
      const LayerRecompute uniform{mode, {}};
      std::vector<LayerChoices> choices = choice_;
      std::set<int> others;
      for (size_t s = 0; s < paths_.size(); ++s) {
        const double added = paths_[s].Added(uniform, options_);
        if (added < added_[s] && peaks[s] <= budget_ && paths_[s].MayFit(uniform, options_, budget_))
          choices[s] = paths_[s].At(uniform);
        else
          others.insert(static_cast<int>(s));
      }
      if (others.size() == paths_.size()) continue;
      const std::vector<int64_t> tried = PeaksOf(With(choices), others);
      for (size_t s = 0; s < paths_.size(); ++s) {
        if (others.contains(static_cast<int>(s)) || tried[s] > budget_) continue;
        choice_[s] = choices[s];
        peaks[s] = tried[s];
        added_[s] = paths_[s].Added(uniform, options_);
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
