// The order of the instructions of one rank: P, then the jobs of its stage in order, then S and U. Ops of other stages
// are not emitted. With overlap.gradients the reductions of S follow the ops of the last microbatch that make their
// inputs (and with parallel.reduce = "microbatch" the last sums of a job are added in the next one, see job_ops.hpp):
//
//   W 7  dw2 += matmul(dy, x)                  dw2 += matmul(dy, x)
//   B 7  dx = matmul(dy, w)            ->      S  s2 = reduce_scatter(dw2)    issued
//   W 7  dw1 += matmul(dx, z)                  B 7  dx = matmul(dy, w)        runs meanwhile
//   S    s1 = reduce_scatter(dw1)              W 7  dw1 += matmul(dx, z)
//   S    s2 = reduce_scatter(dw2)              S  s1 = reduce_scatter(dw1)
//
// Gathers of P from which other gathers start (parallel.regather_group) are issued before the first of those, so that
// they overlap with forward, too.
#include <algorithm>
#include <map>
#include <utility>

#include "early.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "job_ops.hpp"
#include "planners.hpp"

namespace espalier {
namespace {

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

/// By op: communication of P whose results only communication of microbatches reads.
std::vector<bool> FindPostponed(const Graph& graph) {
  std::vector<bool> starts_gather(graph.ops.size()), read_otherwise(graph.ops.size());
  for (const Op& op : graph.ops)
    for (int v : op.inputs)
      if (const int producer = graph.value(v).producer; producer >= 0)
        (IsCollective(op.kind) && op.frequency() == Frequency::kMicrobatch ? starts_gather : read_otherwise)[producer] =
            true;
  std::vector<bool> postponed(graph.ops.size());
  for (size_t i = 0; i < graph.ops.size(); ++i)
    postponed[i] =
        graph.ops[i].role == Role::kP && IsCollective(graph.ops[i].kind) && starts_gather[i] && !read_otherwise[i];
  return postponed;
}

/// Receives are posted ahead, in the order of messages, so that messages overlap with other jobs. On GPUs one thread
/// issues sends and receives, and a call may wait for its peer's call, so both follow one order. That costs nothing:
/// the thread is several jobs ahead of the GPU.
Posting PostingOf(const Compilation& c) { return c.device == DeviceKind::kCuda ? Posting::kInOrder : Posting::kAhead; }

}  // namespace

/// The parts that the programs of all ranks of a compilation have in common.
struct ProgramMaker::Common {
  explicit Common(const Compilation& compilation)
      : c(compilation),
        facts(*c.graph),
        early(*c.graph, facts, c.deck.overlap.gradients),
        postponed(FindPostponed(*c.graph)),
        segments(SegmentsOf(*c.graph)),
        messages(FindMessages(*c.graph)),
        receives(OrderReceives(c.schedule, messages.links, PostingOf(c))) {}

  const Compilation& c;
  GraphFacts facts;
  EarlyOps early;
  std::vector<bool> postponed;
  Segments segments;
  Messages messages;
  Receives receives;
};

namespace {

template <typename Common>
class Emitter {
 public:
  Emitter(const Common& common, int stage)
      : common_(common),
        c_(common.c),
        graph_(*c_.graph),
        stage_(stage),
        postponed_(common.postponed),
        missing_(common.early.inputs) {
    final_after_.resize(graph_.values.size(), -1);
    program_.graph = c_.graph;
    program_.mesh = c_.mesh;
    program_.device = c_.device;
    program_.stage = stage;
    program_.microbatches = static_cast<int>(c_.batch.microbatches);
    program_.stage_of_chunk = c_.schedule.stage_of_chunk;
  }

  /// The program without instructions.
  Program Run(Emission& emission) {
    Reserve();
    EmitStep(Role::kP);
    EndJob();
    EmitJobs();
    EmitStep(Role::kS);
    AddLateSums();
    EmitStep(Role::kU);
    EndJob();
    emission = std::move(emission_);
    return std::move(program_);
  }

 private:
  int Position() const { return static_cast<int>(emission_.ops.size()); }
  void EndJob() { emission_.job_ends.push_back(Position()); }
  bool Mine(int chunk) const { return chunk == kAllChunks || c_.StageOf(chunk) == stage_; }

