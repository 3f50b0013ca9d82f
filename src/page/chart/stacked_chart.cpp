#include "page/chart/stacked_chart.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "espalier/util/error.hpp"
#include "page/assets.hpp"

namespace espalier {
namespace {

std::vector<LegendEntry> LegendOf(const StackedChart& chart) {
  std::vector<LegendEntry> legend;
  for (const Layer& layer : chart.layers) legend.push_back({layer.name, layer.css_class, LegendEntry::Sample::kSquare});
  if (chart.mark >= 0) legend.push_back({chart.mark_words, "peak"});
  return legend;
}

/// Cumulative sums of the layers.
std::vector<std::vector<double>> Heights(const StackedChart& chart) {
  std::vector<std::vector<double>> heights;
  std::vector<double> sum(chart.edges.size() - 1, 0.0);
  for (const Layer& layer : chart.layers) {
    CHECK(layer.values.size() == sum.size(), "{} values in {} intervals", layer.values.size(), sum.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += layer.values[i];
    heights.push_back(sum);
  }
  return heights;
}

/// The values, at the middle of each interval.
std::string DataOf(const StackedChart& chart, const Layer& layer) {
  std::string xs, ys;
  for (size_t i = 0; i < layer.values.size(); ++i) {
    xs += fmt::format("{}{:.8g}", i == 0 ? "" : " ", (chart.edges[i] + chart.edges[i + 1]) / 2);
    ys += (i == 0 ? "" : " ") + ValueText(layer.values[i]);
  }
  return fmt::format("data-name=\"{}\" data-x=\"{}\" data-y=\"{}\"", Escaped(layer.name), xs, ys);
}

}  // namespace

/// Layers are drawn from the highest to the lowest, each down to the axis.
Drawing DrawStackedChart(const StackedChart& chart) {
  ChartFrame frame(chart.text, chart.size, LegendOf(chart));
  CHECK(chart.edges.size() >= 2 && !chart.layers.empty(), "a chart without intervals or layers");
  const std::vector<std::vector<double>> heights = Heights(chart);
  const double highest = *std::ranges::max_element(heights.back());
  const Scale x(chart.edges.front(), chart.edges.back(), frame.left(), frame.right());
  const Scale y(0, highest > 0 ? 1.04 * highest : 1, frame.bottom(), frame.top());
  for (size_t l = chart.layers.size(); l-- > 0;) {
    std::string path = fmt::format("M{} {}", Pixels(frame.left()), Pixels(frame.bottom()));
    for (size_t i = 0; i < heights[l].size(); ++i)
      path += fmt::format("V{}H{}", Pixels(y.At(heights[l][i])), Pixels(x.At(chart.edges[i + 1])));
    frame.svg().Raw(fmt::format("<path class=\"{}\" d=\"{}V{}Z\" {}/>\n", chart.layers[l].css_class, path,
                                Pixels(frame.bottom()), DataOf(chart, chart.layers[l])));
  }
  frame.DrawYAxis(y);
  frame.DrawXAxis(x);
  if (chart.mark >= 0) frame.DrawMark(x.At(chart.mark), "peak");
  return frame.Done(fmt::format("at most {}", ValueText(highest)));
}

Drawing DrawShareChart(const ShareChart& chart) {
  constexpr double kRow = 40, kBar = 18, kHead = 60;
  const ChartSize size{kWideChart.width, kHead + kRow * static_cast<double>(chart.bars.size()) + 34};
  ChartFrame frame({chart.title, "", "% of the time"}, size, chart.parts);
  const Scale x(0, 100, frame.left(), frame.right());
  frame.DrawXAxis(x);
  double top = frame.top();
  for (const ShareBar& bar : chart.bars) {
    const double whole = std::accumulate(bar.values.begin(), bar.values.end(), 0.0);
    double sum = 0;
    frame.svg().Text(frame.left(), top + 10, bar.name, "legend");
    for (size_t p = 0; p < bar.values.size() && whole > 0; ++p) {
      const double from = x.At(100 * sum / whole), to = x.At(100 * (sum += bar.values[p]) / whole);
      frame.svg().Rect({from, top + 14, to - from, kBar}, chart.parts[p].css_class);
    }
    top += kRow;
  }
  return frame.Done(fmt::format("{} rows", chart.bars.size()));
}

}  // namespace espalier
