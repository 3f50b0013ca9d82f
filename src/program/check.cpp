// Checks the programs of all ranks without running any: the order of collectives per communicator, the order of
// messages per pair, a replay in which a send ends only when its receive has begun, and, for GPUs, a replay in which
// every call waits for the calls of its peers.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "transfer_text.hpp"

namespace espalier {
namespace {

const Op& OpOf(const Program& program, const Instruction& instruction) { return program.graph->op(instruction.op); }

std::string Describe(const Program& program, const Instruction& instruction) {
  const Op& op = OpOf(program, instruction);
  std::string tensors;
  for (int v : op.inputs.empty() ? op.outputs : op.inputs)
    tensors += (tensors.empty() ? "" : ", ") + program.graph->value(v).name;
  return fmt::format("{}({}) of microbatch {}", op.kind, tensors, instruction.microbatch);
}

/// Two members agree on a collective if it is the same op of the graph at the same microbatch.
struct Event {
  int op, microbatch;
  const Instruction* instruction;
};

std::vector<Event> CollectiveTrace(const Program& program, Lane lane, AxisSet axes) {
  std::vector<Event> trace;
  for (const Instruction& i : program.instructions) {
    const Op& op = OpOf(program, i);
    if (i.lane == lane && op.kind != OpKind::kSend && op.kind != OpKind::kRecv && op.Axes() == axes)
      trace.push_back({i.op, i.microbatch, &i});
  }
  return trace;
}

/// All communication, in the order of issue.
std::vector<Event> IssueTrace(const Program& program) {
  std::vector<Event> trace;
  for (const Instruction& i : program.instructions)
    if (i.lane != Lane::kCompute) trace.push_back({i.op, i.microbatch, &i});
  return trace;
}

class WorldChecker {
 public:
  WorldChecker(const Mesh& mesh, const std::function<const Program&(int)>& program_of)
      : mesh_(mesh), program_of_(program_of) {}

  void Run() {
    for (int rank = 0; rank < mesh_.Ranks(); ++rank)
      for (const auto& [lane, axes] : GroupsOf(program_of_(rank))) CheckGroup(rank, lane, axes);
    for (int rank = 0; rank < mesh_.Ranks(); ++rank)
      if (mesh_.CoordinateOf(rank)[Axis::kPp] == 0) CheckPipeline(rank);
  }

 private:
  using Groups = std::set<std::pair<Lane, AxisSet>>;

  /// Lanes and groups of a program's collectives; found once for each program.
  const Groups& GroupsOf(const Program& program) {
    const auto [it, fresh] = groups_.try_emplace(&program);
    if (fresh)
      for (const Instruction& i : program.instructions)
        if (i.lane != Lane::kCompute && i.lane != Lane::kPpSend && i.lane != Lane::kPpRecv)
          it->second.emplace(i.lane, OpOf(program, i).Axes());
    return it->second;
  }

  /// Every member has the collectives of the first one. The first member compares itself with all others; every member
  /// also compares itself with the first, whose program may not have the group at all.
  void CheckGroup(int rank, Lane lane, AxisSet axes) {
    const Coordinate coordinate = mesh_.CoordinateOf(rank);
    const int first = mesh_.RankOf(mesh_.GroupMember(axes, coordinate, 0));
    Compare(rank, first, lane, axes);
    if (first != rank) return;
    for (int i = 1; i < mesh_.GroupSize(axes); ++i)
      Compare(rank, mesh_.RankOf(mesh_.GroupMember(axes, coordinate, i)), lane, axes);
  }

  /// Programs are compared once for each pair of classes.
  void Compare(int rank, int peer, Lane lane, AxisSet axes) {
    const Program* a = &program_of_(rank);
    const Program* b = &program_of_(peer);
    if (a != b && compared_.emplace(a, b, lane, axes).second) CompareCollectives(rank, peer, lane, axes);
  }

