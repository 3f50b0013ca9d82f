#include "espalier/comm/lane_counts.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"
#include "pause.hpp"

namespace espalier {

void LaneCounts::Reset() {
  for (State& state : lanes_) state.count.store(0, std::memory_order_release);
  failed_.store(false, std::memory_order_release);
}

bool LaneCounts::Met(std::span<const Wait> waits) const {
  return std::all_of(waits.begin(), waits.end(), [this](const Wait& wait) { return Met(wait); });
}

// Sequentially consistent on both sides: either the raiser sees the sleeper's mark, or the sleeper sees the new count.
void LaneCounts::Raise(Lane lane) {
  State& state = At(lane);
  const int count = state.count.fetch_add(1) + 1;
  if (count < state.wake_at.load()) return;
  {
    std::lock_guard lock(state.mutex);
    state.wake_at.store(kNobody);
  }
  state.raised.notify_all();
}

bool LaneCounts::Spin(const Wait& wait) const {
  constexpr int kLooks = 100;
  for (int i = 0; i < kLooks; ++i) {
    if (Met(wait)) return true;
    RelaxCore();
  }
  return false;
}

bool LaneCounts::AwaitFor(const Wait& wait, std::chrono::microseconds limit) {
  CHECK(!Failed(), "the step has failed in another thread");
  if (Spin(wait)) return true;
  State& state = At(wait.lane);
  const auto met = [&] {
    if (state.wake_at.load() > wait.count) state.wake_at.store(wait.count);
    return state.count.load() >= wait.count || Failed();
  };
  std::unique_lock lock(state.mutex);
  const bool ended = state.raised.wait_for(lock, limit, met);
  CHECK(!Failed(), "the step has failed in another thread");
  return ended;
}

void LaneCounts::Await(const Wait& wait) {
  while (!AwaitFor(wait, std::chrono::seconds(1))) {
  }
}

void LaneCounts::Fail() {
  failed_.store(true);
  for (State& state : lanes_) {
    { std::lock_guard lock(state.mutex); }
    state.raised.notify_all();
  }
}

}  // namespace espalier
