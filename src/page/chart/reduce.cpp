#include "page/chart/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace espalier {
namespace {

int ColumnOf(double x, double begin, double end, int columns) {
  if (end <= begin) return 0;
  return static_cast<int>(std::clamp(std::floor((x - begin) / (end - begin) * columns), 0.0, columns - 1.0));
}

/// Calls visit(first, last + 1) for the points of each column that is not empty.
template <typename Visit>
void ForEachColumn(const std::vector<Point>& points, double begin, double end, int columns, Visit visit) {
  for (size_t first = 0, last = 0; first < points.size(); first = last) {
    const int column = ColumnOf(points[first].x, begin, end, columns);
    while (last < points.size() && ColumnOf(points[last].x, begin, end, columns) == column) ++last;
    visit(first, last);
  }
}

bool Lower(const Point& a, const Point& b) { return a.y < b.y; }

}  // namespace

std::vector<Point> KeepExtremes(const std::vector<Point>& points, double begin, double end, int columns) {
  std::vector<Point> kept;
  const auto iterator = [&](size_t i) { return points.begin() + static_cast<std::ptrdiff_t>(i); };
  ForEachColumn(points, begin, end, columns, [&](size_t first, size_t last) {
    std::vector<std::ptrdiff_t> chosen = {std::min_element(iterator(first), iterator(last), Lower) - points.begin(),
                                          std::max_element(iterator(first), iterator(last), Lower) - points.begin()};
    if (first == 0) chosen.push_back(0);
    if (last == points.size()) chosen.push_back(std::ssize(points) - 1);
    std::ranges::sort(chosen);
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const std::ptrdiff_t i : chosen) kept.push_back(points[static_cast<size_t>(i)]);
  });
  return kept;
}

std::vector<Point> FirstOfColumns(const std::vector<Point>& points, double begin, double end, int columns) {
  std::vector<Point> kept;
  ForEachColumn(points, begin, end, columns, [&](size_t first, size_t) { kept.push_back(points[first]); });
  return kept;
}

}  // namespace espalier
