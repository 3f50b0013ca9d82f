#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "schedule/jobs.hpp"
#include "schedule/replay.hpp"

namespace espalier {
namespace {

using Fault = std::optional<ScheduleFault>;

[[noreturn]] void Refuse(const Schedule& schedule, const std::string& why) {
  throw InvariantError(fmt::format("schedule {} ({} stages, {} microbatches): {}", Name(schedule.kind), schedule.stages,
                                   schedule.microbatches, why));
}

Fault FaultOfShape(const Schedule& schedule) {
  if (schedule.jobs.size() != static_cast<size_t>(schedule.stages))
    return {{.why = fmt::format("there are {} job lists", schedule.jobs.size())}};
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk) {
    const int stage = schedule.stage_of_chunk[chunk];
    if (stage < 0 || stage >= schedule.stages) return {{.why = fmt::format("chunk {} is on stage {}", chunk, stage)}};
  }
  return {};
}

// Microbatches done so far, by (chunk, role): in order, so the count is also the next one allowed.
using Progress = std::map<std::pair<int, Role>, int>;

// Why a part cannot run on `stage` now; empty if it can.
std::string FaultOfPart(const Schedule& schedule, int stage, const JobPart& part, Progress& progress) {
  if (FrequencyOf(part.role) != Frequency::kMicrobatch || (!schedule.HasBackward() && part.role != Role::kF))
    return fmt::format("role {} has no place here", Name(part.role));
  if (part.chunk < 0 || part.chunk >= schedule.Chunks()) return fmt::format("there is no chunk {}", part.chunk);
  if (part.microbatch < 0 || part.microbatch >= schedule.microbatches)
    return fmt::format("there is no microbatch {}", part.microbatch);
  const int home = schedule.stage_of_chunk[part.chunk];
  if (home != stage) return fmt::format("chunk {} is on stage {}", part.chunk, home);
  int& next = progress[{part.chunk, part.role}];
  if (part.microbatch < next)
    return fmt::format("{} of chunk {}, microbatch {} runs twice", Name(part.role), part.chunk, part.microbatch);
  if (part.microbatch > next)
    return fmt::format("{} of chunk {} is out of microbatch order, {} is due", Name(part.role), part.chunk, next);
  ++next;
  return "";
}

Fault FaultOfParts(const Schedule& schedule, Progress& progress) {
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::vector<Job>& jobs = schedule.jobs[stage];
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].parts.empty()) return {{stage, i, "it has no parts"}};
      for (const JobPart& part : jobs[i].parts)
        if (std::string why = FaultOfPart(schedule, stage, part, progress); !why.empty()) return {{stage, i, why}};
    }
  }
  return {};
}

Fault FirstMissing(const Schedule& schedule, const Progress& progress) {
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk) {
    for (Role role : {Role::kF, Role::kB, Role::kW}) {
      if (!schedule.HasBackward() && role != Role::kF) continue;
      const auto found = progress.find({chunk, role});
      const int done = found == progress.end() ? 0 : found->second;
      if (done < schedule.microbatches)
        return {{.stage = schedule.stage_of_chunk[chunk],
                 .why = fmt::format("{} of chunk {}, microbatch {} is missing", Name(role), chunk, done)}};
    }
  }
  return {};
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

std::string Joined(const std::vector<StuckStage>& stuck) {
  std::string text;
  for (const StuckStage& stage : stuck) text += (text.empty() ? "" : "; ") + stage.why;
  return text;
}

void CheckJobs(const Schedule& schedule) {
  const Fault fault = FirstFault(schedule);
  if (!fault) return;
  if (!fault->job)
    Refuse(schedule, fault->stage < 0 ? fault->why : fmt::format("stage {}: {}", fault->stage, fault->why));
  Refuse(schedule, fmt::format("stage {}, job {} ({}): {}", fault->stage, *fault->job,
                               LabelOf(schedule, schedule.jobs[fault->stage][*fault->job]), fault->why));
}

Replay PlayMessages(const Schedule& schedule, RoleCosts costs, const Receives& receives) {
  ReplayOutcome outcome = PlayJobs(schedule, costs, &receives);
  if (!outcome.stuck.empty())
    Refuse(schedule, "deadlock because sends wait for their receives: " + Joined(outcome.stuck));
  for (const auto& jobs : schedule.jobs) outcome.replay.peak_activations.push_back(PeakActivations(schedule, jobs));
  return std::move(outcome.replay);
}

}  // namespace

// Every part once, on its stage and in order, and no two jobs that need each other.
std::optional<ScheduleFault> FirstFault(const Schedule& schedule) {
  Progress progress;
  if (Fault fault = FaultOfShape(schedule)) return fault;
  if (Fault fault = FaultOfParts(schedule, progress)) return fault;
  if (Fault fault = FirstMissing(schedule, progress)) return fault;
  const ReplayOutcome outcome = PlayJobs(schedule, {});
  if (outcome.stuck.empty()) return {};
  return {{outcome.stuck[0].stage, {}, "deadlock by dependency: " + Joined(outcome.stuck)}};
}

Replay Validate(const Schedule& schedule, RoleCosts costs) {
  CheckJobs(schedule);
  return PlayMessages(schedule, costs, OrderReceives(schedule, NeighbourLinks(schedule)));
}

Replay Validate(const Schedule& schedule, RoleCosts costs, const Receives& receives) {
  CheckJobs(schedule);
  return PlayMessages(schedule, costs, receives);
}

}  // namespace espalier