  void CompareCollectives(int rank, int peer, Lane lane, AxisSet axes) const {
    const Program& a = program_of_(rank);
    const Program& b = program_of_(peer);
    const std::vector<Event> mine = CollectiveTrace(a, lane, axes), theirs = CollectiveTrace(b, lane, axes);
    for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
      CHECK(mine[i].op == theirs[i].op && mine[i].microbatch == theirs[i].microbatch,
            "group {} on lane {}: collective {} is {} on rank {}, but {} on rank {}", Name(axes), Name(lane), i,
            Describe(a, *mine[i].instruction), rank, Describe(b, *theirs[i].instruction), peer);
    CHECK(mine.size() == theirs.size(), "group {} on lane {}: rank {} has {} collectives, rank {} has {}", Name(axes),
          Name(lane), rank, mine.size(), peer, theirs.size());
  }

  void ComparePair(int from, int to, const std::vector<Event>& sends, const std::vector<Event>& receives) const {
    const Program& a = program_of_(from);
    const Program& b = program_of_(to);
    for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
      const Op& send = OpOf(a, *sends[i].instruction);
      const Op& recv = OpOf(b, *receives[i].instruction);
      // The pass that cuts stages emits a send and its recv side by side.
      CHECK(sends[i].op + 1 == receives[i].op && sends[i].microbatch == receives[i].microbatch,
            "message {} from rank {} to rank {} is {}, but the receiver expects {}", i, from, to,
            Describe(a, *sends[i].instruction), Describe(b, *receives[i].instruction));
      for (size_t t = 0; t < send.inputs.size(); ++t)
        CHECK(LocalShape(a.graph->value(send.inputs[t]).type, mesh_, mesh_.CoordinateOf(from)) ==
                  LocalShape(b.graph->value(recv.outputs[t]).type, mesh_, mesh_.CoordinateOf(to)),
              "message {} from rank {} to rank {} has another shape there", i, from, to);
    }
    CHECK(sends.size() == receives.size(), "rank {} sends {} messages to rank {}, which expects {}", from, sends.size(),
          to, receives.size());
  }

  /// Messages between the stages of a pipeline, pair by pair.
  void ComparePairs(const std::vector<int>& ranks) const {
    // (sending stage, receiving stage) -> sends, receives
    std::map<std::pair<int, int>, std::pair<std::vector<Event>, std::vector<Event>>> pairs;
    for (int rank : ranks) {
      const Program& program = program_of_(rank);
      for (const Instruction& i : program.instructions) {
        const Op& op = OpOf(program, i);
        if (i.lane == Lane::kPpSend)
          pairs[{program.stage, op.Peer()}].first.push_back({i.op, i.microbatch, &i});
        else if (i.lane == Lane::kPpRecv)
          pairs[{op.Peer(), program.stage}].second.push_back({i.op, i.microbatch, &i});
      }
    }
    for (const auto& [stages, traces] : pairs)
      ComparePair(ranks[stages.first], ranks[stages.second], traces.first, traces.second);
  }

  /// The pipeline of `first`: one rank per stage. Collectives over other axes count as local in its replays, because
  /// their members run the same list.
  void CheckPipeline(int first) {
    const std::vector<int> ranks = mesh_.GroupRanks({Axis::kPp}, mesh_.CoordinateOf(first));
    std::vector<const Program*> programs;
    for (int rank : ranks) programs.push_back(&program_of_(rank));
    if (!replayed_.insert(programs).second) return;
    ComparePairs(ranks);
    Replay(programs);
    if (programs[0]->device != DeviceKind::kCuda) return;
    for (const Program* program : programs) CompareIssue(*program);
    ReplayIssue(programs);
  }

