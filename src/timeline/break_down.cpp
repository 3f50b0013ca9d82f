#include <numeric>

#include "timeline/sweep.hpp"

namespace espalier {

void Count(Breakdown& total, const Interval& interval, double us) {
  if (interval.kernel >= 0)
    total.compute_us += us;
  else if (interval.exposed < 0)
    total.idle_us += us;
  for (CommAxis axis : kAllCommAxes) {
    if (!interval.transfers[axis]) continue;
    const bool exposed = static_cast<int>(axis) == interval.exposed;
    (exposed ? total.exposed_us : total.hidden_us)[axis] += us;
  }
}

double CommTimes::ExposedMs() const { return std::accumulate(exposed_ms.begin(), exposed_ms.end(), 0.0); }

CommTimes CommTimesOf(const Breakdown& breakdown) {
  CommTimes times;
  for (const CommAxis axis : kAllCommAxes) {
    times.exposed_ms[axis] = breakdown.exposed_us[axis] * 1e-3;
    times.hidden_ms[axis] = breakdown.hidden_us[axis] * 1e-3;
  }
  return times;
}

Breakdown BreakDown(const Track& track, double step_us) {
  Breakdown total;
  Sweep(track, step_us, [&](const Interval& interval) { Count(total, interval, interval.end_us - interval.begin_us); });
  return total;
}

}  // namespace espalier