  void Reserve() {
    size_t count = 0;
    for (const auto& [key, segment] : common_.segments)
      if (Mine(key.first))
        count += segment.size() * (FrequencyOf(key.second) == Frequency::kStep ? 1 : program_.microbatches);
    emission_.ops.reserve(count);
  }

  /// All ops of a step role on this stage that are still to come, in graph order. Kernels that read nothing but reduced
  /// gradients go first, in the order in which these arrive: what came last is still on its way.
  void EmitStep(Role role) {
    std::vector<std::pair<int, int>> ops;  // the instruction that it waits for, op
    for (const auto& [key, segment] : common_.segments)
      if (key.second == role && Mine(key.first))
        for (int op : segment)
          if (!IsDone(op) && !postponed_[op]) ops.emplace_back(ReadyAfter(op), op);
    std::sort(ops.begin(), ops.end());
    const int end = Position();
    for (const auto& [after, op] : ops) {
      if (after == end) AddLateSums();
      Emit(op, -1);
    }
  }
  bool IsDone(int op) const { return common_.early.inputs[op] > 0 && missing_[op] == 0; }
  /// The last message of the reduced gradients that a kernel of S reads, if it reads nothing else. Else the end.
  int ReadyAfter(int id) const {
    const Op& op = graph_.op(id);
    int last = op.role == Role::kS && !IsCommunication(op.kind) && !op.inputs.empty() ? 0 : Position();
    for (int input : op.inputs) last = std::max(last, final_after_[input] < 0 ? Position() : final_after_[input]);
    return last;
  }

  void EmitJobs() {
    const std::vector<Job>& jobs = c_.schedule.jobs[stage_];
    const std::vector<Receive>& receives = common_.receives[stage_];
    std::vector<Group> groups;
    std::vector<size_t> ends;  // of jobs, as indices of groups
    for (const Job& job : jobs) {
      AddGroups(job, groups);
      ends.push_back(groups.size());
    }
    if (!groups.empty()) EmitAll(groups[0].ops->first, groups[0]);
    auto receive = receives.begin();
    for (size_t j = 0, g = 0; j < jobs.size(); ++j) {
      for (; receive != receives.end() && receive->before_job == j; ++receive)
        Emit(common_.messages.ops[receive->link], receive->content.microbatch);
      for (; g < ends[j]; ++g) EmitGroup(groups[g], g + 1 < groups.size() ? &groups[g + 1] : nullptr);
      EndJob();
    }
  }

  /// Parts of a job whose ops are interleaved: adjacent ones of one chunk and microbatch or, with overlap.interleave,
  /// all. Groups follow one another.
  struct Group {
    const JobOps* ops;
    std::vector<int> microbatches;
  };
  /// Adjacent parts of one chunk and microbatch.
  struct Parts {
    int chunk, microbatch;
    std::vector<Role> roles;
  };
  void AddGroups(const Job& job, std::vector<Group>& groups) {
    std::vector<Parts> all;
    for (const JobPart& part : job.parts) {
      if (all.empty() || all.back().chunk != part.chunk || all.back().microbatch != part.microbatch)
        all.push_back({part.chunk, part.microbatch, {}});
      all.back().roles.push_back(part.role);
    }
    if (c_.deck.overlap.interleave && all.size() == 2) {
      groups.push_back({&OpsOf(all[0], all[1]), {all[0].microbatch, all[1].microbatch}});
      return;
    }
    for (const Parts& parts : all) groups.push_back({&OpsOf(parts), {parts.microbatch}});
  }
  void EmitGroup(const Group& group, const Group* next) {
    const JobOps& job = *group.ops;
    for (size_t i = 0; i < job.ops.size(); ++i) {
      if (i == job.late_of_last) AddLateSums();
      if (i == job.first_of_next && next != nullptr) EmitAll(next->ops->first, *next);
      Emit(job.ops[i].op, group.microbatches[static_cast<size_t>(job.ops[i].microbatch)]);
    }
    if (job.ops.empty() && next != nullptr) EmitAll(next->ops->first, *next);
    AddLateSums();
    for (const JobOp& op : job.late) late_.emplace_back(op.op, group.microbatches[static_cast<size_t>(op.microbatch)]);
  }
  void EmitAll(const std::vector<JobOp>& ops, const Group& group) {
    for (const JobOp& op : ops) Emit(op.op, group.microbatches[static_cast<size_t>(op.microbatch)]);
  }
  void AddLateSums() {
    for (const auto& [op, microbatch] : std::exchange(late_, {})) Emit(op, microbatch);
  }
  /// All microbatches have the same.
  const JobOps& OpsOf(const Parts& parts) {
    const auto [it, fresh] = jobs_.try_emplace({parts.chunk, parts.roles});
    const Deck::Overlap& overlap = c_.deck.overlap;
    if (fresh)
      it->second = OpsOfJob(graph_, common_.segments, parts.chunk, parts.roles,
                            overlap.gradients ? LastSums::kInTheNextJob : LastSums::kAtTheEnd,
                            overlap.prefetch > 0 ? FirstGathers::kInTheJobBefore : FirstGathers::kAtTheStart);
    return it->second;
  }
  const JobOps& OpsOf(const Parts& a, const Parts& b) {
    const auto [it, fresh] = joint_jobs_.try_emplace({{a.chunk, a.roles}, {b.chunk, b.roles}});
    if (fresh) it->second = Interleave(graph_, common_.facts, c_.mesh, TimesOf(c_.deck), OpsOf(a), OpsOf(b));
    return it->second;
  }

