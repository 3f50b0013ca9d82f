// Reduces points to the number that a screen can show.
#pragma once

#include <vector>

namespace espalier {

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

/// The first points with the smallest and with the largest y in each of `columns` equal parts of [begin, end], and the
/// first and last of all points. So no spike is lost. In the given order; x ascends. Points outside count to the first
/// or last part.
std::vector<Point> KeepExtremes(const std::vector<Point>& points, double begin, double end, int columns);

/// One point of each column: the first.
std::vector<Point> FirstOfColumns(const std::vector<Point>& points, double begin, double end, int columns);

}  // namespace espalier
