#include "timeline/picture/time_axis.hpp"

#include <fmt/core.h>

#include "espalier/svg/ticks.hpp"

namespace espalier {
namespace {

struct Unit {
  const char* name;
  double us;
};

/// The unit in which `us` is at least 1; microseconds if it is less.
Unit UnitOf(double us) {
  for (const Unit& unit : {Unit{"s", 1e6}, Unit{"ms", 1e3}})
    if (us >= unit.us) return unit;
  return {"µs", 1};
}

}  // namespace

std::vector<Tick> TicksOf(double begin_us, double end_us, int most) {
  std::vector<Tick> ticks;
  const Unit unit = UnitOf(end_us);
  for (const double us : RoundValues(begin_us, end_us, most))
    ticks.push_back({us, fmt::format("{:.10g}", us / unit.us)});
  if (!ticks.empty()) ticks.back().label += fmt::format(" {}", unit.name);
  return ticks;
}

std::string TimeText(double us) {
  const Unit unit = UnitOf(us);
  return fmt::format("{:.4g} {}", us / unit.us, unit.name);
}

}  // namespace espalier