  void EmitPostponed(const Op& reader) {
    for (int input : reader.inputs)
      if (const int producer = graph_.value(input).producer; producer >= 0 && postponed_[producer]) {
        postponed_[producer] = false;
        Emit(producer, -1);
      }
  }

  void Emit(int id, int microbatch) {
    const Op& op = graph_.op(id);
    if (BringsSums(graph_, op)) {
      if (microbatch == 0) return;
      AddLateSums();  // the sums must be on the host
    }
    if (IsCollective(op.kind)) EmitPostponed(op);
    emission_.ops.push_back({id, microbatch});
    const bool early = common_.early.inputs[id] > 0;
    if (!early && microbatch != program_.microbatches - 1) return;
    for (int output : op.outputs) {
      if (common_.facts.values[output].last_writer != id) continue;
      if (early || IsReduced(op, output)) final_after_[output] = Position();
      EmitReadersOf(output);
    }
  }
  /// A gradient that a message has reduced, before it was added or as it is.
  bool IsReduced(const Op& op, int output) const {
    if (graph_.value(output).kind != ValueKind::kAccumulator || !c_.deck.overlap.gradients) return false;
    return IsCommunication(op.kind) || MessageAddedBy(graph_, op) >= 0;
  }
  /// The early ops of which this is the last input to become final.
  void EmitReadersOf(int value) {
    for (int op : common_.early.readers[value])
      if (--missing_[op] == 0) Emit(op, -1);
  }

  const Common& common_;
  const Compilation& c_;
  const Graph& graph_;
  int stage_;
  Program program_;
  Emission emission_;
  std::vector<bool> postponed_;   // by op: not issued yet
  std::vector<int> missing_;      // by op: inputs of an early op that are not final yet
  std::vector<int> final_after_;  // by value: the end of the instruction that reduces or adds it last; -1: none
  std::vector<std::pair<int, int>> late_;              // op, microbatch: additions that the next job begins with
  using PartsKey = std::pair<int, std::vector<Role>>;  // chunk, roles
  std::map<PartsKey, JobOps> jobs_;
  std::map<std::pair<PartsKey, PartsKey>, JobOps> joint_jobs_;
};

}  // namespace

ProgramMaker::ProgramMaker(const Compilation& compilation) : common_(std::make_unique<const Common>(compilation)) {}
ProgramMaker::~ProgramMaker() = default;

Program ProgramMaker::WithMemory(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes,
                                 MemoryTimeline* course) const {
  Emission emission;
  Program program = Emitter(*common_, coordinate[Axis::kPp]).Run(emission);
  PlanMemory(program, emission, common_->facts, coordinate, reserved_bytes, course);
  return program;
}

Program ProgramMaker::Make(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes,
                           MemoryTimeline* course) const {
  Program program = WithMemory(coordinate, reserved_bytes, course);
  PlanWaits(program);
  return program;
}

BySpace<int64_t> ProgramMaker::ArenaBytes(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes) const {
  const Program program = WithMemory(coordinate, reserved_bytes, nullptr);
  return {program.arena_bytes, program.host_bytes};
}

Program MakeProgram(const Compilation& compilation, const Coordinate& coordinate,
                    const BySpace<int64_t>& reserved_bytes) {
  return ProgramMaker(compilation).Make(coordinate, reserved_bytes);
}

}  // namespace espalier
