// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241): 1F1B with deferred weight gradients.
// Stage r runs W r microbatches after B, so that the input gradient is sent at once and W fills the drain. The bubble
// is (p - 1)(F + B - W); every stage keeps the activations of p microbatches.
//
//   stage 0 | F0 F1 F2 F3 ........ B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
//   stage 1 | .. F0 F1 F2 ..... B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
//   stage 2 | ..... F0 F1 .. B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
//   stage 3 | ........ F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
#include <algorithm>

#include "schedule/jobs.hpp"

namespace espalier {

Schedule ZeroBubbleH1(int stages, int microbatches) {
  Schedule schedule = NoJobs(ScheduleKind::kZeroBubbleH1, stages, microbatches, Looped(stages, 1));
  for (int stage = 0; stage < stages; ++stage) {
    JobWriter jobs(schedule, stage);
    const int warmup = std::min(microbatches, stages - 1 - stage), lag = stage;
    // Warm-up.
    for (int i = 0; i < warmup; ++i) jobs.F(stage);
    // Steady state, then the drain of B: after the last microbatch F writes nothing.
    for (int i = 0; i < microbatches; ++i) {
      jobs.F(stage);
      jobs.B(stage);
      if (i >= lag) jobs.W(stage);
    }
    // Drain: the deferred W.
    for (int i = 0; i < std::min(lag, microbatches); ++i) jobs.W(stage);
  }
  return schedule;
}

}  // namespace espalier
