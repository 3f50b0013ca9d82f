// Simulated hangs in the programs of real decks: the diagnosis names rank and instruction.
#include "espalier/watch/diagnose.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "espalier/watch/heartbeat.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

/// A world whose ranks advance step by step as long as they can. Every communication ends when its whole group has
/// arrived.
class Simulation {
 public:
  explicit Simulation(const std::vector<std::string>& overrides, int ranks)
      : compilation_(Compile(SmallDeck(overrides), ranks, Purpose::kTrain)) {
    for (int rank = 0; rank < ranks; ++rank) {
      programs_.push_back(MakeProgram(compilation_, compilation_.mesh.CoordinateOf(rank)));
      auto& lanes = lanes_.emplace_back();
      for (size_t i = 0; i < programs_.back().instructions.size(); ++i)
        lanes[static_cast<size_t>(programs_.back().instructions[i].lane)].push_back(static_cast<int>(i));
      RankStatus standing;
      standing.process = ProcessState::kRunning;
      standing.heartbeat.rank = rank;
      standing.heartbeat.step = 1;
      standing.heartbeat.activity = Activity::kStep;
      statuses.push_back(standing);
    }
  }

  const Program& ProgramOf(int rank) const { return programs_[static_cast<size_t>(rank)]; }
  const Op& OpAt(int rank, int i) const {
    return ProgramOf(rank).graph->ops[static_cast<size_t>(InstructionAt(rank, i).op)];
  }
  Instruction InstructionAt(int rank, int i) const { return ProgramOf(rank).instructions[static_cast<size_t>(i)]; }
  /// Communication instructions of a rank whose group has several ranks.
  std::vector<int> Communication(int rank) const {
    std::vector<int> list;
    for (size_t i = 0; i < ProgramOf(rank).instructions.size(); ++i)
      if (ProgramOf(rank).instructions[i].lane != Lane::kCompute && GroupOf(rank, static_cast<int>(i)).size() > 1)
        list.push_back(static_cast<int>(i));
    return list;
  }

  std::vector<int> GroupOf(int rank, int i) const {
    const Op& op = OpAt(rank, i);
    Coordinate here = compilation_.mesh.CoordinateOf(rank);
    if (op.kind != OpKind::kSend && op.kind != OpKind::kRecv)
      return compilation_.mesh.GroupRanks(AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes"))), here);
    here[Axis::kPp] = op.Peer();
    return {rank, compilation_.mesh.RankOf(here)};
  }

  /// Runs until all have finished two steps or nothing moves.
  void Run() {
    while (true) {
      bool moved = false;
      for (int rank = 0; rank < static_cast<int>(programs_.size()); ++rank) moved |= Move(rank);
      if (!moved) return;
    }
  }

  Diagnosis Diagnose() const {
    return espalier::Diagnose(statuses, [this](int rank, int64_t) -> const Program& { return ProgramOf(rank); });
  }

  std::vector<RankStatus> statuses;
  int skipper = -1, skipped = -1;   ///< rank and its instruction
  int frozen = -1, frozen_at = -1;  ///< rank and the instruction that it never finishes
  int cut = -1;                     ///< from this instruction on no message passes between hosts

 private:
  Heartbeat& BeatOf(int rank) { return statuses[static_cast<size_t>(rank)].heartbeat; }
  int HeadOf(int rank, size_t lane) {
    const std::vector<int>& list = lanes_[static_cast<size_t>(rank)][lane];
    const auto done = static_cast<size_t>(BeatOf(rank).done[lane]);
    return done < list.size() ? list[done] : -1;
  }
  bool Ready(int rank, int i) {
    if (rank == frozen && (BeatOf(rank).step > 1 || i >= frozen_at)) return false;
    return std::ranges::all_of(InstructionAt(rank, i).waits, [&](const Wait& w) {
      return BeatOf(rank).done[static_cast<size_t>(w.lane)] >= w.count;
    });
  }
  void Finish(int rank, int i) { ++BeatOf(rank).done[static_cast<size_t>(InstructionAt(rank, i).lane)]; }

  bool Move(int rank) {
    bool moved = false, ended = true;
    for (size_t lane = 0; lane < kLaneCount; ++lane)
      for (int i; (i = HeadOf(rank, lane)) >= 0; moved = true)
        if (!Advance(rank, i)) {
          ended = false;
          break;
        }
    if (!ended || BeatOf(rank).step == 2) return moved;
    ++BeatOf(rank).step;
    BeatOf(rank).done.fill(0);
    return true;
  }
  bool Advance(int rank, int i) {
    if (!Ready(rank, i)) return false;
    if (InstructionAt(rank, i).lane == Lane::kCompute || (rank == skipper && i == skipped && BeatOf(rank).step == 1))
      return Finish(rank, i), true;
    std::vector<int> peers = GroupOf(rank, i), theirs;
    for (int peer : peers) {
      if (peer == rank) continue;
      if (cut >= 0 && i >= cut && BeatOf(peer).host != BeatOf(rank).host) return false;
      theirs.push_back(Counterpart(rank, i, peer));
      if (theirs.back() < 0) return false;
    }
    Finish(rank, i);
    std::erase(peers, rank);
    for (size_t p = 0; p < peers.size(); ++p) Finish(peers[p], theirs[p]);
    return true;
  }
  /// The peer's instruction if the peer has reached it and is ready.
  int Counterpart(int rank, int i, int peer) {
    const OpKind kind = OpAt(rank, i).kind;
    const int op = InstructionAt(rank, i).op + (kind == OpKind::kSend ? 1 : kind == OpKind::kRecv ? -1 : 0);
    if (BeatOf(peer).step != BeatOf(rank).step) return -1;
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      const int head = HeadOf(peer, lane);
      if (head >= 0 && InstructionAt(peer, head).op == op &&
          InstructionAt(peer, head).microbatch == InstructionAt(rank, i).microbatch)
        return !Ready(peer, head) || (peer == skipper && head == skipped && BeatOf(peer).step == 1) ? -1 : head;
    }
    return -1;
  }

