// Why a start has ended, from what launchers and ranks print.
#include "supervise/cause.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/watch/diagnose.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StartEnd EndOf(int status, const std::string& errors) {
  StartEnd end;
  end.status = status;
  end.errors = errors;
  end.hosts = {"n1.site", "n2.site", "n3.site"};
  end.ranks_each = 2;
  return end;
}

TEST(Cause, ExitStatusesSayMostOfIt) {
  StartEnd end = EndOf(0, "");
  EXPECT_EQ(FindCause(end).kind, CauseKind::kUnknown);  // srun ends with 0 where Slurm has ended the ranks
  end.done = true;
  EXPECT_EQ(FindCause(end).kind, CauseKind::kDone);
  EXPECT_EQ(FindCause(EndOf(75, "")).kind, CauseKind::kStopped);
  for (int status : {2, 3, 4}) EXPECT_EQ(FindCause(EndOf(status, "")).kind, CauseKind::kRefused);
  EXPECT_EQ(FindCause(EndOf(137, "")).text, "signal 9 ended the launcher");
}

TEST(Cause, OpenMpiNamesARankThatDied) {
  const Cause cause = FindCause(EndOf(137, R"(
mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 9 (Killed).
)"));
  EXPECT_EQ(cause.kind, CauseKind::kProcess);
  EXPECT_THAT(cause.ranks, ElementsAre(3));
  EXPECT_THAT(cause.hosts, ElementsAre("n2.site"));
  const Cause status = FindCause(EndOf(7, R"(
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[17183,1],5]
  Exit code:    7
)"));
  EXPECT_THAT(status.ranks, ElementsAre(5));
  EXPECT_THAT(status.hosts, ElementsAre("n3.site"));
}

TEST(Cause, LaunchersNameHostsThatTheyLost) {
  const Cause open_mpi = FindCause(EndOf(1, R"(
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[8421,0],0] on node n1
  Remote daemon: [[8421,0],2] on node n3
)"));
  EXPECT_EQ(open_mpi.kind, CauseKind::kHost);
  EXPECT_THAT(open_mpi.hosts, ElementsAre("n3.site"));
  const Cause slurm = FindCause(EndOf(1, "srun: error: Node failure on n2\nsrun: error: n1: task 0: Killed\n"));
  EXPECT_EQ(slurm.kind, CauseKind::kHost);
  EXPECT_THAT(slurm.hosts, ElementsAre("n2.site"));
  EXPECT_THAT(FindCause(EndOf(1, "srun: error: n2: task 2: Killed\n")).ranks, ElementsAre(2));
}

TEST(Cause, AWatchdogThatNamesADeadRankIsBelievedBeforeTheLauncher) {
  const Cause cause = FindCause(EndOf(1, R"(
espalier: watchdog of rank 0: rank 4 is gone: its process (77 on n3) has ended, in a step, step 12
mpirun noticed that process rank 0 with PID 4711 on node n1 exited on signal 9 (Killed).
)"));
  EXPECT_THAT(cause.ranks, ElementsAre(4));
  EXPECT_THAT(cause.hosts, ElementsAre("n3.site"));
}

TEST(Cause, ARankThatReportsAnErrorIsNamed) {
  EXPECT_THAT(FindCause(EndOf(1, "espalier: rank 2: no space left\n")).hosts, ElementsAre("n2.site"));
  EXPECT_THAT(FindCause(EndOf(1, "espalier: internal error (rank 5): x\n")).hosts, ElementsAre("n3.site"));
}

TEST(Cause, CorruptCopiesBlameTheirHosts) {
  StartEnd end = EndOf(1, "espalier: error\nthe state after step 8 is not saved\n");
  end.corrupt = {4, 5};
  const Cause cause = FindCause(end);
  EXPECT_EQ(cause.kind, CauseKind::kCorrupt);
  EXPECT_THAT(cause.hosts, ElementsAre("n3.site"));
}

/// The watchdog's lines for ranks of this state, in a step in which rank 1 waits.
std::string Printed(const std::vector<RankStatus>& statuses) {
  const Diagnosis diagnosis =
      Diagnose(statuses, [](int, int64_t) -> const Program& { throw std::logic_error("no rank is in a step"); });
  return "espalier: watchdog of rank 1: nothing has finished here for 60 s\n" + diagnosis.text + "\n";
}

TEST(Cause, EveryAccusationOfADiagnosisIsUnderstood) {
  std::vector<RankStatus> fine(6);
  for (int rank = 0; rank < 6; ++rank) {
    fine[size_t(rank)].heartbeat.rank = rank;
    fine[size_t(rank)].heartbeat.step = 7;
    fine[size_t(rank)].heartbeat.activity = Activity::kBetween;
    fine[size_t(rank)].process = ProcessState::kRunning;
  }
  for (ProcessState state : {ProcessState::kStopped, ProcessState::kGone, ProcessState::kSilent}) {
    std::vector<RankStatus> statuses = fine;
    statuses[4].process = state;
    const Cause cause = FindCause(EndOf(1, Printed(statuses)));
    EXPECT_EQ(cause.kind, CauseKind::kHang);
    EXPECT_THAT(cause.ranks, ElementsAre(4)) << Printed(statuses);
    EXPECT_THAT(cause.hosts, ElementsAre("n3.site"));
  }
  std::vector<RankStatus> absent = fine, late = fine;
  absent[2].present = false;
  EXPECT_THAT(FindCause(EndOf(1, Printed(absent))).ranks, ElementsAre(2)) << Printed(absent);
  late[3].heartbeat.step = 6;
  EXPECT_THAT(FindCause(EndOf(1, Printed(late))).ranks, ElementsAre(3)) << Printed(late);
}

TEST(Cause, ALostMessageBlamesNoHost) {
  const Cause cause = FindCause(EndOf(1, R"(
espalier: watchdog of rank 0: nothing has finished here for 60 s
rank 0 waits in instruction 3 (recv, role F) of step 5, group pp (ranks 0, 2); rank 2 arrived there too
the network between hosts n1, n2 does not deliver messages
rank 0 is at instruction 3 (recv) of step 5 (process 1 on n1)
)"));
  EXPECT_EQ(cause.kind, CauseKind::kHang);
  EXPECT_THAT(cause.hosts, IsEmpty());
  EXPECT_THAT(cause.text, HasSubstr("the network between hosts n1, n2"));
}

}  // namespace
}  // namespace espalier
