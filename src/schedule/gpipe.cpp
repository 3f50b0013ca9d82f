// GPipe (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", arXiv
// 1811.06965): all forwards, then all backwards. Every stage keeps the activations of all m microbatches; the bubble is
// (p - 1)(F + B + W). The paper runs the backwards in reverse order. Here they run in microbatch order, as in every
// schedule, so that all schedules sum gradients in the same order and agree bitwise.
//
//   stage 0 | F0 F1 F2 F3 .......................... BW0== BW1== BW2== BW3==
//   stage 1 | .. F0 F1 F2 F3 ................. BW0== BW1== BW2== BW3== .....
//   stage 2 | ..... F0 F1 F2 F3 ........ BW0== BW1== BW2== BW3== ...........
//   stage 3 | ........ F0 F1 F2 F3 BW0== BW1== BW2== BW3== .................
#include <algorithm>

#include "espalier/schedule/schedule.hpp"
#include "schedule/jobs.hpp"

namespace espalier {

Schedule ForwardThenBackward(std::vector<int> stage_of_chunk, int microbatches) {
  const int stages = *std::ranges::max_element(stage_of_chunk) + 1;
  Schedule schedule = NoJobs(ScheduleKind::kGPipe, stages, microbatches, std::move(stage_of_chunk));
  const auto jobs_of = [&](int chunk) -> auto& { return schedule.jobs[schedule.stage_of_chunk[chunk]]; };
  // Fill.
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk)
    for (int i = 0; i < microbatches; ++i) jobs_of(chunk).push_back(ForwardJob(chunk, i));
  // Drain.
  for (int chunk = schedule.Chunks(); chunk-- > 0;)
    for (int i = 0; i < microbatches; ++i) jobs_of(chunk).push_back(BackwardJob(chunk, i));
  return schedule;
}

Schedule GPipe(int stages, int microbatches) { return ForwardThenBackward(Looped(stages, 1), microbatches); }

}  // namespace espalier
