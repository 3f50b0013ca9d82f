// GPipe (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", arXiv
// 1811.06965): all forwards, then all backwards. Every stage keeps the activations of all m microbatches and idles
// (p - 1)(F + B + W). The paper runs the backwards in reverse; here they run in microbatch order, as in every schedule,
// so that gradients are summed in the same order and all schedules agree to the bit.
//
//   stage 0 | F0 F1 F2 F3 .......................... BW0== BW1== BW2== BW3==
//   stage 1 | .. F0 F1 F2 F3 ................. BW0== BW1== BW2== BW3== .....
//   stage 2 | ..... F0 F1 F2 F3 ........ BW0== BW1== BW2== BW3== ...........
//   stage 3 | ........ F0 F1 F2 F3 BW0== BW1== BW2== BW3== .................
#include "espalier/schedule/schedule.hpp"
#include "schedule/jobs.hpp"

namespace espalier {

Schedule GPipe(int stages, int microbatches) {
  Schedule schedule = NoJobs("gpipe", stages, microbatches, Looped(stages, 1));
  for (int stage = 0; stage < stages; ++stage) {
    auto& jobs = schedule.jobs[static_cast<size_t>(stage)];
    for (int i = 0; i < microbatches; ++i) jobs.push_back(ForwardJob(stage, i));
    for (int i = 0; i < microbatches; ++i) jobs.push_back(BackwardJob(stage, i));
  }
  return schedule;
}

}  // namespace espalier
