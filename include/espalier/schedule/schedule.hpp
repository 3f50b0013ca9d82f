// Pipeline schedules as data: for every stage the ordered list of jobs it runs. A job names one or more parts
// (chunk, role, microbatch); parts of one chunk and microbatch are interleaved op by op. Pure functions of counts; no
// clocks, no ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/schedule/traits.hpp"

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
  ScheduleKind kind = ScheduleKind::k1F1B;
  int stages = 1;
  int microbatches = 1;
  std::vector<int> stage_of_chunk;     ///< by global chunk
  std::vector<std::vector<Job>> jobs;  ///< by stage

  int Chunks() const { return static_cast<int>(stage_of_chunk.size()); }
  /// False for evaluation and sampling.
  bool HasBackward() const { return kind != ScheduleKind::kForwardOnly; }
};

/// "F3 BW0 ..." of one stage; with several chunks per stage "F3.1" (microbatch.chunk).
std::string ToString(const Schedule& schedule, int stage);

/// The schedule of a deck. A backward job is B and W interleaved op by op, unless the schedule splits them. CHECKs
/// ChunkCountError and MinMicrobatches.
Schedule MakeSchedule(const ScheduleTraits& traits, int stages, int chunks_per_stage, int microbatches,
                      SteadyState steady = SteadyState::kAlternating);
Schedule GPipe(int stages, int microbatches);
Schedule OneFOneB(int stages, int microbatches, SteadyState steady = SteadyState::kAlternating);
Schedule Interleaved(int stages, int chunks_per_stage, int microbatches,
                     SteadyState steady = SteadyState::kAlternating);
Schedule ZeroBubbleH1(int stages, int microbatches);
Schedule ZeroBubbleInterleaved(int stages, int chunks_per_stage, int microbatches);
Schedule ZeroBubbleV(int stages, int microbatches);
Schedule DualPipeV(int stages, int microbatches);
/// All forwards, then all backwards, with the chunks on the stages that training gives them: GPipe of any chunks.
Schedule ForwardThenBackward(std::vector<int> stage_of_chunk, int microbatches);
/// Forward only, for evaluation and sampling, with the chunks on the stages that training gives them.
Schedule ForwardOnly(std::vector<int> stage_of_chunk, int microbatches);

/// The values that one chunk produces for another, on another stage: one message per microbatch, in the producer's
/// role.
struct Link {
  int from = 0, to = 0;  ///< chunks
  Role role = Role::kF;
};

struct Receive {
  JobPart content;        ///< the part that produces it
  size_t link = 0;        ///< index in the list of links
  size_t before_job = 0;  ///< posted before this job of the receiving stage
};

/// By stage: its receives, in the order in which they are posted.
using Receives = std::vector<std::vector<Receive>>;

/// The links between neighbouring chunks: outputs forward, gradients back.
std::vector<Link> NeighbourLinks(const Schedule& schedule);

/// When receives are posted.
enum class Posting : uint8_t {
  /// One job before the job that needs it, or earlier if the message arrives earlier: for lanes that run concurrently.
  kAhead,
  /// Between the stage's own sends, at its position in the order of all messages: stages that issue sends and receives
  /// from one thread cannot deadlock either.
  kInOrder,
};

/// The order of messages. A stage sends in the order of its jobs. It receives in the order of the times at which the
/// contents are produced, in a replay with roles of about equal length. Both follow one total order of all messages of
/// the step, so stages with in-order lanes cannot deadlock, even if every send waits for its receive.
Receives OrderReceives(const Schedule& schedule, const std::vector<Link>& links, Posting posting = Posting::kAhead);

/// Duration of each role on one chunk and microbatch, in any unit, for the replay.
struct RoleCosts {
  double f = 1, b = 1, w = 1;
};

struct Replay {
  double makespan = 0;
  std::vector<double> idle;           ///< by stage: makespan - busy
  std::vector<int> peak_activations;  ///< by stage: peak number of (chunk, microbatch) pairs between F and the end of W
  struct Span {
    double begin, end;
    JobPart part;
  };
  std::vector<std::vector<Span>> spans;  ///< by stage, for the drawer
};

/// Replays a schedule and proves it correct: every (chunk, microbatch) runs exactly once per role, on its own stage; F,
/// B and W run in microbatch order within a chunk; there is no deadlock even if every send waits for its receive
/// (rendezvous), with one in-order send lane and one in-order receive lane per stage. Throws InvariantError naming
/// stage, job and cause.
Replay Validate(const Schedule& schedule, RoleCosts costs = {});
/// The same with another order of receives.
Replay Validate(const Schedule& schedule, RoleCosts costs, const Receives& receives);

/// The timeline, one row per stage, one column per unit of time:
///   stage 0 | F0 F1 ..  B0
/// A timeline longer than `max_columns` is shortened to its beginning and its middle, with " ... " between them.
std::string Draw(const Schedule& schedule, RoleCosts costs = {}, int max_columns = 160);

}  // namespace espalier