  Compilation compilation_;
  std::vector<Program> programs_;
  std::vector<std::array<std::vector<int>, kLaneCount>> lanes_;  ///< instructions, by rank and lane
};

struct Case {
  std::vector<std::string> overrides;
  int ranks;
};
void PrintTo(const Case& c, std::ostream* out) {
  for (const std::string& text : c.overrides) *out << text << " ";
}

class Worlds : public testing::TestWithParam<Case> {
 protected:
  Simulation Make() const {
    std::vector<std::string> overrides = {"model.layers=2", "batch.global=4"};
    overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    return Simulation(overrides, GetParam().ranks);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, Worlds,
                         testing::Values(Case{{"parallel.tp=2"}, 2}, Case{{"parallel.pp=2"}, 2},
                                         Case{{"batch.global=6", "parallel.dp_shard=3"}, 3}, Case{{"parallel.cp=2"}, 2},
                                         Case{{"parallel.pp=2", "parallel.tp=2"}, 4},
                                         Case{{"parallel.pp=2", "parallel.dp_shard=2"}, 4},
                                         Case{{"parallel.tp=2", "parallel.dp_replicate=2"}, 4}));

TEST_P(Worlds, FinishTwoStepsWithoutFault) {
  Simulation world = Make();
  world.Run();
  for (const RankStatus& s : world.statuses) EXPECT_EQ(s.heartbeat.step, 2);
}

TEST_P(Worlds, AStoppedOrDeadProcessIsNamed) {
  for (const auto& [state, fault] :
       {std::pair(ProcessState::kStopped, Fault::kStopped), std::pair(ProcessState::kGone, Fault::kGone)})
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      Simulation world = Make();
      world.frozen = rank;
      world.frozen_at = static_cast<int>(world.ProgramOf(rank).instructions.size()) / 2;
      world.Run();
      world.statuses[static_cast<size_t>(rank)].process = state;
      const Diagnosis d = world.Diagnose();
      EXPECT_EQ(d.fault, fault) << d.text;
      EXPECT_EQ(d.culprit, rank) << d.text;
      EXPECT_THAT(d.text, HasSubstr("not there"));
    }
}

TEST_P(Worlds, ARankThatStandsStillOnAnotherHostIsFound) {
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    Simulation world = Make();
    const auto& list = world.ProgramOf(rank).instructions;
    const auto kernel = std::find_if(list.begin() + static_cast<ptrdiff_t>(list.size() / 2), list.end(),
                                     [](const Instruction& i) { return i.lane == Lane::kCompute; });
    world.frozen = rank;
    world.frozen_at = static_cast<int>(kernel - list.begin());
    world.Run();
    for (RankStatus& s : world.statuses) s.process = ProcessState::kUnknown;
    const Diagnosis d = world.Diagnose();
    // Either fault is right: the rank may already have reached the communication that does not wait for its kernel.
    EXPECT_TRUE(d.fault == Fault::kNotArrived || d.fault == Fault::kInKernel) << d.text;
    EXPECT_EQ(d.culprit, rank) << d.text;
  }
}

