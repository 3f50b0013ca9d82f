#include "executor/comm_clock.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

// Times are in milliseconds here, and in microseconds there.
void NoteWait(CommClock& clock, Lane lane, double begin, double end) { clock.Waited(lane, begin * 1e3, end * 1e3); }
void Transfer(CommClock& clock, Lane lane, double begin, double end) {
  clock.Transferred(lane, begin * 1e3, end * 1e3);
}

TEST(CommClock, HiddenIsWhatTheComputeLaneDoesNotWaitFor) {
  CommClock clock;
  Transfer(clock, Lane::kTp, 1, 5);   // awaited from 3 on
  Transfer(clock, Lane::kTp, 6, 8);   // not awaited
  Transfer(clock, Lane::kTp, 9, 12);  // awaited in the middle, and twice
  NoteWait(clock, Lane::kTp, 3, 5.5);
  NoteWait(clock, Lane::kTp, 9.5, 10);
  NoteWait(clock, Lane::kTp, 11, 11.25);
  const CommTimes times = clock.Times();
  EXPECT_DOUBLE_EQ(times.exposed_ms[CommAxis::kTp], 2.5 + 0.5 + 0.25);
  EXPECT_DOUBLE_EQ(times.hidden_ms[CommAxis::kTp], 2 + 2 + 2.25);
  EXPECT_DOUBLE_EQ(times.ExposedMs(), 3.25);
}

TEST(CommClock, OneWaitMayCoverSeveralTransfers) {
  CommClock clock;
  Transfer(clock, Lane::kDp, 0, 2);
  Transfer(clock, Lane::kDp, 2, 4);
  Transfer(clock, Lane::kDp, 4, 6);
  NoteWait(clock, Lane::kDp, 1, 5);
  const CommTimes times = clock.Times();
  EXPECT_DOUBLE_EQ(times.exposed_ms[CommAxis::kDp], 4);
  EXPECT_DOUBLE_EQ(times.hidden_ms[CommAxis::kDp], 2);
}

TEST(CommClock, AxesAreApart) {
  CommClock clock;
  Transfer(clock, Lane::kCp, 0, 3);
  NoteWait(clock, Lane::kTp, 0, 3);
  const CommTimes times = clock.Times();
  EXPECT_DOUBLE_EQ(times.hidden_ms[CommAxis::kCp], 3);
  EXPECT_DOUBLE_EQ(times.exposed_ms[CommAxis::kTp], 3);
  EXPECT_DOUBLE_EQ(times.exposed_ms[CommAxis::kCp] + times.hidden_ms[CommAxis::kTp], 0);
}

TEST(CommClock, ReceivesCountOnlyWhileTheyAreAwaited) {
  CommClock clock;
  Transfer(clock, Lane::kPpRecv, 0, 10);
  Transfer(clock, Lane::kPpSend, 4, 5);
  NoteWait(clock, Lane::kPpRecv, 7, 9);
  const CommTimes times = clock.Times();
  EXPECT_DOUBLE_EQ(times.exposed_ms[CommAxis::kPp], 2);
  EXPECT_DOUBLE_EQ(times.hidden_ms[CommAxis::kPp], 1);
}

TEST(CommClock, AStepBeginsWithNothing) {
  CommClock clock;
  Transfer(clock, Lane::kTp, 0, 1);
  NoteWait(clock, Lane::kTp, 0, 1);
  clock.Reset();
  EXPECT_EQ(clock.Times().ExposedMs(), 0);
  EXPECT_EQ(clock.Times().hidden_ms[CommAxis::kTp], 0);
}

}  // namespace
}  // namespace espalier
