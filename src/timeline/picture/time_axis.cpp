#include "timeline/picture/time_axis.hpp"

#include <fmt/format.h>

#include <cmath>

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

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

}  // namespace

std::vector<Tick> TicksOf(double begin_us, double end_us, int most) {
  std::vector<Tick> ticks;
  if (end_us <= begin_us) return ticks;
  const double step = RoundStep((end_us - begin_us) / most);
  const Unit unit = UnitOf(end_us);
  for (double n = std::ceil(begin_us / step - 1e-9) + 0.0; n * step <= end_us * (1 + 1e-9); ++n)
    ticks.push_back({n * step, fmt::format("{:.10g}", n * step / unit.us)});
  if (!ticks.empty()) ticks.back().label += fmt::format(" {}", unit.name);
  return ticks;
}

std::string TimeText(double us) {
  const Unit unit = UnitOf(us);
  return fmt::format("{:.4g} {}", us / unit.us, unit.name);
}

}  // namespace espalier