/// Any collective of the step, the first, the last and some between: others wait in it, and the rank that skipped it is
/// named.
TEST_P(Worlds, ASkippedInstructionIsNamed) {
  int tried = 0;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    std::vector<int> all = Make().Communication(rank);
    // Without a message to wait for, no rank hangs.
    const Simulation names = Make();
    std::erase_if(all, [&](int i) { return names.OpAt(rank, i).kind == OpKind::kRecv; });
    for (size_t k = 0; k < all.size();
         k += k + 1 < all.size() && k + 1 + all.size() / 7 >= all.size() ? all.size() - 1 - k : 1 + all.size() / 7) {
      Simulation world = Make();
      world.skipper = rank;
      world.skipped = all[k];
      world.Run();
      const Diagnosis d = world.Diagnose();
      const Instruction& skipped = world.InstructionAt(rank, all[k]);
      EXPECT_EQ(d.fault, Fault::kWentPast) << d.text;
      EXPECT_EQ(d.culprit, rank) << Describe(world.ProgramOf(rank), all[k]) << "\n" << d.text;
      ASSERT_GE(d.waiting, 0);
      const Instruction& waited = world.InstructionAt(d.waiting, d.instruction);
      EXPECT_EQ(waited.op - (world.OpAt(d.waiting, d.instruction).kind == OpKind::kRecv), skipped.op) << d.text;
      EXPECT_EQ(waited.microbatch, skipped.microbatch) << d.text;
      EXPECT_THAT(d.text, HasSubstr("went past"));
      ++tried;
    }
    EXPECT_EQ(all.empty(), tried == 0);
  }
}

TEST_P(Worlds, ARankThatNeverCameToTheStepIsFound) {
  Simulation world = Make();
  const int late = GetParam().ranks - 1;
  world.frozen = late;
  world.frozen_at = 0;
  world.statuses.back().heartbeat.step = 0;
  world.statuses.back().heartbeat.activity = Activity::kBetween;
  world.Run();
  const Diagnosis d = world.Diagnose();
  EXPECT_EQ(d.culprit, late) << d.text;
  EXPECT_THAT(d.text, HasSubstr("between steps"));
}

TEST(Diagnose, ARankThatDoesNotComeToTheBoundaryIsFound) {
  Simulation world({"parallel.dp_shard=2"}, 2);
  for (RankStatus& s : world.statuses) s.heartbeat.activity = Activity::kBetween;
  world.statuses[0].heartbeat.step = 5;
  world.statuses[1].heartbeat.step = 4;
  const Diagnosis d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kNotArrived);
  EXPECT_EQ(d.culprit, 1);
  EXPECT_THAT(d.text, HasSubstr("rank 0 waits after step 5"));
}

TEST(Diagnose, WhereAllHaveArrivedNobodyIsBlamed) {
  Simulation world({"parallel.dp_shard=2"}, 2);
  for (RankStatus& s : world.statuses) s.heartbeat.activity = Activity::kBetween;
  const Diagnosis d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kNobody);
  EXPECT_EQ(d.culprit, -1);
}

/// Even ranks are on host a, odd ones on b.
void PutOnTwoHosts(Simulation& world) {
  for (RankStatus& s : world.statuses) {
    s.heartbeat.host = s.heartbeat.rank % 2 == 0 ? "a" : "b";
    s.process = ProcessState::kUnknown;
  }
}

