#include "espalier/watch/diagnose.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The instructions of each lane, in order, as indices into the program.
using Lanes = std::array<std::vector<int>, kLaneCount>;

Instruction At(const Program& program, int index) { return program.instructions[static_cast<size_t>(index)]; }
const Op& OpAt(const Program& program, int index) {
  return program.graph->ops[static_cast<size_t>(At(program, index).op)];
}

Lanes LanesOf(const Program& program) {
  Lanes lanes;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    lanes[static_cast<size_t>(program.instructions[i].lane)].push_back(static_cast<int>(i));
  return lanes;
}

/// The position of a peer relative to an instruction in which a rank waits for it.
enum class PeerPosition : uint8_t { kBefore, kArrived, kPast };

/// A rank that waits in an instruction, or (instruction -1) between steps, and the ranks that take part.
struct PendingWait {
  int rank = -1;
  int instruction = -1;
  std::vector<int> group;          ///< including itself
  std::vector<int> missing, past;  ///< ranks of the group

  /// Whether all have arrived except the ranks that are past it: only these can be at fault.
  bool PastAlone() const { return !past.empty() && missing.empty(); }
};

class Diagnoser {
 public:
  Diagnoser(const std::vector<RankStatus>& statuses, const ProgramFinder& program_of)
      : statuses_(statuses), program_of_(program_of) {}

  Diagnosis Run() {
    if (!FindStopped() && !FindAbsent() && !FindPast() && !FollowMissing() && !FindInKernel() &&
        !FindLostBetweenHosts())
      BlameNobody();
    return std::move(diagnosis_);
  }

 private:
  const Heartbeat& BeatOf(int rank) const { return statuses_[static_cast<size_t>(rank)].heartbeat; }
  const Program& ProgramOf(int rank) const { return program_of_(rank, BeatOf(rank).step); }
  bool InStep(int rank) const {
    const Activity activity = BeatOf(rank).activity;
    return activity == Activity::kStep || (activity == Activity::kStart && BeatOf(rank).step > 0);
  }
  const Lanes& LanesOfRank(int rank) {
    const Program& program = ProgramOf(rank);
    const auto [at, fresh] = lanes_.try_emplace(&program);
    if (fresh) at->second = LanesOf(program);
    return at->second;
  }

  /// The next instruction of a lane, or the running one; -1 after the last.
  int Head(int rank, Lane lane) {
    const std::vector<int>& list = LanesOfRank(rank)[static_cast<size_t>(lane)];
    const auto done = static_cast<size_t>(BeatOf(rank).done[static_cast<size_t>(lane)]);
    return done < list.size() ? list[done] : -1;
  }
  std::vector<Wait> Unmet(int rank, int instruction) {
    const std::span<const Wait> waits = At(ProgramOf(rank), instruction).waits;
    std::vector<Wait> unmet(waits.begin(), waits.end());
    std::erase_if(unmet, [&](const Wait& w) { return BeatOf(rank).done[static_cast<size_t>(w.lane)] >= w.count; });
    return unmet;
  }

