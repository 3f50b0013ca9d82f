// Checks the programs of all ranks without running any: the order of collectives per communicator, the order of
// messages per pair, a replay in which a send ends only when its receive has begun, and, for GPUs, a replay in which
// every call waits for the calls of its peers. Ranks are folded into the classes that share a program: each program is
// read once, and ranks are only looked up.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "trace.hpp"

namespace espalier {
namespace {

std::string TextOf(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  const Op& op = program.graph->op(instruction.op);
  std::string tensors;
  for (int v : op.inputs.empty() ? op.outputs : op.inputs)
    tensors += (tensors.empty() ? "" : ", ") + program.graph->value(v).name;
  return fmt::format("{}({}) of microbatch {}", op.kind, tensors, instruction.microbatch);
}

class WorldChecker {
 public:
  WorldChecker(const Mesh& mesh, const std::function<const Program&(int)>& program_of)
      : mesh_(mesh), classes_(ClassesOf(mesh, program_of)) {
    for (const Program* program : classes_.programs) traces_.push_back(reader_.Read(*program));
  }

  void Run() {
    for (const Group& group : AllGroups())
      if (!MembersAgree(group)) ReportFirstDisagreement();
    for (int rank = 0; rank < mesh_.Ranks() / mesh_.Degree(Axis::kPp); ++rank) CheckPipeline(rank);
  }

 private:
  using Group = std::pair<Lane, AxisSet>;  // a lane, and the axes of the communicator
  using Pipeline = std::vector<int>;       // by stage: a class

  const Program& ProgramOf(int of_class) const { return *classes_.programs[of_class]; }

  /// Lanes and groups of all programs.
  std::set<Group> AllGroups() const {
    std::set<Group> groups;
    for (const Trace& trace : traces_)
      for (const auto& [group, events] : trace.collectives) groups.insert(group);
    return groups;
  }

  /// The collectives of a class in a group; none if its program does not have the group.
  const std::vector<Event>& EventsOf(int of_class, const Group& group) const {
    return Find(traces_[of_class].collectives, group);
  }

  /// By class: equal numbers for equal lists of collectives.
  std::vector<int> NumberLists(const Group& group) const {
    std::map<size_t, std::vector<int>> seen;  // hash -> classes with different lists
    std::vector<int> number;
    for (int c = 0; c < std::ssize(classes_.programs); ++c) {
      const std::vector<Event>& events = EventsOf(c, group);
      std::vector<int>& alike = seen[HashOf(events)];
      const auto same = std::find_if(alike.begin(), alike.end(), [&](int o) { return EventsOf(o, group) == events; });
      number.push_back(same == alike.end() ? c : *same);
      if (same == alike.end()) alike.push_back(c);
    }
    return number;
  }

  /// Every member of every group has the collectives of the first one.
  bool MembersAgree(const Group& group) const {
    const std::vector<int> number = NumberLists(group);
    if (std::all_of(number.begin(), number.end(), [&](int n) { return n == number[0]; })) return true;
    const FirstMembers first(mesh_, group.second);
    for (int rank = 0; rank < mesh_.Ranks(); ++rank)
      if (number[classes_.of_rank[rank]] != number[classes_.of_rank[first.Of(rank)]]) return false;
    return true;
  }

  /// Throws for the first rank that disagrees, in the order of ranks: each compares itself with the first member of its
  /// groups, the first member also with all others.
  void ReportFirstDisagreement() const {
    for (int rank = 0; rank < mesh_.Ranks(); ++rank) {
      const Coordinate coordinate = mesh_.CoordinateOf(rank);
      for (const auto& [group, events] : traces_[classes_.of_rank[rank]].collectives) {
        const std::vector<int> members = mesh_.GroupRanks(group.second, coordinate);
        CompareCollectives(rank, members[0], group);
        if (members[0] == rank)
          for (int member : members) CompareCollectives(rank, member, group);
      }
    }
    CHECK(false, "members of a group disagree, but none with the first one");
  }

  void CompareCollectives(int rank, int peer, const Group& group) const {
    const int a = classes_.of_rank[rank], b = classes_.of_rank[peer];
    const std::vector<Event>&mine = EventsOf(a, group), &theirs = EventsOf(b, group);
    const auto& [lane, axes] = group;
    for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
      CHECK(mine[i] == theirs[i], "group {} on lane {}: collective {} is {} on rank {}, but {} on rank {}", Name(axes),
            Name(lane), i, TextOf(ProgramOf(a), mine[i].index), rank, TextOf(ProgramOf(b), theirs[i].index), peer);
    CHECK(mine.size() == theirs.size(), "group {} on lane {}: rank {} has {} collectives, rank {} has {}", Name(axes),
          Name(lane), rank, mine.size(), peer, theirs.size());
  }

