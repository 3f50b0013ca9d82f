// The instructions of one rank: P, then the jobs of its stage in order, then S and U. Ops of other stages are not
// emitted.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "planners.hpp"

namespace espalier {
namespace {

using Segments = std::map<std::pair<int, Role>, std::vector<int>>;  // (chunk, role) -> ops in graph order

Segments SegmentsOf(const Graph& graph) {
  Segments segments;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    segments[{graph.ops[i].chunk, graph.ops[i].role}].push_back(static_cast<int>(i));
  return segments;
}

/// The messages of a microbatch.
struct Messages {
  std::vector<Link> links;
  std::vector<int> ops;  // by link: its recv
};

/// A send and its recv are adjacent in the graph.
Messages FindMessages(const Graph& graph) {
  Messages messages;
  for (size_t i = 1; i < graph.ops.size(); ++i) {
    const Op& send = graph.ops[i - 1];
    const Op& recv = graph.ops[i];
    if (recv.kind != OpKind::kRecv || recv.frequency() != Frequency::kMicrobatch) continue;
    CHECK(send.kind == OpKind::kSend && send.role == recv.role, "op {} receives from no send", i);
    CHECK(recv.role != Role::kW, "{} crosses stages in role W, for which jobs of other stages do not wait",
          graph.value(recv.outputs[0]).name);
    messages.links.push_back({send.chunk, recv.chunk, recv.role});
    messages.ops.push_back(static_cast<int>(i));
  }
  return messages;
}

/// Receives are posted ahead, in the order of messages, so that messages overlap with other jobs. On GPUs one thread
/// issues sends and receives, and a call may wait for its peer's call, so both follow one order. That costs nothing:
/// the thread is several jobs ahead of the GPU.
Posting PostingOf(const Compilation& c) { return c.device == DeviceKind::kCuda ? Posting::kInOrder : Posting::kAhead; }

}  // namespace

/// What the programs of all ranks of a compilation have in common.
struct ProgramMaker::Common {
  explicit Common(const Compilation& compilation)
      : c(compilation),
        facts(*c.graph),
        segments(SegmentsOf(*c.graph)),
        messages(FindMessages(*c.graph)),
        receives(OrderReceives(c.schedule, messages.links, PostingOf(c))) {}

  const Compilation& c;
  GraphFacts facts;
  Segments segments;
  Messages messages;
  Receives receives;
};

namespace {

template <typename Common>
class Emitter {
 public:
  Emitter(const Common& common, int stage) : common_(common), c_(common.c), graph_(*c_.graph), stage_(stage) {
    program_.graph = c_.graph;
    program_.mesh = c_.mesh;
    program_.device = c_.device;
    program_.stage = stage;
    program_.microbatches = static_cast<int>(c_.batch.microbatches);
    program_.stage_of_chunk = c_.schedule.stage_of_chunk;
  }

  Program Run(std::vector<int>& job_ends) {
    Reserve();
    EmitStep(Role::kP);
    job_ends.push_back(Position());
    EmitJobs(job_ends);
    EmitStep(Role::kS);
    EmitStep(Role::kU);
    job_ends.push_back(Position());
    return std::move(program_);
  }

 private:
  int Position() const { return static_cast<int>(program_.instructions.size()); }
  bool Mine(int chunk) const { return chunk == kAllChunks || c_.StageOf(chunk) == stage_; }

  void Reserve() {
    size_t count = 0;
    for (const auto& [key, segment] : common_.segments)
      if (Mine(key.first))
        count += segment.size() * (FrequencyOf(key.second) == Frequency::kStep ? 1 : program_.microbatches);
    program_.instructions.reserve(count);
  }

  /// All ops of a step role on this stage, in graph order.
  void EmitStep(Role role) {
    std::vector<int> ops;
    for (const auto& [key, segment] : common_.segments)
      if (key.second == role && Mine(key.first)) ops.insert(ops.end(), segment.begin(), segment.end());
    std::sort(ops.begin(), ops.end());
    for (int op : ops) Emit(op, -1);
  }

  void EmitJobs(std::vector<int>& job_ends) {
    const std::vector<Job>& jobs = c_.schedule.jobs[stage_];
    const std::vector<Receive>& receives = common_.receives[stage_];
    auto receive = receives.begin();
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (; receive != receives.end() && receive->before_job == j; ++receive)
        Emit(common_.messages.ops[receive->link], receive->content.microbatch);
      EmitJob(jobs[j]);
      job_ends.push_back(Position());
    }
  }

  /// The ops of a job: parts of one chunk and microbatch are interleaved in graph order (so a W matmul is next to the B
  /// of its layer), others follow one another.
  void EmitJob(const Job& job) {
    for (size_t p = 0; p < job.parts.size();) {
      const JobPart& first = job.parts[p];
      std::vector<Role> roles;
      for (; p < job.parts.size() && job.parts[p].chunk == first.chunk && job.parts[p].microbatch == first.microbatch;
           ++p)
        roles.push_back(job.parts[p].role);
      for (int op : Interleaved(first.chunk, roles)) Emit(op, first.microbatch);
    }
  }
  /// The ops of these roles in graph order, without receives. All microbatches have the same.
  const std::vector<int>& Interleaved(int chunk, const std::vector<Role>& roles) {
    const auto [it, fresh] = interleaved_.try_emplace({chunk, roles});
    std::vector<int>& ops = it->second;
    if (!fresh) return ops;
    for (Role role : roles)
      if (const auto segment = common_.segments.find({chunk, role}); segment != common_.segments.end())
        ops.insert(ops.end(), segment->second.begin(), segment->second.end());
    std::sort(ops.begin(), ops.end());
    std::erase_if(ops, [&](int op) { return graph_.op(op).kind == OpKind::kRecv; });
    return ops;
  }

  void Emit(int id, int microbatch) {
    const Op& op = graph_.op(id);
    const OpFacts& facts = common_.facts.ops[id];
    Instruction& instruction = program_.instructions.emplace_back();
    instruction.op = id;
    instruction.microbatch = microbatch;
    instruction.lane = facts.lane;
    instruction.accumulate = facts.sums && microbatch > 0;
    instruction.inputs.reserve(op.inputs.size());
    for (int input : op.inputs)
      if (op.kind != OpKind::kGatherStages || Mine(graph_.value(input).chunk))
        instruction.inputs.push_back({input, 0, 0});
    instruction.outputs.reserve(op.outputs.size());
    for (int output : op.outputs) instruction.outputs.push_back({output, 0, 0});
  }

  const Common& common_;
  const Compilation& c_;
  const Graph& graph_;
  int stage_;
  Program program_;
  std::map<std::pair<int, std::vector<Role>>, std::vector<int>> interleaved_;
};

}  // namespace

ProgramMaker::ProgramMaker(const Compilation& compilation) : common_(std::make_unique<const Common>(compilation)) {}
ProgramMaker::~ProgramMaker() = default;

Program ProgramMaker::Make(const Coordinate& coordinate, int64_t reserved_bytes) const {
  std::vector<int> job_ends;
  Program program = Emitter(*common_, coordinate[Axis::kPp]).Run(job_ends);
  PlanMemory(program, common_->facts, coordinate, job_ends, reserved_bytes);
  PlanWaits(program);
  return program;
}

Program MakeProgram(const Compilation& compilation, const Coordinate& coordinate, int64_t reserved_bytes) {
  return ProgramMaker(compilation).Make(coordinate, reserved_bytes);
}

}  // namespace espalier
