// The parts that schedules are built from.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/schedule/schedule.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Chunk c on stage c % stages: neighbouring chunks are on neighbouring stages, and the first stage follows the last.
inline std::vector<int> Looped(int stages, int chunks_per_stage) {
  std::vector<int> stage_of_chunk;
  for (int chunk = 0; chunk < stages * chunks_per_stage; ++chunk) stage_of_chunk.push_back(chunk % stages);
  return stage_of_chunk;
}

/// Two chunks per stage, down the stages and up again: the first and the last chunk share a stage, and so do the two in
/// the middle.
inline std::vector<int> VShaped(int stages) {
  std::vector<int> stage_of_chunk;
  for (int chunk = 0; chunk < 2 * stages; ++chunk)
    stage_of_chunk.push_back(chunk < stages ? chunk : 2 * stages - 1 - chunk);
  return stage_of_chunk;
}

/// A schedule without jobs.
inline Schedule NoJobs(ScheduleKind kind, int stages, int microbatches, std::vector<int> stage_of_chunk) {
  CHECK(stages >= 1 && microbatches >= 1, "schedule {} of {} stages and {} microbatches", Name(kind), stages,
        microbatches);
  return {kind, stages, microbatches, std::move(stage_of_chunk), std::vector<std::vector<Job>>(stages)};
}

/// A value for each part of a schedule.
template <typename T>
class ByJobPart {
 public:
  ByJobPart(const Schedule& schedule, const T& value)
      : microbatches_(static_cast<size_t>(schedule.microbatches)),
        values_(3 * static_cast<size_t>(schedule.Chunks()) * microbatches_, value) {}
  T& operator[](const JobPart& part) { return values_[IndexOf(part)]; }
  const T& operator[](const JobPart& part) const { return values_[IndexOf(part)]; }

 private:
  size_t IndexOf(const JobPart& part) const {
    const size_t role = part.role == Role::kF ? 0 : part.role == Role::kB ? 1 : 2;
    return (3 * static_cast<size_t>(part.chunk) + role) * microbatches_ + static_cast<size_t>(part.microbatch);
  }
  size_t microbatches_;
  std::vector<T> values_;
};

/// F of one microbatch.
inline Job ForwardJob(int chunk, int microbatch) { return {{{chunk, Role::kF, microbatch}}}; }

/// B and W of one microbatch, interleaved layer by layer.
inline Job BackwardJob(int chunk, int microbatch) {
  return {{{chunk, Role::kB, microbatch}, {chunk, Role::kW, microbatch}}};
}

/// F of one microbatch, then B and W of another: two jobs or, with SteadyState::kJoint, one.
inline void AddForwardAndBackward(std::vector<Job>& jobs, const Job& forward, const Job& backward, SteadyState steady) {
  jobs.push_back(forward);
  if (steady == SteadyState::kAlternating)
    jobs.push_back(backward);
  else
    jobs.back().parts.insert(jobs.back().parts.end(), backward.parts.begin(), backward.parts.end());
}

/// The number of microbatches that pass through a chunk of an interleaved schedule before the stage turns to its next
/// one: the smallest that divides them, or whose last block still fills the pipeline. Needs microbatches >= stages.
int BlockOf(int stages, int microbatches);

/// The forwards of a stage as (index among its chunks, microbatch).
std::vector<std::pair<int, int>> ForwardOrder(int block, int chunks, int microbatches);

/// Writes the jobs of one stage. Each call takes the next microbatch of the chunk and role; after the last one it
/// writes nothing.
class JobWriter {
 public:
  using Step = std::pair<int, Role>;  // chunk, role

  JobWriter(Schedule& schedule, int stage) : schedule_(schedule), jobs_(schedule.jobs[stage]) {}

  /// Adds one job with these parts, in this order.
  void Add(std::initializer_list<Step> steps) {
    Job job;
    for (const Step& step : steps)
      if (const int microbatch = next_[step]++; microbatch < schedule_.microbatches)
        job.parts.push_back({step.first, step.second, microbatch});
    if (!job.parts.empty()) jobs_.push_back(std::move(job));
  }
  void F(int chunk) { Add({{chunk, Role::kF}}); }
  void B(int chunk) { Add({{chunk, Role::kB}}); }
  void W(int chunk) { Add({{chunk, Role::kW}}); }
  void BW(int chunk) { Add({{chunk, Role::kB}, {chunk, Role::kW}}); }

  /// Number of microbatches requested so far.
  int Count(int chunk, Role role) { return next_[{chunk, role}]; }

 private:
  Schedule& schedule_;
  std::vector<Job>& jobs_;
  std::map<Step, int> next_;
};

/// "BW0" or, with several chunks, "BW0.1"; parts of different microbatches or chunks are separated by '&'.
std::string LabelOf(const Schedule& schedule, const Job& job);

}  // namespace espalier
