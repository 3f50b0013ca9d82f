#include "page/chart/heat_map.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The classes above h0, each with its upper bound.
struct HeatClass {
  double below;
  const char* words;
};
constexpr std::array kClasses = {HeatClass{0.25, "below 0.25"},   HeatClass{0.5, "0.25 to 0.5"},
                                 HeatClass{0.8, "0.5 to 0.8"},    HeatClass{1.25, "0.8 to 1.25"},
                                 HeatClass{2, "1.25 to 2"},       HeatClass{4, "2 to 4"},
                                 HeatClass{INFINITY, "4 or more"}};

constexpr double kHead = 50, kFoot = 34, kRowLabel = 12;

double RowHeight(size_t rows) { return std::clamp(420 / static_cast<double>(rows), 4.0, 18.0); }

std::vector<LegendEntry> Legend() {
  std::vector<LegendEntry> legend = {{"0", "h0", LegendEntry::Sample::kSquare}};
  for (const HeatClass& c : kClasses)
    legend.push_back({c.words, fmt::format("h{}", legend.size()), LegendEntry::Sample::kSquare});
  return legend;
}

/// Neighbours of one class are one bar.
std::map<std::string, Lines> BarsOf(const HeatRow& row, const Scale& x) {
  std::map<std::string, Lines> bars;
  for (size_t begin = 0, end = 0; begin < row.values.size(); begin = end) {
    const std::string css_class = HeatClassOf(row.values[begin]);
    for (end = begin + 1; end < row.values.size() && HeatClassOf(row.values[end]) == css_class;) ++end;
    const double from = x.At(static_cast<double>(begin) - 0.5), to = x.At(static_cast<double>(end) - 0.5);
    if (!css_class.empty()) bars[css_class].Add(from, to - from);
  }
  return bars;
}

/// The text that the page's script shows while the pointer is over the row.
std::string DataOf(const HeatRow& row, double top, double bottom) {
  std::vector<size_t> columns(row.values.size());
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = i;
  return fmt::format("<path d=\"\" data-name=\"{}\" data-top=\"{}\" data-bottom=\"{}\" data-x=\"{}\" data-y=\"{}\"/>\n",
                     Escaped(row.name), Pixels(top), Pixels(bottom), fmt::join(columns, " "),
                     Escaped(fmt::format("{}", fmt::join(row.words, " "))));
}

}  // namespace

std::string HeatClassOf(double value) {
  if (!std::isfinite(value)) return "";
  if (value <= 0) return "h0";
  const auto found = std::ranges::find_if(kClasses, [&](const HeatClass& c) { return value < c.below; });
  return fmt::format("h{}", 1 + (found - kClasses.begin()));
}

Drawing DrawHeatMap(const HeatMap& map) {
  CHECK(!map.rows.empty() && !map.rows[0].values.empty(), "a heat map without cells");
  const ChartSize size{kWideChart.width,
                       kHead + kFoot + RowHeight(map.rows.size()) * static_cast<double>(map.rows.size())};
  ChartFrame frame(map.text, size, Legend());
  const size_t columns = map.rows[0].values.size();
  const Scale x(-0.5, static_cast<double>(columns) - 0.5, frame.left(), frame.right());
  const double height = (frame.bottom() - frame.top()) / static_cast<double>(map.rows.size());
  double highest = 0, top = frame.top(), labelled = top - kRowLabel;
  for (const HeatRow& row : map.rows) {
    CHECK(row.values.size() == columns && row.words.size() == columns, "{} values, {} words in {} columns",
          row.values.size(), row.words.size(), columns);
    for (const auto& [css_class, bars] : BarsOf(row, x)) frame.svg().Bars(top, height, bars, css_class);
    frame.svg().Raw(DataOf(row, top, top + height));
    if (top - labelled >= kRowLabel) {
      labelled = top;
      frame.svg().Text(frame.left() - 6, top + height / 2 + 4, row.label, "tick", Anchor::kEnd);
    }
    highest = std::max(highest, *std::ranges::max_element(row.values));
    top += height;
  }
  frame.svg().Text(10, frame.bottom() + 16, map.row_title, "tick");
  frame.DrawXAxis(x);
  return frame.Done(fmt::format("{} rows of {} cells, at most {}", map.rows.size(), columns, ValueText(highest)));
}

}  // namespace espalier
