#include "comm_clock.hpp"

#include <algorithm>

namespace espalier {

void CommClock::Reset() {
  for (const CommAxis axis : kAllCommAxes) {
    waits_[axis].clear();
    transfers_[axis].clear();
  }
}

void CommClock::Waited(Lane lane, double begin_us, double end_us) {
  waits_[CommAxisOf(lane)].push_back({begin_us, end_us});
}

void CommClock::Transferred(Lane lane, double begin_us, double end_us) {
  if (lane != Lane::kPpRecv) transfers_[CommAxisOf(lane)].push_back({begin_us, end_us});
}

CommTimes CommClock::Times() const {
  CommTimes times;
  for (const CommAxis axis : kAllCommAxes) {
    double exposed_us = 0, hidden_us = 0;
    for (const Interval& wait : waits_[axis]) exposed_us += wait.end_us - wait.begin_us;
    auto wait = waits_[axis].begin();
    for (const Interval& transfer : transfers_[axis]) {
      hidden_us += transfer.end_us - transfer.begin_us;
      while (wait != waits_[axis].end() && wait->end_us <= transfer.begin_us) ++wait;
      for (auto w = wait; w != waits_[axis].end() && w->begin_us < transfer.end_us; ++w)
        hidden_us -= std::min(w->end_us, transfer.end_us) - std::max(w->begin_us, transfer.begin_us);
    }
    times.exposed_ms[axis] = exposed_us * 1e-3;
    times.hidden_ms[axis] = std::max(0.0, hidden_us) * 1e-3;
  }
  return times;
}

}  // namespace espalier
