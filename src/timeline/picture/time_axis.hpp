// Ticks of a time axis, and times for people.
#pragma once

#include <string>
#include <vector>

namespace espalier {

struct Tick {
  double us = 0;
  std::string label;  ///< "0", "20", "40": with the unit at the last one
};

/// Ticks at round multiples within [begin, end], at most `most` of them and at least about a third of that.
std::vector<Tick> TicksOf(double begin_us, double end_us, int most);

/// Four significant digits: "812.3 ms", "1.204 s", "35 µs".
std::string TimeText(double us);

}  // namespace espalier
