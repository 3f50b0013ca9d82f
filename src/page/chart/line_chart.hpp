// Curves over steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "page/chart/frame.hpp"
#include "page/chart/reduce.hpp"

namespace espalier {

/// How a curve is drawn.
enum class CurveLook : uint8_t {
  kLine,     ///< the curve itself
  kBehind,   ///< pale and thin: the values from which a line was smoothed
  kGivenUp,  ///< dashed and pale
  kDots,
};

struct Curve {
  std::string name;
  CurveLook look = CurveLook::kLine;
  size_t colour = 0;  ///< index of the run
  /// Ascending x. A y that is NaN interrupts the line.
  std::vector<Point> points;
};

/// A vertical line at `x` or, for a value that is not finite, a cross at the top.
struct ChartMark {
  enum class Kind : uint8_t { kRestart, kRollback, kNotFinite } kind = Kind::kRestart;
  double x = 0;
  size_t colour = 0;
};

struct LineChart {
  ChartText text;
  ChartSize size;
  std::vector<Curve> curves;
  std::vector<ChartMark> marks;
  int columns = 600;  ///< more points than two per column are reduced
};

/// Every value of every curve is within the axes. The y axis is logarithmic if all values are positive and the largest
/// is more than 50 times their median.
Drawing DrawLineChart(const LineChart& chart);

/// Moving average with weights smooth^(i - k) of the values k <= i; NaNs are skipped and stay NaN.
std::vector<Point> Smoothed(const std::vector<Point>& points, double smooth);

}  // namespace espalier
