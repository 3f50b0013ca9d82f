// Forward only, for evaluation and sampling: microbatches stream through the stages, and no activation outlives its
// job.
//
//   stage 0 | F0 F1 F2 F3 F4 F5 F6 F7 ........
//   stage 1 | .. F0 F1 F2 F3 F4 F5 F6 F7 .....
//   stage 2 | ..... F0 F1 F2 F3 F4 F5 F6 F7 ..
//   stage 3 | ........ F0 F1 F2 F3 F4 F5 F6 F7
#include "espalier/schedule/schedule.hpp"
#include "schedule/jobs.hpp"

namespace espalier {

Schedule ForwardOnly(int stages, int microbatches) {
  Schedule schedule = OneChunkPerStage(kForwardOnly, stages, microbatches);
  for (int stage = 0; stage < stages; ++stage) {
    for (int i = 0; i < microbatches; ++i) schedule.jobs[static_cast<size_t>(stage)].push_back(ForwardJob(stage, i));
  }
  return schedule;
}

}  // namespace espalier
