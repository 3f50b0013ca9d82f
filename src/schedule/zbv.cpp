// ZB-V (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362): two chunks per stage in the
// shape of a V, so that the loss is on the stage of the first chunk and backward starts where forward ended. The bubble
// is (p - 1) max(B / 2, B - W), of times of a whole stage; activations of p microbatches are kept, as many as with
// 1F1B. Labels are microbatch.chunk; each stage takes two lines here.
//
//   stage 0 | F0.0 F1.0 F2.0 F0.3 B0.3 W0.3 F1.3 B1.3 W1.3 F3.0 B0.0 W0.0 F2.3 B2.3 W2.3 B1.0 W1.0 F3.3 B3.3 W3.3 B2.0
//             W2.0 B3.0 W3.0 ....
//   stage 1 | .... F0.1 F0.2 F1.1 F1.2 B0.2 W0.2 F2.1 B0.1 W0.1 F2.2 B1.2 W1.2 F3.1 B1.1 W1.1 F3.2 B2.2 W2.2 B2.1 B3.2
//             B3.1 W2.1 W3.2 W3.1
#include <algorithm>

#include "schedule/jobs.hpp"

namespace espalier {

Schedule ZeroBubbleV(int stages, int microbatches) {
  Schedule schedule = NoJobs(ScheduleKind::kZeroBubbleV, stages, microbatches, VShaped(stages));
  // With too few microbatches to fill the pipeline, the missing ones leave gaps.
  const int filled = std::max(microbatches, 2 * stages - 1);
  for (int stage = 0; stage < stages; ++stage) {
    JobWriter jobs(schedule, stage);
    const int down = stage, up = 2 * stages - 1 - stage;
    const auto backward = [&](int chunk) { jobs.B(chunk), jobs.W(chunk); };
    // Warm-up: downward chunks, then both, then the first backwards of the upward chunk.
    for (int i = 0; i < 2 * (stages - stage) - 1; ++i) jobs.F(down);
    for (int i = 0; i < stage; ++i) jobs.F(up), jobs.F(down);
    for (int i = 0; i < stages - stage; ++i) jobs.F(up), backward(up);
    // Steady state: F, B and W of the downward chunk, then of the upward chunk.
    while (jobs.Count(up, Role::kF) < filled) {
      if (jobs.Count(down, Role::kF) < filled) jobs.F(down);
      backward(down);
      jobs.F(up);
      backward(up);
    }
    // Drain: B first, so that gradients are sent early; then the deferred W.
    for (int i = 0; i < stage; ++i) jobs.B(down), jobs.B(up);
    for (int i = 0; i < stages - stage; ++i) backward(down);
    while (jobs.Count(up, Role::kW) < filled) jobs.W(up);
    while (jobs.Count(down, Role::kW) < filled) jobs.W(down);
  }
  return schedule;
}

}  // namespace espalier
