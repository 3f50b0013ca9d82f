// Forward only, for evaluation and sampling: microbatches stream through the chunks, each as early as possible without
// two of them on one stage at a time. No activation outlives its job.
//
//   stage 0 | F0 F1 F2 F3 F4 F5 F6 F7 ........
//   stage 1 | .. F0 F1 F2 F3 F4 F5 F6 F7 .....
//   stage 2 | ..... F0 F1 F2 F3 F4 F5 F6 F7 ..
//   stage 3 | ........ F0 F1 F2 F3 F4 F5 F6 F7
#include <algorithm>
#include <map>

#include "schedule/jobs.hpp"

namespace espalier {

Schedule ForwardOnly(std::vector<int> stage_of_chunk, int microbatches) {
  const int stages = *std::max_element(stage_of_chunk.begin(), stage_of_chunk.end()) + 1;
  Schedule schedule = NoJobs(ScheduleKind::kForwardOnly, stages, microbatches, std::move(stage_of_chunk));
  std::vector<std::map<int, Job>> at(stages);  // by stage, then by time; a chunk takes one unit
  const auto stage_at = [&](int chunk) -> auto& { return at[schedule.stage_of_chunk[chunk]]; };
  const auto collides = [&](int start) {
    for (int c = 0; c < schedule.Chunks(); ++c)
      if (stage_at(c).count(start + c) > 0) return true;
    return false;
  };
  // Every microbatch starts at the first time at which all its chunks find their stage free.
  for (int i = 0, start = 0; i < microbatches; ++i) {
    while (collides(start)) ++start;
    for (int c = 0; c < schedule.Chunks(); ++c) stage_at(c)[start + c] = ForwardJob(c, i);
  }
  for (size_t stage = 0; stage < at.size(); ++stage)
    for (auto& [time, job] : at[stage]) schedule.jobs[stage].push_back(std::move(job));
  return schedule;
}

}  // namespace espalier
