// 1F1B (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, PipeDream-Flush): stage
// r warms up with p - 1 - r forwards, then alternates one forward and one backward, then drains. The bubble is GPipe's,
// (p - 1)(F + B + W), but stage r keeps the activations of only min(m, p - r) microbatches.
// With SteadyState::kJoint it warms up with 2(p - 1 - r) + 1 forwards and keeps the activations of min(m, 2(p - r))
// microbatches; the bubble stays.
//
//   stage 0 | F0 F1 F2 F3 ................. BW0== F4 BW1== F5 BW2== F6 BW3== F7 BW4== .. BW5== .. BW6== .. BW7==
//   stage 1 | .. F0 F1 F2 ........... BW0== F3 BW1== F4 BW2== F5 BW3== F6 BW4== F7 BW5== .. BW6== .. BW7== .....
//   stage 2 | ..... F0 F1 ..... BW0== F2 BW1== F3 BW2== F4 BW3== F5 BW4== F6 BW5== F7 BW6== .. BW7== ...........
//   stage 3 | ........ F0 BW0== F1 BW1== F2 BW2== F3 BW3== F4 BW4== F5 BW5== F6 BW6== F7 BW7== .................
#include <algorithm>

#include "espalier/schedule/schedule.hpp"
#include "schedule/jobs.hpp"

namespace espalier {

Schedule OneFOneB(int stages, int microbatches, SteadyState steady) {
  Schedule schedule = NoJobs(ScheduleKind::k1F1B, stages, microbatches, Looped(stages, 1));
  for (int stage = 0; stage < stages; ++stage) {
    auto& jobs = schedule.jobs[stage];
    const int below = stages - 1 - stage;
    const int warmup = std::min(microbatches, steady == SteadyState::kJoint ? 2 * below + 1 : below);
    // Warm-up.
    for (int i = 0; i < warmup; ++i) jobs.push_back(ForwardJob(stage, i));
    // Steady state: one forward, one backward.
    for (int i = warmup; i < microbatches; ++i)
      AddForwardAndBackward(jobs, ForwardJob(stage, i), BackwardJob(stage, i - warmup), steady);
    // Drain.
    for (int i = microbatches - warmup; i < microbatches; ++i) jobs.push_back(BackwardJob(stage, i));
  }
  return schedule;
}

}  // namespace espalier
