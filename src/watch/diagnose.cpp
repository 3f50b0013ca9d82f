#include "espalier/watch/diagnose.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The instructions of each lane, in order, by index in the program.
using Lanes = std::array<std::vector<int>, kLaneCount>;

const Instruction& At(const Program& program, int index) { return program.instructions[static_cast<size_t>(index)]; }
const Op& OpAt(const Program& program, int index) {
  return program.graph->ops[static_cast<size_t>(At(program, index).op)];
}

Lanes LanesOf(const Program& program) {
  Lanes lanes;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    lanes[static_cast<size_t>(program.instructions[i].lane)].push_back(static_cast<int>(i));
  return lanes;
}

/// Where another rank is, seen from one that waits in an instruction for it.
enum class Relation : uint8_t { kBefore, kThere, kPast };

/// A rank that waits in an instruction, or (instruction -1) between steps, and the ranks it meets there.
struct Waiting {
  int rank = -1;
  int instruction = -1;
  std::vector<int> group;          ///< itself too
  std::vector<int> missing, past;  ///< ranks of the group

  /// Everybody but those that are past is there: only they can be to blame.
  bool PastAlone() const { return !past.empty() && missing.empty(); }
};

class Diagnoser {
 public:
  Diagnoser(const std::vector<Standing>& standings, const std::function<const Program&(int)>& program_of)
      : standings_(standings), program_of_(program_of) {}

  Diagnosis Run() {
    if (!FindStopped() && !FindAbsent() && !FindPast() && !FollowMissing() && !FindInKernel() && !FindStalled())
      BlameNobody();
    return std::move(diagnosis_);
  }

 private:
  const Heartbeat& BeatOf(int rank) const { return standings_[static_cast<size_t>(rank)].heartbeat; }
  bool InStep(int rank) const {
    const Activity activity = BeatOf(rank).activity;
    return activity == Activity::kStep || (activity == Activity::kStart && BeatOf(rank).step > 0);
  }
  const Lanes& LanesOfRank(int rank) {
    const Program& program = program_of_(rank);
    const auto [at, fresh] = lanes_.try_emplace(&program);
    if (fresh) at->second = LanesOf(program);
    return at->second;
  }

  /// The instruction whose turn it is on a lane; -1 behind the last.
  int Head(int rank, Lane lane) {
    const std::vector<int>& list = LanesOfRank(rank)[static_cast<size_t>(lane)];
    const auto done = static_cast<size_t>(BeatOf(rank).done[static_cast<size_t>(lane)]);
    return done < list.size() ? list[done] : -1;
  }
  std::vector<Wait> Unmet(int rank, int instruction) {
    std::vector<Wait> unmet = At(program_of_(rank), instruction).waits;
    std::erase_if(unmet, [&](const Wait& w) { return BeatOf(rank).done[static_cast<size_t>(w.lane)] >= w.count; });
    return unmet;
  }

  /// The instructions that are begun and hold up the compute lane, or the end of the step.
  std::set<int> Begun(int rank) {
    std::set<int> begun;
    std::set<Lane> seen;
    if (Head(rank, Lane::kCompute) >= 0) {
      AddBegun(rank, Lane::kCompute, begun, seen);
    } else {
      for (int lane = 0; lane < kLaneCount; ++lane) AddBegun(rank, static_cast<Lane>(lane), begun, seen);
    }
    return begun;
  }
  void AddBegun(int rank, Lane lane, std::set<int>& begun, std::set<Lane>& seen) {
    const int head = Head(rank, lane);
    if (head < 0 || !seen.insert(lane).second) return;
    const std::vector<Wait> unmet = Unmet(rank, head);
    if (unmet.empty()) begun.insert(head);
    for (const Wait& wait : unmet) AddBegun(rank, wait.lane, begun, seen);
  }

