// The instructions of one rank: P, then the jobs of its stage in order, then S and U. Ops of other stages are not
// emitted.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Keys, values and their gradients use lane cp. Parameters and their gradients, which are sharded on cp, too, use lane
/// dp, so that a prefetched gather never delays a hop.
Lane LaneOf(const Graph& graph, const Op& op) {
  if (!IsCommunication(op.kind)) return Lane::kCompute;
  if (op.kind == OpKind::kSend) return Lane::kPpSend;
  if (op.kind == OpKind::kRecv) return Lane::kPpRecv;
  const AxisSet axes = op.Axes();
  if ((axes - kTensorAxes).Empty()) return Lane::kTp;
  const bool microbatch = graph.value(op.inputs[0]).frequency == Frequency::kMicrobatch;
  return axes == AxisSet{Axis::kCp} && microbatch ? Lane::kCp : Lane::kDp;
}

class Emitter {
 public:
  Emitter(const Compilation& c, const Coordinate& coordinate) : c_(c), graph_(*c.graph), stage_(coordinate[Axis::kPp]) {
    program_.graph = c.graph;
    program_.mesh = c.mesh;
    program_.device = c.device;
    program_.stage = stage_;
    program_.microbatches = static_cast<int>(c.batch.microbatches);
    program_.stage_of_chunk = c.schedule.stage_of_chunk;
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (Mine(graph_.ops[i].chunk))
        segments_[{graph_.ops[i].chunk, graph_.ops[i].role}].push_back(static_cast<int>(i));
    FindLinks();
  }

  Program Run(std::vector<int>& job_ends) {
    EmitStep(Role::kP);
    job_ends.push_back(static_cast<int>(program_.instructions.size()));
    EmitJobs(job_ends);
    EmitStep(Role::kS);
    EmitStep(Role::kU);
    job_ends.push_back(static_cast<int>(program_.instructions.size()));
    return std::move(program_);
  }

 private:
  bool Mine(int chunk) const { return chunk == kAllChunks || c_.StageOf(chunk) == stage_; }

  /// All ops of a step role on this stage, in graph order.
  void EmitStep(Role role) {
    std::vector<int> ops;
    for (const auto& [key, segment] : segments_)
      if (key.second == role) ops.insert(ops.end(), segment.begin(), segment.end());
    std::sort(ops.begin(), ops.end());
    for (int op : ops) Emit(op, -1);
  }

  /// The messages of a microbatch. A send and its recv are adjacent in the graph.
  void FindLinks() {
    for (size_t i = 1; i < graph_.ops.size(); ++i) {
      const Op& send = graph_.ops[i - 1];
      const Op& recv = graph_.ops[i];
      if (recv.kind != OpKind::kRecv || recv.frequency() != Frequency::kMicrobatch) continue;
      CHECK(send.kind == OpKind::kSend && send.role == recv.role, "op {} receives from no send", i);
      CHECK(recv.role != Role::kW, "{} crosses stages in role W, for which jobs of other stages do not wait",
            graph_.value(recv.outputs[0]).name);
      links_.push_back({send.chunk, recv.chunk, recv.role});
      link_ops_.push_back(static_cast<int>(i));
    }
  }

  /// Receives are posted ahead, in the order of messages, so that messages overlap with other jobs. On GPUs one thread
  /// issues sends and receives, and a call may wait for its peer's call, so both follow one order. That costs nothing:
  /// the thread is several jobs ahead of the GPU.
  void EmitJobs(std::vector<int>& job_ends) {
    const std::vector<Job>& jobs = c_.schedule.jobs[stage_];
    const Posting posting = program_.device == DeviceKind::kCuda ? Posting::kInOrder : Posting::kAhead;
    const std::vector<Receive> receives = OrderReceives(c_.schedule, links_, posting)[stage_];
    auto receive = receives.begin();
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (; receive != receives.end() && receive->before_job == j; ++receive)
        Emit(link_ops_[receive->link], receive->content.microbatch);
      for (const auto& [op, microbatch] : Interleave(jobs[j]))
        if (graph_.op(op).kind != OpKind::kRecv) Emit(op, microbatch);
      job_ends.push_back(static_cast<int>(program_.instructions.size()));
    }
  }

  /// The ops of a job: parts of one chunk and microbatch are interleaved in graph order (so a W matmul is next to the B
  /// of its layer), others follow one another.
  std::vector<std::pair<int, int>> Interleave(const Job& job) {
    std::vector<std::pair<int, int>> ops;
    for (size_t p = 0; p < job.parts.size();) {
      std::vector<int> merged;
      const JobPart& first = job.parts[p];
      for (; p < job.parts.size() && job.parts[p].chunk == first.chunk && job.parts[p].microbatch == first.microbatch;
           ++p) {
        const std::vector<int>& segment = segments_[{job.parts[p].chunk, job.parts[p].role}];
        merged.insert(merged.end(), segment.begin(), segment.end());
      }
      std::sort(merged.begin(), merged.end());
      for (int op : merged) ops.emplace_back(op, first.microbatch);
    }
    return ops;
  }

  void Emit(int id, int microbatch) {
    const Op& op = graph_.op(id);
    Instruction instruction;
    instruction.op = id;
    instruction.microbatch = microbatch;
    instruction.lane = LaneOf(graph_, op);
    for (int output : op.outputs)
      if (graph_.value(output).kind == ValueKind::kAccumulator) instruction.accumulate = microbatch > 0;
    for (int input : op.inputs)
      if (op.kind != OpKind::kGatherStages || Mine(graph_.value(input).chunk))
        instruction.inputs.push_back({input, 0, 0});
    for (int output : op.outputs) instruction.outputs.push_back({output, 0, 0});
    program_.instructions.push_back(std::move(instruction));
  }

  const Compilation& c_;
  const Graph& graph_;
  int stage_;
  Program program_;
  std::map<std::pair<int, Role>, std::vector<int>> segments_;  // (chunk, role) -> ops in graph order
  std::vector<Link> links_;
  std::vector<int> link_ops_;  // by link: its recv
};

}  // namespace

Program MakeProgram(const Compilation& compilation, const Coordinate& coordinate, int64_t reserved_bytes) {
  std::vector<int> job_ends;
  Program program = Emitter(compilation, coordinate).Run(job_ends);
  PlanMemory(program, coordinate, job_ends, reserved_bytes);
  PlanWaits(program);
  return program;
}

}  // namespace espalier
