// How evenly the tokens of a step are spread over experts: a picture of all layers, and their extremes in figures.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

#include "page/chart/heat_map.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

/// An integer of the run's deck; `otherwise` if the deck is not known.
int64_t KeyOf(const RunOnPage& run, std::string_view key, int64_t otherwise) {
  const auto found = std::ranges::find(run.keys, key, &std::pair<std::string, std::string>::first);
  int64_t value = otherwise;
  if (found != run.keys.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  return value;
}

/// The number in the model, from 1 on, of each layer with experts. Layers for further tokens follow the last one.
std::vector<int64_t> LayersOf(const RunOnPage& run) {
  const int64_t first = KeyOf(run, "experts.first_layer", 0), every = KeyOf(run, "experts.every", 1);
  const int64_t last = KeyOf(run, "model.layers", std::numeric_limits<int64_t>::max());
  std::vector<int64_t> layers;
  for (size_t i = 0; i < run.history.loads->by_layer.size(); ++i) {
    const int64_t layer = first + 1 + static_cast<int64_t>(i) * every;
    layers.push_back(layer <= last || i == 0 ? layer : layers.back() + 1);
  }
  return layers;
}

double MeanOf(const std::vector<double>& loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
}

HeatRow RowOf(int64_t layer, const std::vector<double>& loads) {
  const double mean = MeanOf(loads);
  HeatRow row{std::to_string(layer), fmt::format("layer {}", layer), {}, {}};
  for (const double load : loads) {
    row.values.push_back(mean > 0 ? load / mean : 0);
    row.words.push_back(fmt::format("{:.0f}\u00a0tokens\u00a0({:.3g})", load, row.values.back()));
  }
  return row;
}

Drawing PictureOf(const RunOnPage& run) {
  const ExpertLoads& loads = *run.history.loads;
  const std::vector<int64_t> layers = LayersOf(run);
  HeatMap map;
  map.text = {fmt::format("load by expert and layer, relative to the mean, step {}", loads.step), "", "expert"};
  map.row_title = "layer";
  for (size_t i = 0; i < layers.size(); ++i) map.rows.push_back(RowOf(layers[i], loads.by_layer[i]));
  return DrawHeatMap(map);
}

Table FiguresOf(const RunOnPage& run) {
  const ExpertLoads& loads = *run.history.loads;
  const std::vector<int64_t> layers = LayersOf(run);
  Table table{
      {"layer", "mean", "least", "of expert", "largest", "of expert", "relative to the mean", "without tokens"}, {}, 0};
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<double>& of = loads.by_layer[i];
    const auto least = std::ranges::min_element(of), largest = std::ranges::max_element(of);
    const double mean = MeanOf(of);
    table.rows.push_back({std::to_string(layers[i]), fmt::format("{:.1f}", mean), fmt::format("{:.0f}", *least),
                          std::to_string(least - of.begin()), fmt::format("{:.0f}", *largest),
                          std::to_string(largest - of.begin()), fmt::format("{:.3f}", mean > 0 ? *largest / mean : 0),
                          std::to_string(std::ranges::count(of, 0.0))});
  }
  return table;
}

}  // namespace

bool HasExperts(const Runs& runs) {
  return std::ranges::any_of(runs, [](const RunOnPage& run) { return run.history.loads.has_value(); });
}

void WriteExperts(const Runs& runs, Html& html) {
  for (size_t r = 0; r < runs.size(); ++r) {
    const RunOnPage& run = runs[r];
    if (!run.history.loads) continue;
    if (runs.size() > 1) html.Heading(run.name());
    html.Add(fmt::format("loads-{}", r + 1), PictureOf(run),
             "The last step that has them. The mean is that of a layer: 1 is balanced.");
    html.AddFolded(fmt::format("Tokens of the experts of {} in step {}, by layer", run.name(), run.history.loads->step),
                   FiguresOf(run));
  }
}

}  // namespace espalier
