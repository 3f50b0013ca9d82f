// One rank's instructions: P, then the jobs of its stage in order, then S and U. Ops of other stages are never emitted.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Keys and gradients of attention travel on lane cp; parameters and their gradients, which cp shares out too, on lane
/// dp, so that a gather issued ahead never holds up a hop.
Lane LaneOf(const Graph& graph, const Op& op) {
  if (!IsCommunication(op.kind)) return Lane::kCompute;
  if (op.kind == "send") return Lane::kPpSend;
  if (op.kind == "recv") return Lane::kPpRecv;
  const AxisSet axes = AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes")));
  if ((axes - kTensorAxes).Empty()) return Lane::kTp;
  const bool microbatch = graph.values[static_cast<size_t>(op.inputs[0])].frequency == Frequency::kMicrobatch;
  return axes == AxisSet{Axis::kCp} && microbatch ? Lane::kCp : Lane::kDp;
}

class Emitter {
 public:
  Emitter(const Compilation& c, const Coordinate& coordinate) : c_(c), graph_(*c.graph), stage_(coordinate[0]) {
    program_.graph = c.graph;
    program_.mesh = c.mesh;
    program_.device = c.deck.run.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
    program_.stage = stage_;
    program_.microbatches = static_cast<int>(c.microbatches);
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

  /// The messages of a microbatch. A send and its recv stand side by side in the graph.
  void FindLinks() {
    for (size_t i = 1; i < graph_.ops.size(); ++i) {
      const Op& send = graph_.ops[i - 1];
      const Op& recv = graph_.ops[i];
      if (recv.kind != "recv" || recv.frequency() != Frequency::kMicrobatch) continue;
      CHECK(send.kind == "send" && send.role == recv.role, "op {} receives from no send", i);
      CHECK(recv.role != Role::kW, "{} crosses stages in role W, for which jobs of other stages do not wait",
            graph_.values[static_cast<size_t>(recv.outputs[0])].name);
      links_.push_back({send.chunk, recv.chunk, recv.role});
      link_ops_.push_back(static_cast<int>(i));
    }
  }

  /// Receives are posted ahead, in the order of messages, so that these travel under other jobs. On GPUs one thread
  /// issues sends and receives, and a call may wait for its peer's: they follow one order. Nothing is lost, since that
  /// thread is jobs ahead of the GPU.
  void EmitJobs(std::vector<int>& job_ends) {
    const std::vector<Job>& jobs = c_.schedule.jobs[static_cast<size_t>(stage_)];
    const Posting posting = program_.device == DeviceKind::kCuda ? Posting::kInOrder : Posting::kAhead;
    const std::vector<Receive> receives = OrderReceives(c_.schedule, links_, posting)[static_cast<size_t>(stage_)];
    auto receive = receives.begin();
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (; receive != receives.end() && receive->before_job == j; ++receive)
        Emit(link_ops_[receive->link], receive->content.microbatch);
      for (const auto& [op, microbatch] : Weave(jobs[j]))
        if (graph_.ops[static_cast<size_t>(op)].kind != "recv") Emit(op, microbatch);
      job_ends.push_back(static_cast<int>(program_.instructions.size()));
    }
  }

  /// The ops of a job: parts of one chunk and microbatch are merged in graph order (so a W product stands beside the B
  /// of its layer), others follow one another.
  std::vector<std::pair<int, int>> Weave(const Job& job) {
    std::vector<std::pair<int, int>> woven;
    for (size_t p = 0; p < job.parts.size();) {
      std::vector<int> merged;
      const JobPart& first = job.parts[p];
      for (; p < job.parts.size() && job.parts[p].chunk == first.chunk && job.parts[p].microbatch == first.microbatch;
           ++p) {
        const std::vector<int>& segment = segments_[{job.parts[p].chunk, job.parts[p].role}];
        merged.insert(merged.end(), segment.begin(), segment.end());
      }
      std::sort(merged.begin(), merged.end());
      for (int op : merged) woven.emplace_back(op, first.microbatch);
    }
    return woven;
  }

  void Emit(int id, int microbatch) {
    const Op& op = graph_.ops[static_cast<size_t>(id)];
    Instruction instruction;
    instruction.op = id;
    instruction.microbatch = microbatch;
    instruction.lane = LaneOf(graph_, op);
    for (int output : op.outputs)
      if (graph_.values[static_cast<size_t>(output)].kind == ValueKind::kAccumulator)
        instruction.accumulate = microbatch > 0;
    for (int input : op.inputs)
      if (op.kind != "gather_stages" || Mine(graph_.values[static_cast<size_t>(input)].chunk))
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
