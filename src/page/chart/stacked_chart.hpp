// Parts of a whole: as stacked areas over an axis, and as one bar.
#pragma once

#include <string>
#include <vector>

#include "page/chart/frame.hpp"

namespace espalier {

/// One part, from the lowest to the highest.
struct Layer {
  std::string name, css_class;
  std::vector<double> values;  ///< by interval, not negative
};

struct StackedChart {
  ChartText text;
  ChartSize size;
  std::vector<double> edges;  ///< edges of the intervals, ascending: one more than there are intervals
  std::vector<Layer> layers;
  double mark = -1;        ///< a line at this x; negative: none
  std::string mark_words;  ///< in the legend
};

/// The y axis begins at 0 and holds the highest sum.
Drawing DrawStackedChart(const StackedChart& chart);

/// A bar per row, each as long as the others, divided by the shares of its parts.
struct ShareBar {
  std::string name;
  std::vector<double> values;  ///< by part
};
struct ShareChart {
  std::string title;
  std::vector<LegendEntry> parts;
  std::vector<ShareBar> bars;
};

Drawing DrawShareChart(const ShareChart& chart);

}  // namespace espalier
