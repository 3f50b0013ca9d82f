#include "page/chart/line_chart.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace espalier {
namespace {

constexpr size_t kColours = 8;
constexpr double kSpread = 50;     // limit of the largest value over the median: beyond it the axis is logarithmic
constexpr size_t kFewPoints = 40;  // this many points are shown one by one
constexpr double kCross = 3.5;

std::string ColourClass(size_t colour) { return fmt::format("c{}", colour % kColours); }

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

enum class Gaps : uint8_t { kShown, kBridged };

/// The parts of a curve between missing values, unless these gaps are bridged. A part also ends where x goes back.
std::vector<std::vector<Point>> Pieces(const std::vector<Point>& points, Gaps gaps) {
  std::vector<std::vector<Point>> pieces(1);
  for (const Point& point : points) {
    const bool missing = std::isnan(point.y);
    const bool back = !missing && !pieces.back().empty() && point.x <= pieces.back().back().x;
    if (((missing && gaps == Gaps::kShown) || back) && !pieces.back().empty()) pieces.emplace_back();
    if (!missing) pieces.back().push_back(point);
  }
  if (pieces.back().empty()) pieces.pop_back();
  return pieces;
}

class LineChartDrawer {
 public:
  explicit LineChartDrawer(const LineChart& chart) : chart_(chart), frame_(chart.text, chart.size, Legend()) {
    Measure();
  }

  Drawing Draw() {
    if (x_extent_.empty()) {
      frame_.svg().Text(frame_.left(), (frame_.top() + frame_.bottom()) / 2, "no values", "tick");
      return frame_.Done("no values");
    }
    const Scale x(x_extent_.low, x_extent_.high, frame_.left(), frame_.right());
    const Scale y = YScale();
    frame_.DrawYAxis(y);
    frame_.DrawXAxis(x);
    for (const ChartMark& mark : chart_.marks)
      if (mark.kind != ChartMark::Kind::kNotFinite)
        frame_.DrawMark(x.At(mark.x), MarkClass(mark.kind) + " " + ColourClass(mark.colour));
    for (const Curve& curve : chart_.curves) DrawCurve(curve, x, y);
    DrawCrosses(x);
    return frame_.Done(fmt::format("{} to {}, {} {} to {}", ValueText(y_extent_.low), ValueText(y_extent_.high),
                                   chart_.text.x_title, ValueText(x_extent_.low), ValueText(x_extent_.high)));
  }

 private:
  static std::string MarkClass(ChartMark::Kind kind) {
    return kind == ChartMark::Kind::kRestart ? "restart" : kind == ChartMark::Kind::kRollback ? "rollback" : "cross";
  }
  static std::string LookClass(CurveLook look) {
    constexpr std::string_view kClasses[] = {"curve", "behind", "given-up", "dots"};
    return std::string(kClasses[static_cast<size_t>(look)]);
  }

  /// Curves with a name, and the kinds of marks in use.
  std::vector<LegendEntry> Legend() const {
    std::vector<LegendEntry> legend;
    for (const Curve& curve : chart_.curves)
      if (!curve.name.empty() && !curve.points.empty())
        legend.push_back({curve.name, LookClass(curve.look) + " " + ColourClass(curve.colour),
                          curve.look == CurveLook::kDots ? LegendEntry::Sample::kDot : LegendEntry::Sample::kLine});
    std::set<ChartMark::Kind> kinds;
    for (const ChartMark& mark : chart_.marks) kinds.insert(mark.kind);
    for (const ChartMark::Kind kind : kinds) {
      constexpr std::string_view kWords[] = {"restart", "rollback", "not finite"};
      legend.push_back({std::string(kWords[static_cast<size_t>(kind)]), MarkClass(kind) + " mark"});
    }
    return legend;
  }

  void Measure() {
    for (const Curve& curve : chart_.curves)
      for (const Point& point : curve.points) {
        if (std::isnan(point.y)) continue;
        x_extent_.Add(point.x);
        y_extent_.Add(point.y);
        values_.push_back(point.y);
      }
    if (x_extent_.empty()) return;
    for (const ChartMark& mark : chart_.marks) x_extent_.Add(mark.x);
    if (x_extent_.low < x_extent_.high) return;
    x_extent_.Add(x_extent_.low - 1);
    x_extent_.Add(x_extent_.high + 1);
  }