  /// The pipeline of a rank of stage 0: one rank per stage. Collectives over other axes count as local in its replays,
  /// because their members run the same list.
  void CheckPipeline(int first) {
    const int stride = mesh_.Ranks() / mesh_.Degree(Axis::kPp);
    Pipeline pipeline;
    for (int rank = first; rank < mesh_.Ranks(); rank += stride) pipeline.push_back(classes_.of_rank[rank]);
    if (!replayed_.insert(pipeline).second) return;
    ComparePairs(pipeline, first, stride);
    Replay(pipeline);
    if (ProgramOf(pipeline[0]).device != DeviceKind::kCuda) return;
    for (int c : pipeline) CompareIssue(c);
    ReplayIssue(pipeline);
  }

  /// Messages between the stages of a pipeline, pair by pair.
  void ComparePairs(const Pipeline& pipeline, int first, int stride) {
    std::set<std::pair<int, int>> pairs;  // sending stage, receiving stage
    for (int c : pipeline) {
      for (const auto& [to, events] : traces_[c].sends) pairs.emplace(ProgramOf(c).stage, to);
      for (const auto& [from, events] : traces_[c].receives) pairs.emplace(from, ProgramOf(c).stage);
    }
    for (const auto& [from, to] : pairs)
      if (compared_.emplace(pipeline[from], pipeline[to], from, to).second)
        ComparePair(pipeline, from, to, first, stride);
  }

  void ComparePair(const Pipeline& pipeline, int from, int to, int first, int stride) const {
    const Program &a = ProgramOf(pipeline[from]), &b = ProgramOf(pipeline[to]);
    const int sender = first + from * stride, receiver = first + to * stride;
    const std::vector<Event>& sends = Find(traces_[pipeline[from]].sends, to);
    const std::vector<Event>& receives = Find(traces_[pipeline[to]].receives, from);
    std::set<int> fitting;  // sends whose tensors have the shapes of the receiver's
    for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
      // The pass that cuts stages emits a send and its recv side by side.
      CHECK(sends[i].op + 1 == receives[i].op && sends[i].microbatch == receives[i].microbatch,
            "message {} from rank {} to rank {} is {}, but the receiver expects {}", i, sender, receiver,
            TextOf(a, sends[i].index), TextOf(b, receives[i].index));
      if (!fitting.insert(sends[i].op).second) continue;
      const Op &send = a.graph->op(sends[i].op), &recv = b.graph->op(receives[i].op);
      for (size_t t = 0; t < send.inputs.size(); ++t)
        CHECK(LocalShape(a.graph->value(send.inputs[t]).type, mesh_, mesh_.CoordinateOf(sender)) ==
                  LocalShape(b.graph->value(recv.outputs[t]).type, mesh_, mesh_.CoordinateOf(receiver)),
              "message {} from rank {} to rank {} has another shape there", i, sender, receiver);
    }
    CHECK(sends.size() == receives.size(), "rank {} sends {} messages to rank {}, which expects {}", sender,
          sends.size(), receiver, receives.size());
  }
  static const std::vector<Event>& Find(const auto& events_by, const auto& key) {
    static const std::vector<Event> kNone;
    const auto it = events_by.find(key);
    return it == events_by.end() ? kNone : it->second;
  }

  /// Replays every lane in order; gather_stages waits for all stages.
  void Replay(const Pipeline& pipeline) const {
    std::vector<LaneState> stages;
    for (int c : pipeline) stages.push_back({&ProgramOf(c), &traces_[c], {}});
    for (bool moved = true; moved;) {
      moved = false;
      for (LaneState& stage : stages)
        for (Lane lane : kLanes)
          while (Advance(stages, stage, lane)) moved = true;
    }
    for (const LaneState& stage : stages)
      for (Lane lane : kLanes)
        CHECK(stage.Ended(lane), "deadlock: stage {} lane {} never gets past {}", stage.program->stage, Name(lane),
              TextOf(*stage.program, stage.HeadIndex(lane)));
  }

  struct LaneState {
    const Program* program;
    const Trace* trace;
    ByLane<int> done;

    int HeadIndex(Lane lane) const { return trace->lanes[lane][done[lane]]; }
    bool Ended(Lane lane) const { return done[lane] == std::ssize(trace->lanes[lane]); }
    Instruction Head(Lane lane) const { return program->instructions[HeadIndex(lane)]; }
    bool Ready(Lane lane) const {
      return !Ended(lane) &&
             std::ranges::all_of(Head(lane).waits, [&](const Wait& w) { return done[w.lane] >= w.count; });
    }
    const OpTraits& TraitsOfHead(Lane lane) const { return (*trace->traits)[Head(lane).op]; }
  };

