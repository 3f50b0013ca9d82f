// Threads of the cpu kernels. Work is split into parts that no two threads share, and no sum crosses parts, so results
// do not depend on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "threads.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Calls f(begin, end) on adjacent parts of [0, n), one per thread, cut at multiples of `grain`. Fewer than two grains
/// run on the calling thread alone: choose a grain with enough work to be worth waking a thread.
template <typename F>
void ParallelRanges(int64_t n, int64_t grain, F f) {
  const int64_t grains = (n + grain - 1) / grain;
  const auto threads = static_cast<int>(std::min<int64_t>(Threads(), grains));
  if (threads <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    const int64_t begin = grains * part / parts * grain, end = std::min(n, grains * (part + 1) / parts * grain);
    if (begin < end) f(begin, end);
  }
}

/// Calls f(i) for i in [0, n), handed out one by one: for few tasks of unequal size.
template <typename F>
void ParallelTasks(int64_t n, F f) {
  const auto threads = static_cast<int>(std::min<int64_t>(Threads(), n));
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < n; ++i) f(i);
}

/// A part with less work than this number of elements stays on one thread.
inline constexpr int64_t kWorthAThread = 16384;

/// Rows of `width` elements that are worth a thread.
inline int64_t RowGrain(int64_t width) { return std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(width, 1)); }

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