  Scale YScale() {
    const auto middle = values_.begin() + std::ssize(values_) / 2;
    std::nth_element(values_.begin(), middle, values_.end());
    const bool logarithmic = y_extent_.low > 0 && y_extent_.high > kSpread * *middle;
    const double room = logarithmic ? 0 : 0.04 * (y_extent_.high - y_extent_.low);
    const double low = y_extent_.low >= 0 ? std::max(0.0, y_extent_.low - room) : y_extent_.low - room;
    return Scale(low, y_extent_.high + room, frame_.bottom(), frame_.top(),
                 logarithmic ? Scale::Kind::kLogarithmic : Scale::Kind::kLinear);
  }

  /// Dots have no gaps; more gaps than columns would not be visible.
  std::vector<std::vector<Point>> PiecesOf(const Curve& curve) const {
    if (curve.look == CurveLook::kDots) return Pieces(curve.points, Gaps::kBridged);
    std::vector<std::vector<Point>> pieces = Pieces(curve.points, Gaps::kShown);
    return std::ssize(pieces) > chart_.columns ? Pieces(curve.points, Gaps::kBridged) : pieces;
  }

  void DrawCurve(const Curve& curve, const Scale& x, const Scale& y) {
    std::vector<Point> shown;
    std::string path;
    for (const std::vector<Point>& piece : PiecesOf(curve)) {
      const std::vector<Point> reduced = KeepExtremes(piece, x_extent_.low, x_extent_.high, chart_.columns);
      path += PathOf(curve, reduced, x, y);
      shown.insert(shown.end(), reduced.begin(), reduced.end());
    }
    if (shown.empty()) return;
    const std::string name = curve.name.empty() ? chart_.text.title : curve.name;
    frame_.svg().Raw(fmt::format("<path class=\"{} {}\" d=\"{}\"{}/>\n", LookClass(curve.look),
                                 ColourClass(curve.colour), path,
                                 curve.look == CurveLook::kGivenUp ? "" : DataOf(name, shown)));
  }

  static std::string PathOf(const Curve& curve, const std::vector<Point>& points, const Scale& x, const Scale& y) {
    std::string path;
    const bool dots = curve.look == CurveLook::kDots ||
                      (curve.look == CurveLook::kLine && curve.points.size() <= kFewPoints) || points.size() == 1;
    if (curve.look != CurveLook::kDots)
      for (size_t i = 0; i < points.size(); ++i)
        path += fmt::format("{}{} {}", i == 0 ? "M" : "L", Pixels(x.At(points[i].x)), Pixels(y.At(points[i].y)));
    for (size_t i = 0; dots && i < points.size(); ++i) path += DotPath(x.At(points[i].x), y.At(points[i].y));
    return path;
  }

  /// The values for the script of the page, and for programs that read them from the picture.
  static std::string DataOf(const std::string& name, const std::vector<Point>& points) {
    std::string xs, ys;
    for (const Point& point : points) {
      xs += (xs.empty() ? "" : " ") + fmt::format("{:.10g}", point.x);
      ys += (ys.empty() ? "" : " ") + ValueText(point.y);
    }
    return fmt::format(" data-name=\"{}\" data-x=\"{}\" data-y=\"{}\"", Escaped(name), xs, ys);
  }

  /// One cross per column.
  void DrawCrosses(const Scale& x) {
    std::vector<Point> places;
    for (const ChartMark& mark : chart_.marks)
      if (mark.kind == ChartMark::Kind::kNotFinite) places.push_back({mark.x, 0});
    std::ranges::sort(places, {}, &Point::x);
    std::string path;
    for (const Point& place : FirstOfColumns(places, x_extent_.low, x_extent_.high, chart_.columns))
      path += fmt::format("M{0} {1}l{2} {2}m0 -{2}l-{2} {2}", Pixels(x.At(place.x) - kCross), Pixels(frame_.top()),
                          2 * kCross);
    if (!path.empty()) frame_.svg().Raw(fmt::format("<path class=\"cross\" d=\"{}\"/>\n", path));
  }

  const LineChart& chart_;
  ChartFrame frame_;
  Extent x_extent_, y_extent_;
  std::vector<double> values_;
};

}  // namespace

Drawing DrawLineChart(const LineChart& chart) { return LineChartDrawer(chart).Draw(); }

std::vector<Point> Smoothed(const std::vector<Point>& points, double smooth) {
  std::vector<Point> smoothed;
  double sum = 0, weight = 0;
  for (const Point& point : points) {
    if (!std::isnan(point.y)) {
      sum = smooth * sum + point.y;
      weight = smooth * weight + 1;
    }
    smoothed.push_back({point.x, std::isnan(point.y) ? point.y : sum / weight});
  }
  return smoothed;
}

}  // namespace espalier