  static bool Advance(std::vector<LaneState>& stages, LaneState& stage, Lane lane) {
    if (!stage.Ready(lane)) return false;
    if (lane == Lane::kPpRecv) return false;  // completes together with its send
    if (lane == Lane::kPpSend) return Meet(stages, stage, stage.TraitsOfHead(lane).peer);
    if (IsMessageLane(lane) && stage.TraitsOfHead(lane).kind == OpKind::kGatherStages)
      return GatherStages(stages, stage, lane);
    ++stage.done[lane];
    return true;
  }
  static bool Meet(std::vector<LaneState>& stages, LaneState& sender, int to) {
    LaneState& receiver = stages[to];
    if (!receiver.Ready(Lane::kPpRecv)) return false;
    if (receiver.TraitsOfHead(Lane::kPpRecv).peer != sender.program->stage) return false;
    ++sender.done[Lane::kPpSend];
    ++receiver.done[Lane::kPpRecv];
    return true;
  }
  static bool GatherStages(std::vector<LaneState>& stages, const LaneState& stage, Lane lane) {
    const int op = stage.Head(lane).op;
    for (const LaneState& other : stages)
      if (!other.Ready(lane) || other.Head(lane).op != op) return false;
    for (LaneState& other : stages) ++other.done[lane];
    return true;
  }

  /// All ranks of a stage issue the same communication in the same order over all lanes, so the replay below needs only
  /// one rank per stage.
  void CompareIssue(int of_class) {
    const int stage = ProgramOf(of_class).stage;
    const int first = first_of_stage_.try_emplace(stage, of_class).first->second;
    CHECK(traces_[first].issued == traces_[of_class].issued,
          "ranks of stage {} issue their communication in different orders", stage);
  }

  /// On each rank one thread issues all communication in program order, and every call may wait until its peers have
  /// issued theirs (the first call on a communicator connects it; a full GPU starts no new kernel). If the replay
  /// reaches the end, the orders of all ranks merge into one, and kernels that start in that order cannot deadlock.
  void ReplayIssue(const Pipeline& pipeline) const {
    std::vector<IssueState> stages;
    for (int c : pipeline) stages.push_back({&ProgramOf(c), &traces_[c]});
    for (bool moved = true; moved;) {
      moved = false;
      for (IssueState& stage : stages)
        while (IssueNext(stages, stage)) moved = true;
    }
    std::string stuck;
    for (const IssueState& stage : stages)
      if (!stage.Done())
        stuck += fmt::format("\n  stage {} at {}", stage.program->stage, TextOf(*stage.program, stage.Head().index));
    CHECK(stuck.empty(), "deadlock: no order of all communication agrees with every rank's program{}", stuck);
  }

  struct IssueState {
    const Program* program;
    const Trace* trace;
    size_t next = 0;
    bool Done() const { return next == trace->issued.size(); }
    const Event& Head() const { return trace->issued[next]; }
    /// True if the next call is op `op` of this microbatch.
    bool IsAt(int op, int microbatch) const { return !Done() && Head().op == op && Head().microbatch == microbatch; }
  };

  static bool IssueNext(std::vector<IssueState>& stages, IssueState& stage) {
    if (stage.Done()) return false;
    const Event& head = stage.Head();
    const OpTraits& op = (*stage.trace->traits)[head.op];
    if (op.kind == OpKind::kRecv) return false;  // completes together with its send
    if (op.kind == OpKind::kSend) {
      IssueState& receiver = stages[op.peer];
      if (!receiver.IsAt(head.op + 1, head.microbatch)) return false;
      ++receiver.next;
    } else if (op.kind == OpKind::kGatherStages) {
      for (const IssueState& other : stages)
        if (!other.IsAt(head.op, head.microbatch)) return false;
      for (IssueState& other : stages)
        if (&other != &stage) ++other.next;
    }
    ++stage.next;
    return true;
  }

  const Mesh& mesh_;
  const RankClasses classes_;
  TraceReader reader_;
  std::vector<Trace> traces_;                          // by class
  std::set<std::tuple<int, int, int, int>> compared_;  // classes and stages of a sender and its receiver
  std::map<int, int> first_of_stage_;                  // a class
  std::set<Pipeline> replayed_;
};

}  // namespace

void CheckWorld(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of) {
  WorldChecker(mesh, program_of).Run();
}

}  // namespace espalier
