#include "espalier/comm/lane_counts.hpp"

#include <algorithm>

#include "comm/pause.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

void LaneCounts::Reset() {
  progress_->runs.store(progress_->runs.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (std::atomic<int32_t>& done : progress_->done) done.store(0, std::memory_order_relaxed);
  for (State& state : lanes_) state.count.store(0, std::memory_order_release);
  copies_.store(0);
  failed_.store(false, std::memory_order_release);
}

bool LaneCounts::Met(std::span<const Wait> waits) const {
  return std::all_of(waits.begin(), waits.end(), [this](const Wait& wait) { return Met(wait); });
}

// Sequentially consistent on both sides: either this thread sees the sleeper's wake_at, or the sleeper sees the new
// count.
void LaneCounts::Raise(Lane lane) {
  State& state = At(lane);
  const int count = state.count.fetch_add(1) + 1;
  progress_->done[static_cast<size_t>(lane)].store(count, std::memory_order_relaxed);
  if (IsCopyLane(lane)) {
    State& compute = At(Lane::kCompute);
    {
      std::lock_guard lock(compute.mutex);
      ++copies_;
    }
    compute.raised.notify_all();
  }
  if (count < state.wake_at.load()) return;
  {
    std::lock_guard lock(state.mutex);
    state.wake_at.store(kNobody);
  }
  state.raised.notify_all();
}

bool LaneCounts::Spin(const Wait& wait) const {
  constexpr int kPolls = 100;
  for (int i = 0; i < kPolls; ++i) {
    if (Met(wait)) return true;
    RelaxCore();
  }
  return false;
}

/// Sleeps until the wait is met, `until` returns true, the step has failed, or `limit` is over; false in the last
/// case.
template <typename Until>
bool LaneCounts::Sleep(State& state, const Wait& wait, std::chrono::microseconds limit, Until until) {
  std::unique_lock lock(state.mutex);
  const bool ended = state.raised.wait_for(lock, limit, [&] {
    if (state.wake_at.load() > wait.count) state.wake_at.store(wait.count);
    return state.count.load() >= wait.count || until() || Failed();
  });
  CHECK(!Failed(), "the step has failed in another thread");
  return ended;
}

bool LaneCounts::AwaitFor(const Wait& wait, std::chrono::microseconds limit) {
  CHECK(!Failed(), "the step has failed in another thread");
  if (Spin(wait)) return true;
  if (!IsMessageLane(wait.lane)) return Sleep(At(wait.lane), wait, limit, [] { return false; });
  // Wakes the communication thread, which dozes while nobody waits for it.
  struct Mark {
    std::atomic<int>& awaited;
    explicit Mark(std::atomic<int>& a) : awaited(a) { ++awaited; }
    ~Mark() { --awaited; }
  } mark(comm_awaited_);
  State& compute = At(Lane::kCompute);
  { std::lock_guard lock(compute.mutex); }
  compute.raised.notify_all();
  return Sleep(At(wait.lane), wait, limit, [] { return false; });
}

void LaneCounts::Doze(int compute, std::chrono::microseconds limit) {
  Sleep(At(Lane::kCompute), {Lane::kCompute, compute}, limit, [this] { return CommAwaited(); });
}

bool LaneCounts::AwaitComputeOrCopy(int compute, int copies, std::chrono::microseconds limit) {
  const Wait wait{Lane::kCompute, compute};
  return Spin(wait) || Sleep(At(Lane::kCompute), wait, limit, [&] { return copies_.load() != copies; });
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