  /// The instructions that have begun and on which the compute lane, or the end of the step, waits.
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
    const Program& program = ProgramOf(rank);
    const Op& op = OpAt(program, instruction);
    Coordinate here = program.mesh.CoordinateOf(rank);
    if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) {
      here[Axis::kPp] = op.Peer();
      return {rank, program.mesh.RankOf(here)};
    }
    return program.mesh.GroupRanks(op.Axes(), here);
  }

  /// The peer's instruction that matches this one; -1 if it has none. A send and its recv are adjacent in the graph.
  int Counterpart(int rank, int instruction, int peer) {
    const Instruction& i = At(ProgramOf(rank), instruction);
    const OpKind kind = OpAt(ProgramOf(rank), instruction).kind;
    const int op = kind == OpKind::kSend ? i.op + 1 : kind == OpKind::kRecv ? i.op - 1 : i.op;
    const Instructions& theirs = ProgramOf(peer).instructions;
    const auto at =
        std::ranges::find_if(theirs, [&](const Instruction& t) { return t.op == op && t.microbatch == i.microbatch; });
    return at == theirs.end() ? -1 : static_cast<int>(at - theirs.begin());
  }

  PeerPosition PositionOfPeer(int rank, int instruction, int peer) {
    const Heartbeat &mine = BeatOf(rank), &theirs = BeatOf(peer);
    if (mine.step != theirs.step) return theirs.step > mine.step ? PeerPosition::kPast : PeerPosition::kBefore;
    if (!InStep(peer)) return PeerPosition::kPast;
    const int counterpart = Counterpart(rank, instruction, peer);
    if (counterpart < 0) return PeerPosition::kArrived;
    const Lane lane = At(ProgramOf(peer), counterpart).lane;
    const std::vector<int>& list = LanesOfRank(peer)[static_cast<size_t>(lane)];
    const auto place = std::ranges::find(list, counterpart) - list.begin();
    const int done = theirs.done[static_cast<size_t>(lane)];
    if (done > place) return PeerPosition::kPast;
    return done == place && Unmet(peer, counterpart).empty() ? PeerPosition::kArrived : PeerPosition::kBefore;
  }

  /// The waits of a rank. A rank in a kernel, or in a copy, waits for no other rank.
  std::vector<PendingWait> PendingWaitsOf(int rank) {
    if (!InStep(rank)) return BetweenSteps(rank);
    std::vector<PendingWait> waits;
    for (int instruction : Begun(rank)) {
      if (!IsMessageLane(At(ProgramOf(rank), instruction).lane)) continue;
      PendingWait wait{rank, instruction, GroupOf(rank, instruction), {}, {}};
      for (int peer : wait.group) {
        if (peer == rank) continue;
        const PeerPosition relation = PositionOfPeer(rank, instruction, peer);
        if (relation == PeerPosition::kBefore) wait.missing.push_back(peer);
        if (relation == PeerPosition::kPast) wait.past.push_back(peer);
      }
      waits.push_back(std::move(wait));
    }
    return waits;
  }
  /// Between steps all ranks synchronize: the rank waits for the ranks that have not reached the end of its step.
  std::vector<PendingWait> BetweenSteps(int rank) const {
    PendingWait wait{rank, -1, {}, {}, {}};
    for (int peer = 0; peer < static_cast<int>(statuses_.size()); ++peer) {
      wait.group.push_back(peer);
      const int64_t here = BeatOf(rank).step, there = BeatOf(peer).step;
      if (there < here || (there == here && InStep(peer))) wait.missing.push_back(peer);
      if (IsAgreeing(rank) && there == here && BeatOf(peer).activity == Activity::kBetween)
        wait.missing.push_back(peer);
      if (IsAgreeing(rank) && WentOn(rank, peer)) wait.past.push_back(peer);
    }
    if (wait.missing.empty() && !IsAgreeing(rank)) return {};
    return {wait};
  }
  bool IsAgreeing(int rank) const { return BeatOf(rank).activity == Activity::kAgreeing; }
  /// The peer has left an agreement in which this rank still waits.
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
      for (size_t rank = 0; rank < statuses_.size(); ++rank)
        if (statuses_[rank].process == state)
          return Blame(fault, static_cast<int>(rank), WaitForRank(static_cast<int>(rank)));
    return false;
  }
  bool FindAbsent() {
    for (size_t rank = 0; rank < statuses_.size(); ++rank)
      if (!statuses_[rank].present)
        return Blame(Fault::kAbsent, static_cast<int>(rank), WaitForRank(static_cast<int>(rank)));
    return false;
  }
  /// The first wait that is directly for `culprit`, otherwise any wait, otherwise an empty one.
  PendingWait WaitForRank(int culprit) {
    PendingWait any;
    for (int rank = 0; rank < static_cast<int>(statuses_.size()); ++rank) {
      if (rank == culprit) continue;
      for (const PendingWait& wait : PendingWaitsOf(rank)) {
        if (std::ranges::count(wait.missing, culprit) + std::ranges::count(wait.past, culprit) > 0) return wait;
        if (any.rank < 0) any = wait;
      }
    }
    return any;
  }

  /// Blames a rank that went past the earliest wait in which all others have arrived.
  bool FindPast() {
    PendingWait first;
    for (int rank = 0; rank < static_cast<int>(statuses_.size()); ++rank)
      for (const PendingWait& wait : PendingWaitsOf(rank))
        if (wait.PastAlone() && (first.rank < 0 || BeatOf(rank).step < BeatOf(first.rank).step)) first = wait;
    if (first.rank < 0) return false;
    return BlameNetwork(first, OnOtherHosts(first.rank, first.past)) ||
           Blame(Fault::kWentPast, first.past.front(), first);
  }

  /// Follows the waits from rank to rank, up to one that waits for nobody.
  bool FollowMissing() {
    for (int start = 0; start < static_cast<int>(statuses_.size()); ++start) {
      std::set<int> seen;
      PendingWait last;
      for (int rank = start; seen.insert(rank).second;) {
        const std::vector<PendingWait> waits = PendingWaitsOf(rank);
        const auto next = std::ranges::find_if(waits, [](const PendingWait& w) { return !w.missing.empty(); });
        if (next == waits.end()) {
          for (const PendingWait& arrived : waits)
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

  /// Blames the only rank that is in a kernel, while the others wait in instructions at which all have arrived.
  bool FindInKernel() {
    std::vector<int> in_kernel;
    for (int rank = 0; rank < static_cast<int>(statuses_.size()); ++rank)
      if (InStep(rank) && IsInKernel(rank)) in_kernel.push_back(rank);
    return in_kernel.size() == 1 && Blame(Fault::kInKernel, in_kernel[0], WaitForRank(in_kernel[0]));
  }
  bool IsInKernel(int rank) {
    return std::ranges::any_of(Begun(rank), [&](int i) { return !IsMessageLane(At(ProgramOf(rank), i).lane); });
  }

  /// Blames the network for an instruction across hosts at which all have arrived.
  bool FindLostBetweenHosts() {
    for (int rank = 0; rank < static_cast<int>(statuses_.size()); ++rank)
      for (const PendingWait& wait : PendingWaitsOf(rank))
        if (wait.missing.empty() && BlameNetwork(wait, OnOtherHosts(rank, wait.group))) return true;
    return false;
  }
  std::vector<int> OnOtherHosts(int rank, std::vector<int> peers) const {
    std::erase_if(peers, [&](int peer) { return BeatOf(peer).host == BeatOf(rank).host; });
    return peers;
  }
  /// Messages of `senders`, all on other hosts, have not reached the waiting rank; false if there are no senders.
  bool BlameNetwork(const PendingWait& wait, const std::vector<int>& senders) {
    if (senders.empty()) return false;
    const std::string from = fmt::format("{} {}", senders.size() == 1 ? "rank" : "ranks", fmt::join(senders, ", "));
    std::set<std::string> hosts = {BeatOf(wait.rank).host};
    for (int sender : senders) hosts.insert(BeatOf(sender).host);
    const bool sent = !wait.past.empty();
    diagnosis_ = {Fault::kLost, -1, wait.rank, wait.instruction, wait.group, senders, WaitText(wait)};
    diagnosis_.text +=
        sent ? fmt::format("; {} sent its part and went on", from) : fmt::format("; {} arrived there too", from);
    diagnosis_.text += fmt::format("\nthe network between hosts {} does not deliver messages{}", fmt::join(hosts, ", "),
                                   sent ? fmt::format(", or {} left the instruction out", from) : "");
    for (int rank : {wait.rank, senders.front()}) diagnosis_.text += fmt::format("\nrank {} {}", rank, Place(rank));
    return true;
  }

  bool Blame(Fault fault, int culprit, const PendingWait& wait) {
    diagnosis_ = {fault, culprit, wait.rank, wait.instruction, wait.group, wait.missing, ""};
    for (int rank : wait.past) diagnosis_.missing.push_back(rank);
    std::ranges::sort(diagnosis_.missing);
    if (wait.rank >= 0) diagnosis_.text = WaitAndAbsent(wait) + "\n";
    diagnosis_.text += fmt::format("rank {} {}", culprit, Accusation(fault, culprit, wait));
    if (fault != Fault::kAbsent) diagnosis_.text += fmt::format("\nrank {} {}", culprit, Place(culprit));
    return true;
  }
  std::string Accusation(Fault fault, int culprit, const PendingWait& wait) const {
    switch (fault) {
      case Fault::kStopped:
        return "is stopped: its process was stopped by a signal or a debugger";
      case Fault::kGone:
        return "is gone: its process has ended";
      case Fault::kAbsent:
        return AbsentText(culprit);
      case Fault::kSilent:
        return "gives no sign of life: its process is stopped, or its host is down or disconnected";
      case Fault::kWentPast:
        return fmt::format("went past instruction {} of rank {} without it", wait.instruction, wait.rank);
      case Fault::kInKernel:
        return "is the only rank in a kernel, for so long that its process may be stopped";
      default:
        return "has not arrived there, and waits for no other rank";
    }
  }
  std::string AbsentText(int rank) const {
    if (statuses_[static_cast<size_t>(rank)].process != ProcessState::kRunning)
      return "has no heartbeat any more: its process has ended, or the file was removed";
    return fmt::format("has no heartbeat any more: the file was removed, while its process ({}) runs",
                       BeatOf(rank).process);
  }
  void BlameNobody() {
    diagnosis_ = {};
    diagnosis_.text = "no rank is to blame: all have arrived in the instructions in which they wait for each other";
    for (int rank = 0; rank < static_cast<int>(std::min<size_t>(statuses_.size(), 16)); ++rank)
      diagnosis_.text += fmt::format("\nrank {} {}", rank, Place(rank));
  }

  std::string WaitAndAbsent(const PendingWait& w) {
    std::vector<int> absent = w.missing;
    absent.insert(absent.end(), w.past.begin(), w.past.end());
    std::ranges::sort(absent);
    return fmt::format("{}; not there: {}", WaitText(w),
                       absent.empty() ? "nobody, all have arrived" : fmt::format("{}", fmt::join(absent, ", ")));
  }
  /// "rank 3 waits in instruction 31 (...) of step 5, group tp (ranks 2, 3)".
  std::string WaitText(const PendingWait& w) {
    if (w.instruction < 0)
      return fmt::format("rank {} waits after step {} for the other ranks", w.rank, BeatOf(w.rank).step);
    const Op& op = OpAt(ProgramOf(w.rank), w.instruction);
    const bool between_stages = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
    const std::string group = between_stages ? "pp" : Name(op.Axes());
    return fmt::format("rank {} waits in {} of step {}, group {} (ranks {})", w.rank,
                       Describe(ProgramOf(w.rank), w.instruction), BeatOf(w.rank).step, group,
                       fmt::join(w.group, ", "));
  }
  /// "is at instruction 31 (...) of step 5 (process 12 on host a)".
  std::string Place(int rank) {
    const Heartbeat& beat = BeatOf(rank);
    const std::string where = fmt::format("(process {} on {})", beat.process, beat.host);
    if (!statuses_[static_cast<size_t>(rank)].present) return "has no heartbeat";
    if (!InStep(rank)) return fmt::format("is {}, step {} {}", Name(beat.activity), beat.step, where);
    std::vector<std::string> at;
    for (int instruction : Begun(rank)) at.push_back(Describe(ProgramOf(rank), instruction));
    return fmt::format("is at {} of step {} {}", at.empty() ? "the end" : fmt::format("{}", fmt::join(at, " and ")),
                       beat.step, where);
  }

  const std::vector<RankStatus>& statuses_;
  const ProgramFinder& program_of_;
  std::map<const Program*, Lanes> lanes_;
  Diagnosis diagnosis_;
};

}  // namespace

Diagnosis Diagnose(const std::vector<RankStatus>& statuses, const ProgramFinder& program_of) {
  return Diagnoser(statuses, program_of).Run();
}

}  // namespace espalier