/// A lost message that has left its rank looks like one that was never sent: between hosts the network is named before
/// the rank.
TEST(Diagnose, H2NetworkALostMessageNamesWhoSentAndWhoWaits) {
  for (const char* layout : {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=2"})
    for (int sender : {0, 1}) {
      Simulation world({"model.layers=2", "batch.global=4", layout}, 2);
      PutOnTwoHosts(world);
      std::vector<int> sends = world.Communication(sender);
      std::erase_if(sends, [&](int i) { return world.OpAt(sender, i).kind == OpKind::kRecv; });
      world.skipper = sender;
      world.skipped = sends[sends.size() / 2];
      world.Run();
      const Diagnosis d = world.Diagnose();
      EXPECT_EQ(d.fault, Fault::kLost) << layout << "\n" << d.text;
      EXPECT_EQ(d.culprit, -1) << d.text;
      EXPECT_EQ(d.waiting, 1 - sender) << d.text;
      EXPECT_THAT(d.missing, testing::ElementsAre(sender)) << d.text;
      EXPECT_THAT(d.text, HasSubstr("rank " + std::to_string(sender) + " sent its part and went on"));
      EXPECT_THAT(d.text, HasSubstr("the network between hosts a, b does not deliver messages"));
    }
}

TEST(Diagnose, H2NetworkWhereNothingPassesBetweenHostsTheyAreNamed) {
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.pp=2"}, {"parallel.tp=2"}, {"parallel.pp=2", "parallel.tp=2"}}) {
    std::vector<std::string> overrides = {"model.layers=2", "batch.global=4"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    Simulation world(overrides, layout.size() == 1 ? 2 : 4);
    PutOnTwoHosts(world);
    world.cut = world.Communication(0)[world.Communication(0).size() / 2];
    world.Run();
    const Diagnosis d = world.Diagnose();
    EXPECT_EQ(d.fault, Fault::kLost) << d.text;
    EXPECT_THAT(d.text, testing::AllOf(HasSubstr("arrived there too"), HasSubstr("between hosts a, b"))) << d.text;
  }
}

TEST(Diagnose, H2NetworkAnAgreementThatIsLostIsNotTheWaitingRanksFault) {
  Simulation world({"parallel.dp_shard=2"}, 2);
  PutOnTwoHosts(world);
  world.statuses[0].heartbeat.step = 6;  // its step 6 waits for rank 1, which has not heard that step 5 is agreed
  world.statuses[1].heartbeat.step = 5;
  world.statuses[1].heartbeat.activity = Activity::kAgreeing;
  Diagnosis d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kLost) << d.text;
  EXPECT_EQ(d.waiting, 1);
  EXPECT_THAT(d.text, HasSubstr("rank 1 waits after step 5 for the other ranks; rank 0 sent its part and went on"));
  for (RankStatus& s : world.statuses) s.heartbeat.step = 5, s.heartbeat.activity = Activity::kAgreeing;
  d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kLost) << d.text;
  EXPECT_THAT(d.text, HasSubstr("between hosts a, b"));
  world.statuses[1].heartbeat.activity = Activity::kBetween;
  d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kNotArrived) << d.text;
  EXPECT_EQ(d.culprit, 1) << d.text;
}

// With a batch ramp steps have different programs.
TEST(Diagnose, ProgramsAreThoseOfTheStep) {
  Simulation large({"parallel.dp_shard=2", "batch.global=6"}, 2), small({"parallel.dp_shard=2", "batch.global=2"}, 2);
  large.frozen = 1;
  large.frozen_at = 3 * static_cast<int>(large.ProgramOf(1).instructions.size()) / 4;
  large.Run();
  for (RankStatus& status : large.statuses) status.heartbeat.step = 7;
  const Diagnosis of_large = large.Diagnose();
  ASSERT_EQ(of_large.culprit, 1) << of_large.text;
  const auto with = [&](int64_t grows_at) {
    return Diagnose(large.statuses, [&, grows_at](int rank, int64_t step) -> const Program& {
      return step >= grows_at ? large.ProgramOf(rank) : small.ProgramOf(rank);
    });
  };
  EXPECT_EQ(with(7).text, of_large.text);
  EXPECT_NE(with(8).text, of_large.text);
}

TEST(Diagnose, H2ARankWithoutHeartbeatOrSignOfLifeIsNamed) {
  Simulation world({"parallel.dp_shard=2"}, 2);
  world.Run();
  world.statuses[1].process = ProcessState::kSilent;
  Diagnosis d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kSilent);
  EXPECT_EQ(d.culprit, 1);
  EXPECT_THAT(d.text, HasSubstr("rank 1 gives no sign of life"));
  world.statuses[1] = {};
  world.statuses[1].present = false;
  d = world.Diagnose();
  EXPECT_EQ(d.fault, Fault::kAbsent);
  EXPECT_EQ(d.culprit, 1);
  EXPECT_THAT(d.text, HasSubstr("rank 1 has no heartbeat any more"));
}

}  // namespace
}  // namespace espalier
