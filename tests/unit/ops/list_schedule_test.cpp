// Orders of each policy, by hand.
#include "espalier/ops/list_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Two strips of a matmul, its message, a norm, its message, and a second matmul.
std::vector<LaneTask> TwoStrips(double first, double second) {
  std::vector<LaneTask> tasks;
  const auto add = [&](int lane, double time, int stage) {
    const int before = static_cast<int>(tasks.size()) - 2;
    for (int strip = 0; strip < 2; ++strip) {
      LaneTask task{.lane = lane, .time = time, .strip = strip, .stage = stage};
      if (before >= 0) task.needs.push_back(before + strip);
      if (strip == 1) task.needs.push_back(static_cast<int>(tasks.size()) - 1);
      tasks.push_back(task);
    }
  };
  add(kComputeLane, first, 0);   // 0, 1
  add(kMessageLane, 3, 0);       // 2, 3
  add(kComputeLane, 0.1, 1);     // 4, 5
  add(kMessageLane, 3, 1);       // 6, 7
  add(kComputeLane, second, 2);  // 8, 9
  return tasks;
}

TEST(ScheduleStrips, TheMessagesOfTheLastStripRunUnderTheNextMatmul) {
  // Strip 0 sends and gathers before strip 1 sends: its second matmul is what the messages of strip 1 hide under.
  EXPECT_EQ(ScheduleStrips(TwoStrips(4, 8)), (std::vector{0, 2, 1, 4, 6, 3, 8, 5, 7, 9}));
}

TEST(ScheduleStrips, AMessageFollowsWhatItSends) {
  const std::vector<LaneTask> tasks = TwoStrips(1, 1);
  const std::vector<int> order = ScheduleStrips(tasks);
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[1], 2) << "the message of strip 0 goes before the matmul of strip 1";
  EXPECT_EQ(order.size(), tasks.size());
}

TEST(ScheduleStrips, WeightGradientsFillGapsAndNothingElse) {
  std::vector<LaneTask> tasks = TwoStrips(4, 8);
  tasks.push_back({.time = 3, .fills_gaps = true});
  // After strip 1 of the first matmul and the norm of strip 0 the compute lane waits for the gather of strip 0.
  EXPECT_EQ(ScheduleStrips(tasks), (std::vector{0, 2, 1, 4, 6, 3, 10, 8, 5, 7, 9}));
  for (LaneTask& task : tasks)
    if (task.lane == kMessageLane) task.time = 0.01;
  EXPECT_EQ(ScheduleStrips(tasks).back(), 10) << "without gaps it comes last";
}

/// A list of a matmul of this time, its message, and a norm that reads it, after `tasks`.
void AddList(std::vector<LaneTask>& tasks, double matmul, int message_lane) {
  const int begin = static_cast<int>(tasks.size());
  tasks.push_back({.time = matmul, .until_message = matmul});
  tasks.push_back({.lane = message_lane, .time = 3, .needs = {begin}, .after = {begin}});
  tasks.push_back({.time = 1, .until_message = 100, .needs = {begin + 1}, .after = {begin + 1}});
}

TEST(ScheduleLists, TheListThatSoonerSendsGoesFirst) {
  std::vector<LaneTask> tasks;
  AddList(tasks, 4, kMessageLane);      // 0, 1, 2
  AddList(tasks, 2, kMessageLane + 1);  // 3, 4, 5
  // Task 3 has less work until its message. Tasks 4 and 0 both start when it ends, and 4 is a message.
  EXPECT_EQ(ScheduleLists(tasks), (std::vector{3, 4, 0, 1, 5, 2}));
  // Task 4 comes after all of the first list, as a send does. It need not wait until they end.
  tasks[4].after.push_back(2);
  EXPECT_EQ(ScheduleLists(tasks), (std::vector{3, 0, 1, 2, 4, 5}));
}

