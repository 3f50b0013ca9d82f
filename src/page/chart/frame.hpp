// Common parts of all charts: title, legend, axes, grid, and lines across.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/svg/svg.hpp"
#include "page/chart/scale.hpp"

namespace espalier {

struct ChartSize {
  double width = 520, height = 250;
};
inline constexpr ChartSize kWideChart = {1060, 330};

/// An entry of the legend: its words, and a sample of a CSS class.
struct LegendEntry {
  enum class Sample : uint8_t { kLine, kSquare, kDot };
  std::string words, css_class;
  Sample sample = Sample::kLine;
};

/// Texts around the values of a chart.
struct ChartText {
  std::string title;    ///< "gradient norm"
  std::string unit;     ///< unit of y: "ms"; may be empty
  std::string x_title;  ///< "step"
};

/// The path of a circle around (x, y).
std::string DotPath(double x, double y);

/// The area for values, and the drawing so far.
class ChartFrame {
 public:
  ChartFrame(ChartText text, ChartSize size, std::vector<LegendEntry> legend);

  double left() const { return 62; }
  double right() const { return size_.width - 14; }
  double top() const { return top_; }
  double bottom() const { return size_.height - 34; }

  /// With ticks at integers. The axis passes its values and pixels to the script of the page.
  void DrawXAxis(const Scale& x);
  void DrawYAxis(const Scale& y);
  /// A vertical line through the area for values.
  void DrawMark(double x, std::string_view css_class);
  Svg& svg() { return svg_; }

  /// The finished drawing. `content` describes it for readers who cannot see it.
  Drawing Done(const std::string& content) const;

 private:
  void DrawLegend();
  void DrawSample(const LegendEntry& entry, double x, double y);

  ChartText text_;
  ChartSize size_;
  std::vector<LegendEntry> legend_;
  double top_ = 34;
  Svg svg_;
};

}  // namespace espalier