  /// Replays every lane in order; gather_stages waits for all stages.
  static void Replay(const std::vector<const Program*>& programs) {
    std::vector<LaneState> stages;
    for (const Program* p : programs) stages.emplace_back(*p);
    for (bool moved = true; moved;) {
      moved = false;
      for (LaneState& stage : stages)
        for (Lane lane : kLanes)
          while (Advance(stages, stage, lane)) moved = true;
    }
    for (const LaneState& stage : stages)
      for (Lane lane : kLanes)
        CHECK(stage.done[lane] == std::ssize(stage.lanes[lane]), "deadlock: stage {} lane {} never gets past {}",
              stage.program->stage, Name(lane), Describe(*stage.program, *stage.lanes[lane][stage.done[lane]]));
  }

  struct LaneState {
    explicit LaneState(const Program& p) : program(&p) {
      for (const Instruction& i : p.instructions) lanes[i.lane].push_back(&i);
    }
    const Instruction* Head(Lane lane) const {
      return done[lane] < std::ssize(lanes[lane]) ? lanes[lane][done[lane]] : nullptr;
    }
    bool Ready(Lane lane) const {
      const Instruction* head = Head(lane);
      return head != nullptr && std::all_of(head->waits.begin(), head->waits.end(),
                                            [&](const Wait& w) { return done[w.lane] >= w.count; });
    }
    const Program* program;
    ByLane<std::vector<const Instruction*>> lanes;
    ByLane<int> done{};
  };

  static bool Advance(std::vector<LaneState>& stages, LaneState& stage, Lane lane) {
    if (!stage.Ready(lane)) return false;
    const Op& op = OpOf(*stage.program, *stage.Head(lane));
    if (lane == Lane::kPpRecv) return false;  // completes together with its send
    if (lane == Lane::kPpSend) return Meet(stages, stage, op.Peer());
    if (op.kind == OpKind::kGatherStages) return GatherStages(stages, stage, lane);
    ++stage.done[lane];
    return true;
  }
  static bool Meet(std::vector<LaneState>& stages, LaneState& sender, int to) {
    LaneState& receiver = stages[to];
    if (!receiver.Ready(Lane::kPpRecv)) return false;
    const Op& recv = OpOf(*receiver.program, *receiver.Head(Lane::kPpRecv));
    if (recv.Peer() != sender.program->stage) return false;
    ++sender.done[Lane::kPpSend];
    ++receiver.done[Lane::kPpRecv];
    return true;
  }
  static bool GatherStages(std::vector<LaneState>& stages, const LaneState& stage, Lane lane) {
    const int op = stage.Head(lane)->op;
    for (const LaneState& other : stages)
      if (!other.Ready(lane) || other.Head(lane)->op != op) return false;
    for (LaneState& other : stages) ++other.done[lane];
    return true;
  }

  /// All ranks of a stage issue the same communication in the same order over all lanes, so the replay below needs only
  /// one rank per stage.
  void CompareIssue(const Program& program) {
    const Program& first = *first_of_stage_.try_emplace(program.stage, &program).first->second;
    const std::vector<Event> expected = IssueTrace(first), trace = IssueTrace(program);
    const auto same = [](const Event& a, const Event& b) { return a.op == b.op && a.microbatch == b.microbatch; };
    CHECK(std::equal(expected.begin(), expected.end(), trace.begin(), trace.end(), same),
          "ranks of stage {} issue their communication in different orders", program.stage);
  }

  /// On each rank one thread issues all communication in program order, and every call may wait until its peers have
  /// issued theirs (the first call on a communicator connects it; a full GPU starts no new kernel). If the replay
  /// reaches the end, the orders of all ranks merge into one, and kernels that start in that order cannot deadlock.
  static void ReplayIssue(const std::vector<const Program*>& programs) {
    std::vector<IssueState> stages;
    for (const Program* p : programs) stages.push_back({p, IssueTrace(*p)});
    for (bool moved = true; moved;) {
      moved = false;
      for (IssueState& stage : stages)
        while (IssueNext(stages, stage)) moved = true;
    }
    std::string stuck;
    for (const IssueState& stage : stages)
      if (!stage.Done())
        stuck += fmt::format("\n  stage {} at {}", stage.program->stage,
                             Describe(*stage.program, *stage.Head().instruction));
    CHECK(stuck.empty(), "deadlock: no order of all communication agrees with every rank's program{}", stuck);
  }

