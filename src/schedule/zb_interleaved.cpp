// ZB-H1 with v chunks per stage (PyTorch has a similar one as ScheduleInterleavedZeroBubble): microbatches pass through
// the chunks as in interleaved 1F1B, B sends its gradient at once, and stage r runs W r jobs later, in the drain. The
// bubble is about (p - 1)(F + B - W), of times of a chunk, a v-th of ZB-H1's. If p divides m, every stage keeps the
// activations of p microbatches, fewer than interleaved 1F1B does. Labels are microbatch.chunk; each stage takes two
// lines here.
//
//   stage 0 | F0.0 F1.0 F0.2 F1.2 .... B0.2 W0.2 F2.0 B1.2 W1.2 F3.0 B0.0 W0.0 F2.2 B1.0 W1.0 F3.2 B2.2 W2.2 B3.2
//             W3.2 B2.0 W2.0 B3.0 W3.0
//   stage 1 | .... F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 W0.3 F2.1 B0.1 W1.3 F3.1 B1.1 W0.1 F2.3 B2.3 W1.1 F3.3 B3.3 W2.3
//             B2.1 W3.3 B3.1 W2.1 W3.1
#include <algorithm>

#include "schedule/jobs.hpp"

namespace espalier {

Schedule ZeroBubbleInterleaved(int stages, int chunks_per_stage, int microbatches) {
  Schedule schedule =
      NoJobs(ScheduleKind::kZeroBubbleInterleaved, stages, microbatches, Looped(stages, chunks_per_stage));
  const int block = BlockOf(stages, microbatches), all = chunks_per_stage * microbatches;
  const auto order = ForwardOrder(block, chunks_per_stage, microbatches);
  for (int stage = 0; stage < stages; ++stage) {
    auto& jobs = schedule.jobs[stage];
    const int warmup = std::min(all, stages - 1 - stage + (chunks_per_stage - 1) * block), lag = stage;
    const auto forward = [&](int k) {
      const auto [chunk, microbatch] = order[k];
      jobs.push_back(ForwardJob(chunk * stages + stage, microbatch));
    };
    const auto backward = [&](int k, Role role) {
      const auto [chunk, microbatch] = order[k];
      jobs.push_back({{{(chunks_per_stage - 1 - chunk) * stages + stage, role, microbatch}}});
    };
    // Warm-up.
    for (int k = 0; k < warmup; ++k) forward(k);
    // Steady state, then the drain of B.
    for (int k = 0; k < all; ++k) {
      if (warmup + k < all) forward(warmup + k);
      backward(k, Role::kB);
      if (k >= lag) backward(k - lag, Role::kW);
    }
    // Drain: the deferred W.
    for (int k = std::max(0, all - lag); k < all; ++k) backward(k, Role::kW);
  }
  return schedule;
}

}  // namespace espalier