  std::vector<int> GroupOf(int rank, int instruction) {
    const Program& program = program_of_(rank);
    const Op& op = OpAt(program, instruction);
    Coordinate here = program.mesh.CoordinateOf(rank);
    if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) {
      here[Axis::kPp] = op.Peer();
      return {rank, program.mesh.RankOf(here)};
    }
    return program.mesh.GroupRanks(op.Axes(), here);
  }

  /// The peer's instruction that meets this one: a send and its recv stand side by side in the graph. -1 if it has
  /// none.
  int Counterpart(int rank, int instruction, int peer) {
    const Instruction& i = At(program_of_(rank), instruction);
    const OpKind kind = OpAt(program_of_(rank), instruction).kind;
    const int op = kind == OpKind::kSend ? i.op + 1 : kind == OpKind::kRecv ? i.op - 1 : i.op;
    const std::vector<Instruction>& theirs = program_of_(peer).instructions;
    const auto at =
        std::ranges::find_if(theirs, [&](const Instruction& t) { return t.op == op && t.microbatch == i.microbatch; });
    return at == theirs.end() ? -1 : static_cast<int>(at - theirs.begin());
  }

  Relation RelationOf(int rank, int instruction, int peer) {
    const Heartbeat &mine = BeatOf(rank), &theirs = BeatOf(peer);
    if (mine.step != theirs.step) return theirs.step > mine.step ? Relation::kPast : Relation::kBefore;
    if (!InStep(peer)) return Relation::kPast;
    const int counterpart = Counterpart(rank, instruction, peer);
    if (counterpart < 0) return Relation::kThere;
    const Lane lane = At(program_of_(peer), counterpart).lane;
    const std::vector<int>& list = LanesOfRank(peer)[static_cast<size_t>(lane)];
    const auto place = std::ranges::find(list, counterpart) - list.begin();
    const int done = theirs.done[static_cast<size_t>(lane)];
    if (done > place) return Relation::kPast;
    return done == place && Unmet(peer, counterpart).empty() ? Relation::kThere : Relation::kBefore;
  }

  /// What a rank waits for. A rank in a kernel waits for nobody.
  std::vector<Waiting> WaitsOf(int rank) {
    if (!InStep(rank)) return BetweenSteps(rank);
    std::vector<Waiting> waits;
    for (int instruction : Begun(rank)) {
      if (At(program_of_(rank), instruction).lane == Lane::kCompute) continue;
      Waiting waiting{rank, instruction, GroupOf(rank, instruction), {}, {}};
      for (int peer : waiting.group) {
        if (peer == rank) continue;
        const Relation relation = RelationOf(rank, instruction, peer);
        if (relation == Relation::kBefore) waiting.missing.push_back(peer);
        if (relation == Relation::kPast) waiting.past.push_back(peer);
      }
      waits.push_back(std::move(waiting));
    }
    return waits;
  }
  /// Between steps all ranks meet: it waits for those that have not come so far.
  std::vector<Waiting> BetweenSteps(int rank) const {
    Waiting waiting{rank, -1, {}, {}, {}};
    for (int peer = 0; peer < static_cast<int>(standings_.size()); ++peer) {
      waiting.group.push_back(peer);
      const int64_t here = BeatOf(rank).step, there = BeatOf(peer).step;
      if (there < here || (there == here && InStep(peer))) waiting.missing.push_back(peer);
      if (Agrees(rank) && there == here && BeatOf(peer).activity == Activity::kBetween) waiting.missing.push_back(peer);
      if (Agrees(rank) && WentOn(rank, peer)) waiting.past.push_back(peer);
    }
    if (waiting.missing.empty() && !Agrees(rank)) return {};
    return {waiting};
  }
  bool Agrees(int rank) const { return BeatOf(rank).activity == Activity::kAgreeing; }
  /// The peer does what comes after an agreement that this rank is still in.
  bool WentOn(int rank, int peer) const {
    const Heartbeat &mine = BeatOf(rank), &theirs = BeatOf(peer);
    if (theirs.step != mine.step) return theirs.step > mine.step;
    return theirs.activity == Activity::kSaving || theirs.activity == Activity::kEvaluating ||
           theirs.activity == Activity::kEnded;
  }

  bool FindStopped() {
    for (const auto& [state, fault] :
         {std::pair(ProcessState::kStopped, Fault::kStopped), std::pair(ProcessState::kGone, Fault::kGone),
          std::pair(ProcessState::kSilent, Fault::kSilent)})
      for (size_t rank = 0; rank < standings_.size(); ++rank)
        if (standings_[rank].process == state)
          return Blame(fault, static_cast<int>(rank), SomeoneWaitingFor(static_cast<int>(rank)));
    return false;
  }
  bool FindAbsent() {
    for (size_t rank = 0; rank < standings_.size(); ++rank)
      if (!standings_[rank].present)
        return Blame(Fault::kAbsent, static_cast<int>(rank), SomeoneWaitingFor(static_cast<int>(rank)));
    return false;
  }
  /// The first one whose wait for `culprit` is direct; else any that waits; else nobody.
  Waiting SomeoneWaitingFor(int culprit) {
    Waiting any;
    for (int rank = 0; rank < static_cast<int>(standings_.size()); ++rank) {
      if (rank == culprit) continue;
      for (const Waiting& waiting : WaitsOf(rank)) {
        if (std::ranges::count(waiting.missing, culprit) + std::ranges::count(waiting.past, culprit) > 0)
          return waiting;
        if (any.rank < 0) any = waiting;
      }
    }
    return any;
  }

  /// The earliest wait in which all are there but those that went past.
  bool FindPast() {
    Waiting first;
    for (int rank = 0; rank < static_cast<int>(standings_.size()); ++rank)
      for (const Waiting& waiting : WaitsOf(rank))
        if (waiting.PastAlone() && (first.rank < 0 || BeatOf(rank).step < BeatOf(first.rank).step)) first = waiting;
    if (first.rank < 0) return false;
    return BlameNetwork(first, OnOtherHosts(first.rank, first.past)) ||
           Blame(Fault::kWentPast, first.past.front(), first);
  }

  /// From rank to rank, each waiting for the next, to one that waits for nobody.
  bool FollowMissing() {
    for (int start = 0; start < static_cast<int>(standings_.size()); ++start) {
      std::set<int> seen;
      Waiting last;
      for (int rank = start; seen.insert(rank).second;) {
        const std::vector<Waiting> waits = WaitsOf(rank);
        const auto next = std::ranges::find_if(waits, [](const Waiting& w) { return !w.missing.empty(); });
        if (next == waits.end()) {
          for (const Waiting& arrived : waits)
            if (arrived.past.empty() && BlameNetwork(arrived, OnOtherHosts(rank, arrived.group))) return true;
          if (last.rank >= 0) return Blame(Fault::kNotArrived, rank, last);
          break;
        }
        last = *next;
        rank = last.missing.front();
      }
    }
    return false;
  }

  /// The only one that stands in a kernel, while the others wait for messages that all have reached.
  bool FindInKernel() {
    std::vector<int> in_kernel;
    for (int rank = 0; rank < static_cast<int>(standings_.size()); ++rank)
      if (InStep(rank) && StandsInKernel(rank)) in_kernel.push_back(rank);
    return in_kernel.size() == 1 && Blame(Fault::kInKernel, in_kernel[0], SomeoneWaitingFor(in_kernel[0]));
  }
  bool StandsInKernel(int rank) {
    return std::ranges::any_of(Begun(rank), [&](int i) { return At(program_of_(rank), i).lane == Lane::kCompute; });
  }

  /// All have arrived in some instruction whose group is on several hosts.
  bool FindStalled() {
    for (int rank = 0; rank < static_cast<int>(standings_.size()); ++rank)
      for (const Waiting& waiting : WaitsOf(rank))
        if (waiting.missing.empty() && BlameNetwork(waiting, OnOtherHosts(rank, waiting.group))) return true;
    return false;
  }
  std::vector<int> OnOtherHosts(int rank, std::vector<int> peers) const {
    std::erase_if(peers, [&](int peer) { return BeatOf(peer).host == BeatOf(rank).host; });
    return peers;
  }
  /// What `senders`, all on other hosts, sent has not come to the one that waits; false if there are none.
  bool BlameNetwork(const Waiting& waiting, const std::vector<int>& senders) {
    if (senders.empty()) return false;
    const std::string from = fmt::format("{} {}", senders.size() == 1 ? "rank" : "ranks", fmt::join(senders, ", "));
    std::set<std::string> hosts = {BeatOf(waiting.rank).host};
    for (int sender : senders) hosts.insert(BeatOf(sender).host);
    const bool sent = !waiting.past.empty();
    diagnosis_ = {Fault::kLost, -1, waiting.rank, waiting.instruction, waiting.group, senders, WaitsText(waiting)};
    diagnosis_.text +=
        sent ? fmt::format("; {} sent its part and went on", from) : fmt::format("; {} arrived there too", from);
    diagnosis_.text += fmt::format("\nthe network between hosts {} does not deliver messages{}", fmt::join(hosts, ", "),
                                   sent ? fmt::format(", or {} left the instruction out", from) : "");
    for (int rank : {waiting.rank, senders.front()}) diagnosis_.text += fmt::format("\nrank {} {}", rank, Place(rank));
    return true;
  }

  bool Blame(Fault fault, int culprit, const Waiting& waiting) {
    diagnosis_ = {fault, culprit, waiting.rank, waiting.instruction, waiting.group, waiting.missing, ""};
    for (int rank : waiting.past) diagnosis_.missing.push_back(rank);
    std::ranges::sort(diagnosis_.missing);
    if (waiting.rank >= 0) diagnosis_.text = Sentence(waiting) + "\n";
    diagnosis_.text += fmt::format("rank {} {}", culprit, Accusation(fault, culprit, waiting));
    if (fault != Fault::kAbsent) diagnosis_.text += fmt::format("\nrank {} {}", culprit, Place(culprit));
    return true;
  }
  std::string Accusation(Fault fault, int culprit, const Waiting& waiting) const {
    switch (fault) {
      case Fault::kStopped:
        return "is stopped: its process was stopped by a signal or a debugger";
      case Fault::kGone:
        return "is gone: its process has ended";
      case Fault::kAbsent:
        return AbsentText(culprit);
      case Fault::kSilent:
        return "gives no sign of life: its process is stopped, or its host is down or cut off";
      case Fault::kWentPast:
        return fmt::format("went past instruction {} of rank {} without it", waiting.instruction, waiting.rank);
      case Fault::kInKernel:
        return "alone stands in a kernel, for so long that its process may be stopped";
      default:
        return "has not arrived there, and waits for no other rank";
    }
  }
  std::string AbsentText(int rank) const {
    if (standings_[static_cast<size_t>(rank)].process != ProcessState::kRunning)
      return "has no heartbeat any more: its process has ended, or the file was removed";
    return fmt::format("has no heartbeat any more: the file was removed, while its process ({}) runs",
                       BeatOf(rank).process);
  }
  void BlameNobody() {
    diagnosis_ = {};
    diagnosis_.text = "no rank can be blamed: all have arrived where they wait for each other";
    for (int rank = 0; rank < static_cast<int>(std::min<size_t>(standings_.size(), 16)); ++rank)
      diagnosis_.text += fmt::format("\nrank {} {}", rank, Place(rank));
  }

  std::string Sentence(const Waiting& w) {
    std::vector<int> absent = w.missing;
    absent.insert(absent.end(), w.past.begin(), w.past.end());
    std::ranges::sort(absent);
    return fmt::format("{}; not there: {}", WaitsText(w),
                       absent.empty() ? "nobody, all have arrived" : fmt::format("{}", fmt::join(absent, ", ")));
  }
  /// "rank 3 waits in instruction 31 (...) of step 5, group tp (ranks 2, 3)".
  std::string WaitsText(const Waiting& w) {
    if (w.instruction < 0)
      return fmt::format("rank {} waits after step {} for the other ranks", w.rank, BeatOf(w.rank).step);
    const Op& op = OpAt(program_of_(w.rank), w.instruction);
    const bool between_stages = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
    const std::string group = between_stages ? "pp" : Name(op.Axes());
    return fmt::format("rank {} waits in {} of step {}, group {} (ranks {})", w.rank,
                       Describe(program_of_(w.rank), w.instruction), BeatOf(w.rank).step, group,
                       fmt::join(w.group, ", "));
  }
  /// "stands at instruction 31 (...) of step 5 (process 12 on host a)".
  std::string Place(int rank) {
    const Heartbeat& beat = BeatOf(rank);
    const std::string where = fmt::format("(process {} on {})", beat.process, beat.host);
    if (!standings_[static_cast<size_t>(rank)].present) return "has no heartbeat";
    if (!InStep(rank)) return fmt::format("is {}, step {} {}", Name(beat.activity), beat.step, where);
    std::vector<std::string> at;
    for (int instruction : Begun(rank)) at.push_back(Describe(program_of_(rank), instruction));
    return fmt::format("stands at {} of step {} {}", at.empty() ? "the end" : fmt::format("{}", fmt::join(at, " and ")),
                       beat.step, where);
  }

  const std::vector<Standing>& standings_;
  const std::function<const Program&(int)>& program_of_;
  std::map<const Program*, Lanes> lanes_;
  Diagnosis diagnosis_;
};

}  // namespace

Diagnosis Diagnose(const std::vector<Standing>& standings, const std::function<const Program&(int rank)>& program_of) {
  return Diagnoser(standings, program_of).Run();
}

}  // namespace espalier
