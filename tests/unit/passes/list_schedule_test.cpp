// Orders of the list schedule, by hand.
#include "passes/strips/list_schedule.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

using Lane = StripTask::Lane;

/// Two strips of a matmul, its message, a norm, its message, and a second matmul.
std::vector<StripTask> TwoStrips(double first, double second) {
  std::vector<StripTask> tasks;
  const auto add = [&](Lane lane, double time, int stage) {
    const int before = static_cast<int>(tasks.size()) - 2;
    for (int strip = 0; strip < 2; ++strip) {
      StripTask task{.lane = lane, .time = time, .strip = strip, .stage = stage, .after = {}};
      if (before >= 0) task.after.push_back(before + strip);
      if (strip == 1) task.after.push_back(static_cast<int>(tasks.size()) - 1);
      tasks.push_back(task);
    }
  };
  add(Lane::kCompute, first, 0);   // 0, 1
  add(Lane::kMessage, 3, 0);       // 2, 3
  add(Lane::kCompute, 0.1, 1);     // 4, 5
  add(Lane::kMessage, 3, 1);       // 6, 7
  add(Lane::kCompute, second, 2);  // 8, 9
  return tasks;
}

TEST(ListSchedule, TheMessagesOfTheLastStripRunUnderTheNextMatmul) {
  // Strip 0 sends and gathers before strip 1 sends: its second matmul is what the messages of strip 1 hide under.
  EXPECT_EQ(ListSchedule(TwoStrips(4, 8)), (std::vector{0, 2, 1, 4, 6, 3, 8, 5, 7, 9}));
}

TEST(ListSchedule, AMessageFollowsWhatItSends) {
  const std::vector<StripTask> tasks = TwoStrips(1, 1);
  const std::vector<int> order = ListSchedule(tasks);
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[1], 2) << "the message of strip 0 goes before the matmul of strip 1";
  EXPECT_EQ(order.size(), tasks.size());
}

TEST(ListSchedule, WeightGradientsFillGapsAndNothingElse) {
  std::vector<StripTask> tasks = TwoStrips(4, 8);
  tasks.push_back({.lane = Lane::kCompute, .time = 3, .fills_gaps = true, .after = {}});
  // After strip 1 of the first matmul and the norm of strip 0 the compute lane waits for the gather of strip 0.
  EXPECT_EQ(ListSchedule(tasks), (std::vector{0, 2, 1, 4, 6, 3, 10, 8, 5, 7, 9}));
  for (StripTask& task : tasks)
    if (task.lane == Lane::kMessage) task.time = 0.01;
  EXPECT_EQ(ListSchedule(tasks).back(), 10) << "without gaps it comes last";
}

TEST(ListSchedule, EveryTaskComesAfterWhatItNeeds) {
  const std::vector<StripTask> tasks = TwoStrips(2, 5);
  const std::vector<int> order = ListSchedule(tasks);
  std::vector<bool> issued(tasks.size());
  for (int t : order) {
    for (int earlier : tasks[static_cast<size_t>(t)].after) EXPECT_TRUE(issued[static_cast<size_t>(earlier)]) << t;
    issued[static_cast<size_t>(t)] = true;
  }
}

}  // namespace
}  // namespace espalier
