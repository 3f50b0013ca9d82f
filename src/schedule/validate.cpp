#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "schedule/jobs.hpp"
#include "schedule/replay.hpp"

namespace espalier {
namespace {

template <typename... Values>
[[noreturn]] void Refuse(const Schedule& schedule, fmt::format_string<Values...> format, Values&&... values) {
  throw InvariantError(fmt::format("schedule {} ({} stages, {} microbatches): {}", Name(schedule.kind), schedule.stages,
                                   schedule.microbatches, fmt::format(format, std::forward<Values>(values)...)));
}

void CheckShape(const Schedule& schedule) {
  if (schedule.jobs.size() != static_cast<size_t>(schedule.stages)) {
    Refuse(schedule, "there are {} job lists", schedule.jobs.size());
  }
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk) {
    const int stage = schedule.stage_of_chunk[chunk];
    if (stage < 0 || stage >= schedule.stages) Refuse(schedule, "chunk {} is on stage {}", chunk, stage);
  }
}

// Microbatches done so far, by (chunk, role): in order, so the count is also the next one allowed.
using Progress = std::map<std::pair<int, Role>, int>;

void CheckPart(const Schedule& schedule, int stage, size_t index, const Job& job, const JobPart& part,
               Progress& progress) {
  const std::string where = fmt::format("stage {}, job {} ({})", stage, index, LabelOf(schedule, job));
  if (FrequencyOf(part.role) != Frequency::kMicrobatch || (!schedule.HasBackward() && part.role != Role::kF)) {
    Refuse(schedule, "{}: role {} has no place here", where, Name(part.role));
  }
  if (part.chunk < 0 || part.chunk >= schedule.Chunks())
    Refuse(schedule, "{}: there is no chunk {}", where, part.chunk);
  if (part.microbatch < 0 || part.microbatch >= schedule.microbatches) {
    Refuse(schedule, "{}: there is no microbatch {}", where, part.microbatch);
  }
  const int home = schedule.stage_of_chunk[part.chunk];
  if (home != stage) Refuse(schedule, "{}: chunk {} is on stage {}", where, part.chunk, home);
  int& next = progress[{part.chunk, part.role}];
  if (part.microbatch < next) {
    Refuse(schedule, "{}: {} of chunk {}, microbatch {} runs twice", where, Name(part.role), part.chunk,
           part.microbatch);
  }
  if (part.microbatch > next) {
    Refuse(schedule, "{}: {} of chunk {} is out of microbatch order, {} is due", where, Name(part.role), part.chunk,
           next);
  }
  ++next;
}

void CheckComplete(const Schedule& schedule, const Progress& progress) {
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk) {
    for (Role role : {Role::kF, Role::kB, Role::kW}) {
      if (!schedule.HasBackward() && role != Role::kF) continue;
      const auto found = progress.find({chunk, role});
      const int done = found == progress.end() ? 0 : found->second;
      if (done < schedule.microbatches) {
        Refuse(schedule, "stage {}: {} of chunk {}, microbatch {} is missing", schedule.stage_of_chunk[chunk],
               Name(role), chunk, done);
      }
    }
  }
}

// Activations live from the start of F to the end of W; without a backward, to the end of F.
int PeakActivations(const Schedule& schedule, const std::vector<Job>& jobs) {
  const Role last_use = schedule.HasBackward() ? Role::kW : Role::kF;
  int live = 0;
  int peak = 0;
  for (const Job& job : jobs) {
    const auto count = [&](Role role) {
      return static_cast<int>(
          std::count_if(job.parts.begin(), job.parts.end(), [&](auto& p) { return p.role == role; }));
    };
    live += count(Role::kF);
    peak = std::max(peak, live);
    live -= count(last_use);
  }
  return peak;
}

// Every part once, on its stage and in order, and no two jobs that need each other.
void CheckJobs(const Schedule& schedule) {
  CheckShape(schedule);
  Progress progress;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto& jobs = schedule.jobs[stage];
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].parts.empty()) Refuse(schedule, "stage {}, job {} has no parts", stage, i);
      for (const JobPart& part : jobs[i].parts) CheckPart(schedule, stage, i, jobs[i], part, progress);
    }
  }
  CheckComplete(schedule, progress);
  const ReplayOutcome outcome = PlayJobs(schedule, {});
  if (!outcome.stuck.empty()) Refuse(schedule, "deadlock by dependency: {}", fmt::join(outcome.stuck, "; "));
}

Replay PlayMessages(const Schedule& schedule, RoleCosts costs, const Receives& receives) {
  ReplayOutcome outcome = PlayJobs(schedule, costs, &receives);
  if (!outcome.stuck.empty())
    Refuse(schedule, "deadlock because sends wait for their receives: {}", fmt::join(outcome.stuck, "; "));
  for (const auto& jobs : schedule.jobs) outcome.replay.peak_activations.push_back(PeakActivations(schedule, jobs));
  return std::move(outcome.replay);
}

}  // namespace

Replay Validate(const Schedule& schedule, RoleCosts costs) {
  CheckJobs(schedule);
  return PlayMessages(schedule, costs, OrderReceives(schedule, NeighbourLinks(schedule)));
}

Replay Validate(const Schedule& schedule, RoleCosts costs, const Receives& receives) {
  CheckJobs(schedule);
  return PlayMessages(schedule, costs, receives);
}

}  // namespace espalier
