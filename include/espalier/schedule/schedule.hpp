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

/// Name of the schedule that has no backward roles; every other one runs F, B and W.
inline constexpr std::string_view kForwardOnly = "forward-only";

struct Schedule {
  std::string name;
  int stages = 1;
  int microbatches = 1;
  std::vector<int> stage_of_chunk;     ///< by global chunk
  std::vector<std::vector<Job>> jobs;  ///< by stage

  int Chunks() const { return static_cast<int>(stage_of_chunk.size()); }
  /// False for evaluation and sampling.
  bool HasBackward() const { return name != kForwardOnly; }
};

/// "F3 BW0 ..." of one stage; with several chunks per stage "F3.1" (microbatch.chunk).
std::string ToString(const Schedule& schedule, int stage);

/// The schedules by their deck names. Backward jobs are B and W as one woven job unless the schedule splits them. What
/// WhyNotChunks and LeastMicrobatches rule out is a broken invariant here.
Schedule MakeSchedule(std::string_view name, int stages, int chunks_per_stage, int microbatches);
Schedule GPipe(int stages, int microbatches);
Schedule OneFOneB(int stages, int microbatches);
Schedule Interleaved(int stages, int chunks_per_stage, int microbatches);
Schedule ZeroBubbleH1(int stages, int microbatches);
Schedule ZeroBubbleV(int stages, int microbatches);
Schedule DualPipeV(int stages, int microbatches);
/// Forward only, for evaluation and sampling, with the chunks where training has them.
Schedule ForwardOnly(std::vector<int> stage_of_chunk, int microbatches);

/// Where a schedule puts its chunks.
std::vector<int> PlaceChunks(std::string_view name, int stages, int chunks_per_stage);
/// Chunks per stage where a deck does not say.
int DefaultChunks(std::string_view name);
/// True if W stands apart from its B all through the step, so that what lives from B to W lives long.
bool PutsWOff(std::string_view name);
/// Why a schedule cannot have so many chunks per stage, and which numbers would do; empty if it can.
std::string WhyNotChunks(std::string_view name, int64_t chunks_per_stage);
/// The fewest microbatches a schedule can do with.
int64_t LeastMicrobatches(std::string_view name, int64_t stages);

/// What one chunk makes for another, on another stage: one message per microbatch. `role` is its maker's.
struct Link {
  int from = 0, to = 0;  ///< chunks
  Role role = Role::kF;
};

struct Receive {
  JobPart content;        ///< the part that makes it
  size_t link = 0;        ///< in the list of links
  size_t before_job = 0;  ///< posted in front of this job of the receiving stage
};

/// By stage: its receives, in the order in which they are posted.
using Receives = std::vector<std::vector<Receive>>;

/// The links between neighbouring chunks: outputs forward, gradients back.
std::vector<Link> NeighbourLinks(const Schedule& schedule);

/// When receives are posted.
enum class Posting : uint8_t {
  /// One job before the job that needs it, or earlier if its message is there earlier: for lanes that run side by side.
  kAhead,
  /// Between the stage's own sends where it stands in the order of all messages: so that stages which issue sends and
  /// receives one
  /// after the other cannot wait for each other either.
  kInOrder,
};

/// The order of messages. A stage sends in the order in which its jobs make things; it receives in the order of the
/// times at which they are made, in a replay with roles of about equal length. Both are parts of one total order of all
/// messages of the step, so no set of stages with in-order lanes can wait for each other, even if every send waits for
/// its receive.
Receives OrderReceives(const Schedule& schedule, const std::vector<Link>& links, Posting posting = Posting::kAhead);

/// Duration of each role on one chunk and microbatch, in any unit, for the replay.
struct RoleCosts {
  double f = 1, b = 1, w = 1;
};

struct Replay {
  double makespan = 0;
  std::vector<double> idle;           ///< by stage: makespan - busy
  std::vector<int> peak_activations;  ///< by stage: most (chunk, microbatch) pairs forwarded whose W is not done
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
/// The same with another order of receives.
Replay Validate(const Schedule& schedule, RoleCosts costs, const Receives& receives);

/// The timeline, one row per stage, one column per unit of time:
///   stage 0 | F0 F1 ..  B0
/// Of a timeline that is longer than `max_columns` it shows the beginning and the middle, " ... " where it is cut.
std::string Draw(const Schedule& schedule, RoleCosts costs = {}, int max_columns = 160);

}  // namespace espalier
