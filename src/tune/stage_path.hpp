// The path of a pipeline stage from nothing to everything: the next layer to compute again, or to move to the host, by
// what profiles of single layers promise.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tune/in_flight.hpp"
#include "tune/recompute_options.hpp"

namespace espalier {

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
        if (saved <= kMinSaved * now) continue;
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
  static constexpr double kMinSaved = 1e-9, kPower = 16;

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
    return most_ - model_.PeakOf(uniform, options_) >= kMax * double(peaks_.at(0) - budget);
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
  static constexpr double kMax = 0.4;       // a mode that promises less of what is needed is not compiled
  static constexpr double kEnough = 0.001;  // a place that would save less of a stage's work is not looked for

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

}  // namespace espalier
