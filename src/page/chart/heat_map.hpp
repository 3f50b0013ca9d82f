// Values of rows and columns as colours, each relative to 1.
#pragma once

#include <string>
#include <vector>

#include "page/chart/frame.hpp"

namespace espalier {

/// A row of cells, from column 0 on.
struct HeatRow {
  std::string label;  ///< beside the row, "12"
  std::string name;   ///< for a pointer over it, "layer 12"
  std::vector<double> values;
  std::vector<std::string> words;  ///< of each value, for a pointer over it; without a space
};

struct HeatMap {
  ChartText text;  ///< `unit` is not used
  std::string row_title;
  std::vector<HeatRow> rows;  ///< from the top; all have equally many values
};

/// The class of colours of a value: h0 is 0, h4 around 1, h7 above 4; "" if it is not finite.
std::string HeatClassOf(double value);

Drawing DrawHeatMap(const HeatMap& map);

}  // namespace espalier
