// The whole world's programs at once, without running any: order of collectives per communicator, order of messages per
// pair, a replay in which a send ends only when its receive has begun, and, for GPUs, one in which every call waits for
// its peers'.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "transfer_text.hpp"

namespace espalier {
namespace {

const Op& OpOf(const Program& program, const Instruction& instruction) {
  return program.graph->ops[static_cast<size_t>(instruction.op)];
}

AxisSet GroupOf(const Op& op) { return AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes"))); }

std::string Describe(const Program& program, const Instruction& instruction) {
  const Op& op = OpOf(program, instruction);
  std::string tensors;
  for (int v : op.inputs.empty() ? op.outputs : op.inputs)
    tensors += (tensors.empty() ? "" : ", ") + program.graph->values[static_cast<size_t>(v)].name;
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
    if (i.lane == lane && op.kind != "send" && op.kind != "recv" && GroupOf(op) == axes)
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
      if (mesh_.CoordinateOf(rank)[0] == 0) CheckPipeline(rank);
  }

 private:
  using Groups = std::set<std::pair<Lane, AxisSet>>;

  /// Lanes and groups of a program's collectives; found once for each program.
  const Groups& GroupsOf(const Program& program) {
    const auto [it, fresh] = groups_.try_emplace(&program);
    if (fresh)
      for (const Instruction& i : program.instructions)
        if (i.lane != Lane::kCompute && i.lane != Lane::kPpSend && i.lane != Lane::kPpRecv)
          it->second.emplace(i.lane, GroupOf(OpOf(program, i)));
    return it->second;
  }

  /// Every member's collectives are those of the first one. A group is looked at from its first member, and from one
  /// whose first member has another program, which may know nothing of the group.
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
        CHECK(LocalShape(a.graph->values[static_cast<size_t>(send.inputs[t])].type, mesh_, mesh_.CoordinateOf(from)) ==
                  LocalShape(b.graph->values[static_cast<size_t>(recv.outputs[t])].type, mesh_, mesh_.CoordinateOf(to)),
              "message {} from rank {} to rank {} has another shape there", i, from, to);
    }
    CHECK(sends.size() == receives.size(), "rank {} sends {} messages to rank {}, which expects {}", from, sends.size(),
          to, receives.size());
  }

  /// Messages between the stages of a pipeline, pair by pair.
  void ComparePairs(const std::vector<int>& ranks) const {
    std::map<std::pair<int, int>, std::pair<std::vector<Event>, std::vector<Event>>>
        pairs;  // stages -> sends, receives
    for (int rank : ranks) {
      const Program& program = program_of_(rank);
      for (const Instruction& i : program.instructions) {
        const Op& op = OpOf(program, i);
        if (i.lane == Lane::kPpSend)
          pairs[{program.stage, static_cast<int>(op.attributes.Number("to"))}].first.push_back(
              {i.op, i.microbatch, &i});
        else if (i.lane == Lane::kPpRecv)
          pairs[{static_cast<int>(op.attributes.Number("from")), program.stage}].second.push_back(
              {i.op, i.microbatch, &i});
      }
    }
    for (const auto& [stages, traces] : pairs)
      ComparePair(ranks[static_cast<size_t>(stages.first)], ranks[static_cast<size_t>(stages.second)], traces.first,
                  traces.second);
  }

  /// The pipeline that holds `first`: one rank a stage. Collectives of other axes are local in its replays: their
  /// members run the same list.
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

  /// Every lane in order; gather_stages waits for all stages.
  static void Replay(const std::vector<const Program*>& programs) {
    std::vector<StageState> stages;
    for (const Program* p : programs) stages.emplace_back(*p);
    for (bool moved = true; moved;) {
      moved = false;
      for (StageState& stage : stages)
        for (size_t lane = 0; lane < kLaneCount; ++lane)
          while (Advance(stages, stage, lane)) moved = true;
    }
    for (const StageState& stage : stages)
      for (size_t lane = 0; lane < kLaneCount; ++lane)
        CHECK(stage.done[lane] == static_cast<int>(stage.lanes[lane].size()),
              "deadlock: stage {} lane {} never gets past {}", stage.program->stage, Name(static_cast<Lane>(lane)),
              Describe(*stage.program, *stage.lanes[lane][static_cast<size_t>(stage.done[lane])]));
  }

