// Charts: which points are kept, and where values are drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "espalier/util/error.hpp"
#include "page/chart/heat_map.hpp"
#include "page/chart/line_chart.hpp"
#include "page/chart/stacked_chart.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(KeepExtremes, KeepsTheLowestAndTheHighestOfEveryColumn) {
  std::vector<Point> points;
  for (int i = 0; i < 100'003; ++i) points.push_back({double(i), std::sin(i * 0.37) + (i % 977) * 1e-3});
  points[54'321].y = 50;
  points[54'322].y = -50;
  const std::vector<Point> kept = KeepExtremes(points, 0, 100'002, 600);
  EXPECT_LE(kept.size(), 2 * 600 + 2U);
  EXPECT_GE(kept.size(), 600U);
  EXPECT_EQ(kept.front(), points.front());
  EXPECT_EQ(kept.back(), points.back());
  EXPECT_TRUE(std::ranges::is_sorted(kept, {}, &Point::x));
  for (const size_t spike : {54'321UL, 54'322UL}) EXPECT_THAT(kept, testing::Contains(points[spike]));
  for (const Point& point : kept) EXPECT_EQ(points[static_cast<size_t>(point.x)], point) << "no value is made up";
}

TEST(KeepExtremes, KeepsAllOfFewPoints) {
  const std::vector<Point> points = {{1, 4}, {2, 4}, {3, 4}, {7, 1}};
  EXPECT_EQ(KeepExtremes(points, 1, 7, 100), points);
  EXPECT_THAT(KeepExtremes(points, 1, 7, 1), ElementsAre(Point{1, 4}, Point{7, 1}));
  EXPECT_THAT(KeepExtremes({{5, 2}}, 5, 5, 10), ElementsAre(Point{5, 2}));
  EXPECT_TRUE(KeepExtremes({}, 0, 1, 10).empty());
}

TEST(Smoothed, IsAMeanWithDecreasingWeights) {
  const std::vector<Point> smoothed = Smoothed({{1, 4}, {2, 8}, {3, std::nan("")}, {4, 2}}, 0.5);
  EXPECT_DOUBLE_EQ(smoothed[0].y, 4);
  EXPECT_DOUBLE_EQ(smoothed[1].y, (0.5 * 4 + 8) / 1.5);
  EXPECT_TRUE(std::isnan(smoothed[2].y));
  EXPECT_DOUBLE_EQ(smoothed[3].y, (0.25 * 4 + 0.5 * 8 + 2) / 1.75);
}

TEST(Scale, PlacesValues) {
  const Scale linear(10, 30, 100, 500);
  EXPECT_DOUBLE_EQ(linear.At(10), 100);
  EXPECT_DOUBLE_EQ(linear.At(25), 400);
  const Scale logarithmic(1, 1000, 300, 0, Scale::Kind::kLogarithmic);
  EXPECT_DOUBLE_EQ(logarithmic.At(10), 200);
  EXPECT_DOUBLE_EQ(logarithmic.At(1000), 0);
  const Scale constant(7, 7, 0, 100);
  EXPECT_DOUBLE_EQ(constant.At(7), 50) << "in the middle";
  EXPECT_THROW(Scale(0, 1, 0, 1, Scale::Kind::kLogarithmic), InvariantError);
  EXPECT_THROW(Scale(std::nan(""), 1, 0, 1), InvariantError);
}

/// The attribute of the first path of a class; "" if there is none.
std::string AttributeOf(const std::string& svg, const std::string& css_class, const std::string& name) {
  for (size_t path = 0; (path = svg.find("<path class=\"" + css_class + "\"", path)) != svg.npos; ++path) {
    const std::string element = svg.substr(path, svg.find('>', path) - path), begin = " " + name + "=\"";
    const size_t at = element.find(begin);
    if (at == element.npos) continue;
    const size_t value = at + begin.size();
    return element.substr(value, element.find('"', value) - value);
  }
  return "";
}

LineChart ChartOf(std::vector<Point> points) {
  LineChart chart;
  chart.text = {"gradient norm", "", "step"};
  chart.curves = {{"a <run>", CurveLook::kLine, 1, std::move(points)}};
  return chart;
}

TEST(LineChart, DrawsValuesWhereTheAxesSay) {
  std::vector<Point> points;
  for (int i = 0; i <= 100; ++i) points.push_back({i + 1.0, 2.0 + i});
  const std::string svg = DrawLineChart(ChartOf(points)).body;
  const double from = std::stod(AttributeOf(svg, "axis", "data-from")),
               to = std::stod(AttributeOf(svg, "axis", "data-to"));
  EXPECT_EQ(AttributeOf(svg, "axis", "data-low"), "1");
  EXPECT_EQ(AttributeOf(svg, "axis", "data-high"), "101");
  const std::string path = AttributeOf(svg, "curve c1", "d");
  EXPECT_TRUE(path.starts_with("M" + Pixels(from) + " ")) << path;
  EXPECT_THAT(path, HasSubstr("L" + Pixels((from + to) / 2) + " ")) << "the value at 51";
  EXPECT_TRUE(AttributeOf(svg, "curve c1", "data-y").starts_with("2 3 4 "));
  EXPECT_EQ(AttributeOf(svg, "curve c1", "data-name"), "a &lt;run&gt;");
}

TEST(LineChart, InterruptsTheLineWhereAValueIsMissing) {
  const double missing = std::nan("");
  const std::string svg =
      DrawLineChart(ChartOf({{1, 1}, {2, 2}, {3, missing}, {4, 1}, {5, 3}, {6, missing}, {7, 2}})).body;
  const std::string path = AttributeOf(svg, "curve c1", "d");
  EXPECT_EQ(AttributeOf(svg, "curve c1", "data-x"), "1 2 4 5 7");
  EXPECT_EQ(std::ranges::count(path, 'L'), 2) << path;
}

TEST(LineChart, ReducesDotsAndValuesWithManyGaps) {
  std::vector<Point> points;
  for (int i = 0; i < 40'000; ++i) points.push_back({double(i), i % 4 == 0 ? 1 + 0.01 * (i % 89) : std::nan("")});
  for (const CurveLook look : {CurveLook::kDots, CurveLook::kLine}) {
    LineChart chart = ChartOf(points);
    chart.curves[0].look = look;
    const std::string xs =
        AttributeOf(DrawLineChart(chart).body, look == CurveLook::kDots ? "dots c1" : "curve c1", "data-x");
    EXPECT_LE(std::ranges::count(xs, ' '), 2 * chart.columns + 2);
    EXPECT_GE(std::ranges::count(xs, ' '), chart.columns);
  }
}

TEST(LineChart, BeginsAnewWhereStepsGoBack) {
  LineChart chart = ChartOf({{1, 1}, {2, 2}, {3, 3}, {2, 2.5}, {3, 3.5}});
  chart.curves[0].look = CurveLook::kGivenUp;
  const std::string path = AttributeOf(DrawLineChart(chart).body, "given-up c1", "d");
  EXPECT_EQ(std::ranges::count(path, 'M'), 2) << path;
}

TEST(LineChart, IsLogarithmicIfValuesSpread) {
  std::vector<Point> points;
  for (int i = 0; i <= 50; ++i) points.push_back({double(i), i == 20 ? 5000.0 : 1.0 + 0.01 * i});
  EXPECT_THAT(DrawLineChart(ChartOf(points)).body, HasSubstr(">1000<"));
  points[3].y = 0;
  const std::string linear = DrawLineChart(ChartOf(points)).body;
  EXPECT_THAT(linear, HasSubstr(">4000<")) << "0 has no logarithm";
  EXPECT_THAT(linear, Not(HasSubstr(">1000<")));
}

TEST(LineChart, MarksRestartsAndWhatIsNotFinite) {
  LineChart chart = ChartOf({{1, 1}, {9, 2}});
  chart.marks = {{ChartMark::Kind::kRestart, 5, 1}, {ChartMark::Kind::kNotFinite, 12, 0}};
  const Drawing drawing = DrawLineChart(chart);
  EXPECT_THAT(drawing.body, HasSubstr("class=\"restart c1\""));
  EXPECT_THAT(drawing.body, HasSubstr(">not finite<"));
  EXPECT_THAT(drawing.body, HasSubstr("data-high=\"12\"")) << "the mark is within the axis";
}

TEST(LineChart, SaysThatItHasNoValues) {
  EXPECT_THAT(DrawLineChart(ChartOf({})).body, HasSubstr("no values"));
  EXPECT_THAT(DrawLineChart(ChartOf({{3, std::nan("")}})).body, HasSubstr("no values"));
}

TEST(StackedChart, PutsLayersOnOneAnother) {
  StackedChart chart;
  chart.text = {"memory", "MiB", "instruction"};
  chart.edges = {0, 2, 4};
  chart.layers = {{"low", "m0", {1, 2}}, {"high", "m1", {3, 0}}};
  chart.mark = 2;
  chart.mark_words = "peak";
  const std::string svg = DrawStackedChart(chart).body;
  const std::string low = AttributeOf(svg, "m0", "d"), high = AttributeOf(svg, "m1", "d");
  std::smatch of_low, of_high;
  const std::regex heights(R"(M[^V]*V([^H]*)H[^V]*V([^H]*)H)");
  ASSERT_TRUE(std::regex_search(low, of_low, heights) && std::regex_search(high, of_high, heights)) << low;
  EXPECT_EQ(of_low[2].str(), of_high[2].str()) << "nothing is above the second value";
  EXPECT_LT(std::stod(of_high[1]), std::stod(of_low[1]));
  EXPECT_LT(svg.find("class=\"m1\" d"), svg.find("class=\"m0\" d")) << "the lower layer covers the higher one";
  EXPECT_EQ(AttributeOf(svg, "m1", "data-y"), "3 0");
  EXPECT_EQ(AttributeOf(svg, "m1", "data-x"), "1 3");
}

TEST(HeatMap, HasAClassOfColoursForEachValue) {
  for (const auto& [value, css_class] : {std::pair{0.0, "h0"},
                                         {1e-9, "h1"},
                                         {0.249, "h1"},
                                         {0.25, "h2"},
                                         {0.5, "h3"},
                                         {0.8, "h4"},
                                         {1.0, "h4"},
                                         {1.249, "h4"},
                                         {1.25, "h5"},
                                         {2.0, "h6"},
                                         {3.99, "h6"},
                                         {4.0, "h7"},
                                         {900.0, "h7"}})
    EXPECT_EQ(HeatClassOf(value), css_class) << value;
  EXPECT_EQ(HeatClassOf(std::nan("")), "");
}

TEST(HeatMap, DrawsNeighboursOfOneClassAsOneBar) {
  HeatMap map;
  map.text = {"loads", "", "expert"};
  map.row_title = "layer";
  map.rows = {{"4", "layer <4>", {1, 1.1, 0, 5}, {"a", "b", "c", "d"}},
              {"6", "layer 6", {1, 1, 1, 1}, {"e", "f", "g", "h"}}};
  const Drawing drawing = DrawHeatMap(map);
  const std::string& svg = drawing.body;
  const double cell =
      (std::stod(AttributeOf(svg, "axis", "data-to")) - std::stod(AttributeOf(svg, "axis", "data-from"))) / 4;
  const auto bar = [&](const std::string& css_class) {
    const size_t at = svg.find("class=\"" + css_class + "\" d=\"");
    if (at == svg.npos) return std::string("none");
    const size_t begin = svg.find("d=\"", at) + 3;
    return svg.substr(begin, svg.find('"', begin) - begin);
  };
  EXPECT_EQ(bar("h4"), "M62 0h" + Pixels(2 * cell));
  EXPECT_EQ(bar("h0"), "M" + Pixels(62 + 2 * cell) + " 0h" + Pixels(cell));
  EXPECT_EQ(bar("h7"), "M" + Pixels(62 + 3 * cell) + " 0h" + Pixels(cell));
  EXPECT_THAT(svg, HasSubstr("0h" + Pixels(4 * cell) + "\"")) << "the second row is one bar";
  EXPECT_THAT(svg, HasSubstr("data-name=\"layer &lt;4&gt;\""));
  EXPECT_THAT(svg, HasSubstr("data-x=\"0 1 2 3\" data-y=\"a b c d\""));
  EXPECT_THAT(svg, HasSubstr("data-low=\"-0.5\" data-high=\"3.5\""));
  EXPECT_THAT(svg, HasSubstr(">4 or more<"));
  EXPECT_THAT(drawing.title, HasSubstr("2 rows of 4 cells, at most 5"));
}

TEST(ShareChart, DividesEachBar) {
  const std::string svg =
      DrawShareChart({"shares",
                      {{"a", "tp", LegendEntry::Sample::kSquare}, {"b", "idle", LegendEntry::Sample::kSquare}},
                      {{"run", {30, 10}}}})
          .body;
  std::vector<double> widths;
  const std::regex bar("<rect [^>]*width=\"([^\"]*)\" height=\"18\"");
  for (std::sregex_iterator r(svg.begin(), svg.end(), bar), none; r != none; ++r) widths.push_back(std::stod((*r)[1]));
  ASSERT_EQ(widths.size(), 2U);
  EXPECT_NEAR(widths[0] / widths[1], 3, 0.01);
}

}  // namespace
}  // namespace espalier
