#include "timeline/sweep.hpp"

namespace espalier {
namespace {

ByCommAxis<bool> AxesOf(const ByLane<bool>& transfer) {
  ByCommAxis<bool> axes{};
  for (Lane lane : kLanes)
    if (lane != Lane::kCompute && transfer[lane]) axes[CommAxisOf(lane)] = true;
  return axes;
}

}  // namespace

Breakdown BreakDown(const Track& track, double step_us) {
  Breakdown total;
  Sweep(track, step_us, [&](const Interval& interval) {
    const double us = interval.end_us - interval.begin_us;
    if (interval.compute)
      total.compute_us += us;
    else if (interval.exposed < 0)
      total.idle_us += us;
    const ByCommAxis<bool> transfers = AxesOf(interval.transfer);
    for (CommAxis axis : kCommAxes)
      if (transfers[axis])
        (static_cast<int>(axis) == interval.exposed ? total.exposed_us : total.hidden_us)[axis] += us;
  });
  return total;
}

}  // namespace espalier
