#include "espalier/costs/routing.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "espalier/model/layer_kinds.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

double Sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

double MeanOf(const std::vector<double>& values, int64_t first, int64_t count) {
  const auto begin = values.begin() + first;
  return std::accumulate(begin, begin + count, 0.0) / double(count);
}

/// Popularity by place, of mean 1. A token chooses an expert at most once, so none has more than `most`; what is above
/// goes to the others.
std::vector<double> Popularities(int64_t experts, double exponent, double most) {
  std::vector<double> loads;
  for (int64_t place = 1; place <= experts; ++place) loads.push_back(std::pow(double(place), -exponent));
  const auto all = static_cast<double>(experts);
  for (size_t full = 0; full < loads.size(); ++full) {
    const double rest = std::accumulate(loads.begin() + static_cast<ptrdiff_t>(full), loads.end(), 0.0),
                 scale = (all - double(full) * most) / rest;
    for (size_t i = full; i < loads.size(); ++i) loads[i] *= scale;
    if (loads[full] <= most) break;
    loads[full] = most;
  }
  return loads;
}

/// Which expert has the place, by place.
std::vector<size_t> OrderOf(int64_t experts, int layer, int64_t seed) {
  std::vector<size_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<double> keys;
  for (int64_t expert = 0; expert < experts; ++expert)
    keys.push_back(NormalAt(seed, "simulate.routing", layer * experts + expert));
  std::ranges::stable_sort(order, {}, [&](size_t expert) { return keys[expert]; });
  return order;
}

}  // namespace

Routing::Routing(std::vector<std::vector<double>> loads, std::string text)
    : loads_(std::move(loads)), text_(std::move(text)) {
  for (std::vector<double>& layer : loads_) {
    if (layer.empty()) continue;
    const double mean = MeanOf(layer, 0, std::ssize(layer));
    CHECK(mean > 0, "a layer whose experts receive no tokens");
    for (double& load : layer) load /= mean;
  }
}

double Routing::Load(int layer, Range experts) const {
  if (IsBalanced() || experts.Extent() == 0) return 1;
  if (fullest_) {
    const std::vector<double> largest = LargestLoads(experts.Extent());
    return Sum(largest) / double(largest.size());
  }
  const std::vector<double>& loads = loads_.at(static_cast<size_t>(layer));
  CHECK(experts.end <= std::ssize(loads), "experts up to {} of the {} of layer {}", experts.end, loads.size(), layer);
  return MeanOf(loads, experts.begin, experts.Extent());
}

std::vector<double> Routing::LargestLoads(int64_t experts) const {
  std::vector<double> largest;
  for (const std::vector<double>& layer : loads_) {
    double most = 0;
    for (int64_t first = 0; first + experts <= std::ssize(layer); first += experts)
      most = std::max(most, MeanOf(layer, first, experts));
    if (!layer.empty()) largest.push_back(most);
  }
  return largest;
}

Routing Routing::OfTheFullestRank() const {
  Routing routing = *this;
  routing.fullest_ = !IsBalanced();
  return routing;
}

Routing SkewedRouting(const Deck::Model& model, double exponent, int64_t seed) {
  const Deck::Model::Experts& e = model.experts;
  const std::vector<double> by_place =
      Popularities(e.count, exponent, double(e.count) / double(std::max<int64_t>(1, e.per_token)));
  std::vector<std::vector<double>> loads(1);
  for (int layer = 1; layer <= model.AllLayers(); ++layer) {
    std::vector<double>& of_layer = loads.emplace_back();
    if (!KindOf(model, layer).experts) continue;
    of_layer.resize(by_place.size());
    const std::vector<size_t> order = OrderOf(e.count, layer, seed);
    for (size_t place = 0; place < order.size(); ++place) of_layer[order[place]] = by_place[place];
  }
  return {std::move(loads), fmt::format("skew={:g} (Zipf), seed {}", exponent, seed)};
}

}  // namespace espalier
