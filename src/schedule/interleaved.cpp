// Interleaved 1F1B (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", arXiv 2104.04473): v chunks per stage, chunk c on stage c % p. Microbatches pass through the chunks in
// blocks of n >= p, so that the first of a block is back at a stage when the last has left it. The bubble is (p - 1)(F
// + B + W) / v; the stages send v times as much. With SteadyState::kJoint a stage warms up with one more forward.
// Labels are microbatch.chunk; each stage takes two lines here.
//
//   stage 0 | F0.0 F1.0 F0.2 F1.2 F2.0 .... BW0.2==== F3.0 BW1.2==== F2.2 BW0.0==== F3.2 BW1.0==== .... BW2.2==== ....
//             BW3.2==== BW2.0==== BW3.0====
//   stage 1 | .... F0.1 F1.1 F0.3 BW0.3==== F1.3 BW1.3==== F2.1 BW0.1==== F3.1 BW1.1==== F2.3 BW2.3==== F3.3 BW3.3====
//             BW2.1==== BW3.1==== .........
#include <algorithm>

#include "schedule/jobs.hpp"

namespace espalier {

int BlockOf(int stages, int microbatches) {
  int block = stages;
  while (microbatches % block != 0 && microbatches % block < stages) ++block;
  return block;
}

std::vector<std::pair<int, int>> ForwardOrder(int block, int chunks, int microbatches) {
  std::vector<std::pair<int, int>> order;
  for (int begin = 0; begin < microbatches; begin += block)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = begin; i < std::min(begin + block, microbatches); ++i) order.emplace_back(chunk, i);
  return order;
}

Schedule Interleaved(int stages, int chunks_per_stage, int microbatches, SteadyState steady) {
  Schedule schedule = NoJobs(ScheduleKind::kInterleaved, stages, microbatches, Looped(stages, chunks_per_stage));
  const int block = BlockOf(stages, microbatches), all = chunks_per_stage * microbatches;
  const auto order = ForwardOrder(block, chunks_per_stage, microbatches);
  for (int stage = 0; stage < stages; ++stage) {
    auto& jobs = schedule.jobs[stage];
    const int one_more = steady == SteadyState::kJoint ? 1 : 0;
    const int warmup = std::min(all, 2 * (stages - 1 - stage) + (chunks_per_stage - 1) * block + one_more);
    const auto forward = [&](int k) {
      const auto [chunk, microbatch] = order[k];
      return ForwardJob(chunk * stages + stage, microbatch);
    };
    const auto backward = [&](int k) {
      const auto [chunk, microbatch] = order[k];
      return BackwardJob((chunks_per_stage - 1 - chunk) * stages + stage, microbatch);
    };
    // Warm-up: `warmup` forwards. Steady state: one forward, one backward. Drain: `warmup` backwards.
    for (int k = 0; k < warmup; ++k) jobs.push_back(forward(k));
    for (int k = warmup; k < all; ++k) AddForwardAndBackward(jobs, forward(k), backward(k - warmup), steady);
    for (int k = all - warmup; k < all; ++k) jobs.push_back(backward(k));
  }
  return schedule;
}

}  // namespace espalier
