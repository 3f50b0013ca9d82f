// Pipeline schedules as data: for every stage the ordered list of jobs it runs. A job names one or more parts
// (chunk, role, microbatch); several parts are woven op by op. Pure functions of counts; no clocks, no ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

struct JobPart {
  int chunk = 0;  ///< global chunk, 0 .. chunks - 1 in model order
  Role role = Role::kF;
  int microbatch = 0;
  bool operator==(const JobPart&) const = default;
};

struct Job {
  std::vector<JobPart> parts;
  bool operator==(const Job&) const = default;
};

struct Schedule {
  std::string name;
  int stages = 1;
  int microbatches = 1;
  std::vector<int> stage_of_chunk;      ///< by global chunk
  std::vector<std::vector<Job>> jobs;  ///< by stage

  int Chunks() const { return static_cast<int>(stage_of_chunk.size()); }
};

/// "F3 BW0 ..." of one stage; with several chunks "F3.1" (microbatch.chunk).
std::string ToString(const Schedule& schedule, int stage);

/// The schedules by their deck names. `roles` of backward jobs are B and W as one woven job unless the schedule splits
/// them. Throws UserError (kDeck) when the numbers make it impossible, saying which would do.
Schedule MakeSchedule(std::string_view name, int stages, int chunks_per_stage, int microbatches);
Schedule GPipe(int stages, int microbatches);
Schedule OneFOneB(int stages, int microbatches);
/// Forward only: for evaluation and sampling.
Schedule ForwardOnly(int stages, int microbatches);

/// Duration of each role on one chunk and microbatch, in any unit, for the replay.
struct RoleCosts {
  double f = 1, b = 1, w = 1;
};

struct Replay {
  double makespan = 0;
  std::vector<double> idle;            ///< by stage: makespan - busy
  std::vector<int> peak_activations;   ///< by stage: most (chunk, microbatch) pairs forwarded whose W is not done
  struct Span {
    double begin, end;
    JobPart part;
  };
  std::vector<std::vector<Span>> spans;  ///< by stage, for the drawer
};

/// Replays a schedule and proves it sound: every (chunk, microbatch) exactly once per role on its own stage; F, B and W
/// each in microbatch order within a chunk; dependencies met without deadlock even if every send waits for its receive
/// (rendezvous) with one in-order send lane and one in-order receive lane per stage. Throws InvariantError naming
/// stage, job and cause.
Replay Validate(const Schedule& schedule, RoleCosts costs = {});

/// The timeline, one row per stage, one column per unit of time:
///   stage 0 | F0 F1 ..  B0
std::string Draw(const Schedule& schedule, RoleCosts costs = {}, int max_columns = 160);

}  // namespace espalier
