// GPipe (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", arXiv
// 1811.06965): all forwards, then all backwards. Every stage keeps the activations of all m microbatches; the bubble is
// (p - 1)(F + B + W). The paper runs the backwards in reverse order. Here they run in microbatch order, as in every
// schedule, so that all schedules sum gradients in the same order and agree bitwise.
//
//   stage 0 | F0 F1 F2 F3 .......................... BW0== BW1== BW2== BW3==
//   stage 1 | .. F0 F1 F2 F3 ................. BW0== BW1== BW2== BW3== .....
//   stage 2 | ..... F0 F1 F2 F3 ........ BW0== BW1== BW2== BW3== ...........
//   stage 3 | ........ F0 F1 F2 F3 BW0== BW1== BW2== BW3== .................
#include "espalier/schedule/schedule.hpp"
#include "schedule/jobs.hpp"

namespace espalier {

Schedule GPipe(int stages, int microbatches) {
  Schedule schedule = NoJobs(ScheduleKind::kGPipe, stages, microbatches, Looped(stages, 1));
  for (int stage = 0; stage < stages; ++stage) {
    auto& jobs = schedule.jobs[stage];
    // Fill.
    for (int i = 0; i < microbatches; ++i) jobs.push_back(ForwardJob(stage, i));
    // Drain.
    for (int i = 0; i < microbatches; ++i) jobs.push_back(BackwardJob(stage, i));
  }
  return schedule;
}

}  // namespace espalier