  struct StageState {
    explicit StageState(const Program& p) : program(&p) {
      for (const Instruction& i : p.instructions) lanes[static_cast<size_t>(i.lane)].push_back(&i);
    }
    const Instruction* Head(Lane lane) const {
      const auto l = static_cast<size_t>(lane);
      return done[l] < static_cast<int>(lanes[l].size()) ? lanes[l][static_cast<size_t>(done[l])] : nullptr;
    }
    bool Ready(Lane lane) const {
      const Instruction* head = Head(lane);
      return head != nullptr && std::all_of(head->waits.begin(), head->waits.end(), [&](const Wait& w) {
               return done[static_cast<size_t>(w.lane)] >= w.count;
             });
    }
    const Program* program;
    std::array<std::vector<const Instruction*>, kLaneCount> lanes;
    std::array<int, kLaneCount> done{};
  };

  static bool Advance(std::vector<StageState>& stages, StageState& stage, size_t l) {
    const auto lane = static_cast<Lane>(l);
    if (!stage.Ready(lane)) return false;
    const Op& op = OpOf(*stage.program, *stage.Head(lane));
    if (lane == Lane::kPpRecv) return false;  // ends together with its send
    if (lane == Lane::kPpSend) return Meet(stages, stage, static_cast<size_t>(op.attributes.Number("to")));
    if (op.kind == "gather_stages") return GatherStages(stages, stage, lane);
    ++stage.done[l];
    return true;
  }
  static bool Meet(std::vector<StageState>& stages, StageState& sender, size_t to) {
    StageState& receiver = stages[to];
    if (!receiver.Ready(Lane::kPpRecv)) return false;
    const Op& recv = OpOf(*receiver.program, *receiver.Head(Lane::kPpRecv));
    if (static_cast<int>(recv.attributes.Number("from")) != sender.program->stage) return false;
    ++sender.done[static_cast<size_t>(Lane::kPpSend)];
    ++receiver.done[static_cast<size_t>(Lane::kPpRecv)];
    return true;
  }
  static bool GatherStages(std::vector<StageState>& stages, const StageState& stage, Lane lane) {
    const int op = stage.Head(lane)->op;
    for (const StageState& other : stages)
      if (!other.Ready(lane) || other.Head(lane)->op != op) return false;
    for (StageState& other : stages) ++other.done[static_cast<size_t>(lane)];
    return true;
  }

  /// All ranks of a stage issue the same communication in the same order, whatever its lane: so one of them stands for
  /// all below.
  void CompareIssue(const Program& program) {
    const Program& first = *first_of_stage_.try_emplace(program.stage, &program).first->second;
    const std::vector<Event> expected = IssueTrace(first), trace = IssueTrace(program);
    const auto same = [](const Event& a, const Event& b) { return a.op == b.op && a.microbatch == b.microbatch; };
    CHECK(std::equal(expected.begin(), expected.end(), trace.begin(), trace.end(), same),
          "ranks of stage {} issue their communication in different orders", program.stage);
  }

  /// One thread a rank issues all communication in program order, and every call may wait until its peers have issued
  /// theirs (a communicator's first call connects it; a full GPU starts nothing new). If this reaches the end, the
  /// orders of all ranks merge into one, and kernels that start in that order cannot wait for each other.
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
    if (op.kind == "recv") return false;  // ends together with its send
    if (op.kind == "send") {
      IssueState& receiver = stages[static_cast<size_t>(op.attributes.Number("to"))];
      if (!receiver.IsAt(id + 1, microbatch)) return false;
      ++receiver.next;
    } else if (op.kind == "gather_stages") {
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
  std::map<std::tuple<Lane, AxisSet, std::string, Role>, MessageCount> rows;
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
      it->second = op.kind == "gather_stages"
                       ? static_cast<int64_t>(i.inputs.size()) * 4 * (program.mesh.GroupSize(GroupOf(op)) - 1)
                       : wire_bytes(op);
    MessageCount& count = rows[{i.lane, op.kind == "send" ? AxisSet{Axis::kPp} : GroupOf(op), op.kind, op.role}];
    ++count.count;
    count.bytes += it->second;
  }
  std::vector<MessageRow> list;
  for (const auto& [key, count] : rows) {
    const auto& [lane, group, kind, role] = key;
    list.push_back({lane, group, kind, role, count});
  }
  return list;
}

std::vector<std::pair<std::string, MessageCount>> CountMessages(const Program& program, const Coordinate& coordinate) {
  std::array<MessageCount, kLaneCount> counts{};
  for (const MessageRow& row : ListMessages(program, coordinate)) {
    counts[static_cast<size_t>(row.lane)].count += row.total.count;
    counts[static_cast<size_t>(row.lane)].bytes += row.total.bytes;
  }
  std::vector<std::pair<std::string, MessageCount>> named;
  for (size_t l = 0; l < kLaneCount; ++l)
    if (counts[l].count > 0) named.emplace_back(Name(static_cast<Lane>(l)), counts[l]);
  return named;
}

}  // namespace espalier