  struct IssueState {
    const Program* program;
    std::vector<Event> trace;
    size_t next = 0;
    bool Done() const { return next == trace.size(); }
    const Event& Head() const { return trace[next]; }
    /// True if the next call is op `op` of this microbatch.
    bool IsAt(int op, int microbatch) const { return !Done() && Head().op == op && Head().microbatch == microbatch; }
  };

  static bool IssueNext(std::vector<IssueState>& stages, IssueState& stage) {
    if (stage.Done()) return false;
    const auto [id, microbatch, instruction] = stage.Head();
    const Op& op = OpOf(*stage.program, *instruction);
    if (op.kind == OpKind::kRecv) return false;  // completes together with its send
    if (op.kind == OpKind::kSend) {
      IssueState& receiver = stages[op.Peer()];
      if (!receiver.IsAt(id + 1, microbatch)) return false;
      ++receiver.next;
    } else if (op.kind == OpKind::kGatherStages) {
      for (const IssueState& other : stages)
        if (!other.IsAt(id, microbatch)) return false;
      for (IssueState& other : stages)
        if (&other != &stage) ++other.next;
    }
    ++stage.next;
    return true;
  }

  const Mesh& mesh_;
  const std::function<const Program&(int)>& program_of_;
  std::map<const Program*, Groups> groups_;
  std::set<std::tuple<const Program*, const Program*, Lane, AxisSet>> compared_;
  std::map<int, const Program*> first_of_stage_;
  std::set<std::vector<const Program*>> replayed_;
};

}  // namespace

void CheckWorld(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of) {
  WorldChecker(mesh, program_of).Run();
}

std::vector<MessageRow> ListMessages(const Program& program, const Coordinate& coordinate) {
  std::map<std::tuple<Lane, AxisSet, std::string_view, Role>, MessageCount> rows;
  std::map<int, int64_t> bytes_of_op;
  std::map<std::string, int64_t> bytes_of_transfer;
  const auto wire_bytes = [&](const Op& op) {
    const auto [it, fresh] = bytes_of_transfer.try_emplace(TransferText(*program.graph, op), 0);
    if (fresh) it->second = WireBytes(*program.graph, op, program.mesh, coordinate);
    return it->second;
  };
  for (const Instruction& i : program.instructions) {
    if (i.lane == Lane::kCompute || i.lane == Lane::kPpRecv) continue;
    const Op& op = OpOf(program, i);
    auto [it, fresh] = bytes_of_op.try_emplace(i.op, 0);
    if (fresh)
      it->second = op.kind == OpKind::kGatherStages ? std::ssize(i.inputs) * 4 * (program.mesh.GroupSize(op.Axes()) - 1)
                                                    : wire_bytes(op);
    MessageCount& count =
        rows[{i.lane, op.kind == OpKind::kSend ? AxisSet{Axis::kPp} : op.Axes(), Name(op.kind), op.role}];
    ++count.count;
    count.bytes += it->second;
  }
  std::vector<MessageRow> list;
  for (const auto& [key, count] : rows) {
    const auto& [lane, group, kind, role] = key;
    list.push_back({lane, group, OpKindOf(kind), role, count});
  }
  return list;
}

std::vector<std::pair<std::string, MessageCount>> CountMessages(const Program& program, const Coordinate& coordinate) {
  ByLane<MessageCount> counts{};
  for (const MessageRow& row : ListMessages(program, coordinate)) {
    counts[row.lane].count += row.total.count;
    counts[row.lane].bytes += row.total.bytes;
  }
  std::vector<std::pair<std::string, MessageCount>> named;
  for (Lane lane : kLanes)
    if (counts[lane].count > 0) named.emplace_back(Name(lane), counts[lane]);
  return named;
}

}  // namespace espalier