TEST(ScheduleLists, OfEqualTasksTheFirstListGoesFirst) {
  std::vector<LaneTask> tasks;
  AddList(tasks, 2, kMessageLane);
  AddList(tasks, 2, kMessageLane);
  EXPECT_EQ(ScheduleLists(tasks), (std::vector{0, 1, 3, 4, 2, 5}));
}

TEST(ScheduleEvenly, TheListThatHasDoneLessGoesFirst) {
  std::vector<LaneTask> tasks;
  for (int i = 0; i < 2; ++i) tasks.push_back({.time = 1, .share_before = i / 2.0});
  for (int i = 0; i < 4; ++i) tasks.push_back({.time = 1, .share_before = i / 4.0});
  for (int i : {1, 3, 4, 5}) tasks[static_cast<size_t>(i)].after = {i - 1};
  EXPECT_EQ(ScheduleEvenly(tasks), (std::vector{0, 2, 3, 1, 4, 5}));
  EXPECT_EQ(ScheduleLists(tasks), (std::vector{0, 1, 2, 3, 4, 5}));
}

/// Queries, then keys and their message, then attention, which reads both and stays the last.
std::vector<LaneTask> Attention(double message) {
  return {{.time = 2},                                            // 0: queries
          {.time = 1},                                            // 1: keys
          {.lane = kMessageLane, .time = message, .needs = {1}},  // 2: all keys
          {.time = 1, .fills_gaps = true},                        // 3: a weight gradient
          {.time = 4, .needs = {0, 2}, .after = {0, 1, 2, 3}}};   // 4
}

TEST(ScheduleMessages, AnExposedMessageAndWhatItNeedsGoFirst) {
  const std::vector<LaneTask> tasks = Attention(2);
  const std::vector<int> order = ScheduleMessages(tasks);
  // The weight gradient is open at the start and does not move after the message; queries run under the message.
  EXPECT_EQ(order, (std::vector{3, 1, 2, 0, 4}));
  EXPECT_EQ(TimeOf(tasks, {0, 1, 2, 3, 4}), 2 + 1 + 2 + 4) << "attention waits for the message, which hides task 3";
  EXPECT_EQ(TimeOf(tasks, order), 1 + 1 + 2 + 4);
}

TEST(ScheduleMessages, AMessageThatNobodyWaitsForStaysWhereItWas) {
  std::vector<LaneTask> tasks = Attention(0.1);
  tasks[3] = {.time = 2, .fills_gaps = false};
  EXPECT_EQ(ScheduleMessages(tasks), (std::vector{0, 1, 2, 3, 4}));
}

TEST(ScheduleMessages, AMessageWaitsForTheKernelsBeforeIt) {
  const std::vector<LaneTask> tasks = {{.time = 5}, {.lane = kMessageLane, .time = 1}};
  EXPECT_EQ(TimeOf(tasks, {0, 1}), 6);
  EXPECT_EQ(TimeOf(tasks, {1, 0}), 5);
}

TEST(ListSchedule, EveryPolicyIssuesEveryTaskAfterThoseItDependsOn) {
  std::vector<LaneTask> tasks = TwoStrips(2, 5);
  tasks.push_back({.fills_gaps = true, .after = {3}});
  for (const auto& schedule : {ScheduleLists, ScheduleEvenly, ScheduleStrips, ScheduleMessages}) {
    std::vector<bool> issued(tasks.size());
    for (int t : schedule(tasks)) {
      for (int earlier : tasks[static_cast<size_t>(t)].needs) EXPECT_TRUE(issued[static_cast<size_t>(earlier)]) << t;
      for (int earlier : tasks[static_cast<size_t>(t)].after) EXPECT_TRUE(issued[static_cast<size_t>(earlier)]) << t;
      issued[static_cast<size_t>(t)] = true;
    }
    EXPECT_EQ(std::count(issued.begin(), issued.end(), true), std::ssize(tasks));
  }
}

TEST(ListSchedule, ATaskThatNeedsALaterOneIsRefused) {
  EXPECT_THROW(ScheduleLists({{.needs = {1}}, {}}), InvariantError);
}

}  // namespace
}  // namespace espalier
