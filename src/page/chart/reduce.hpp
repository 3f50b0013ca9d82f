// Fewer points where a screen cannot show them all.
#pragma once

#include <vector>

namespace espalier {

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

/// Of the points of each of `columns` equal parts of [begin, end] the first with the smallest y and the first with the
/// largest; of all points the first and the last, too. So no spike is lost. In the given order; x ascends. Points
/// outside are in the first or last part.
std::vector<Point> KeepExtremes(const std::vector<Point>& points, double begin, double end, int columns);

/// One point of each column: the first.
std::vector<Point> FirstOfColumns(const std::vector<Point>& points, double begin, double end, int columns);

}  // namespace espalier
