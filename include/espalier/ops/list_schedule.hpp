// Orders of ops by list scheduling with their times (op_times.hpp): one lane computes, others carry messages, and
// each runs what it is given in order.
//
// The caller makes one task per op, each after those that it depends on, and gets back the order in which to issue
// them. A policy issues the tasks one by one. A task is open once all that it depends on are issued. The policy chooses
// an open task by when its lane could start it; that task moves the end of its lane and opens others. The policies
// share the lanes and differ in this choice alone.
#pragma once

#include <limits>
#include <vector>

namespace espalier {

inline constexpr int kNoLane = -1, kComputeLane = 0, kMessageLane = 1;

struct LaneTask {
  int lane = kComputeLane;      ///< any number; kNoLane: it takes no time
  double time = 0;              ///< in any unit
  bool fills_gaps = false;      ///< nothing in forward or backward needs it, such as a gradient of weights
  int strip = 0;                ///< for ScheduleStrips: its strip of rows
  int stage = 0;                ///< for ScheduleStrips: how many messages of its region come before it
  double until_message = 0;     ///< for ScheduleLists: time of kernels from it to the next message of its list
  double share_before = 0;      ///< for ScheduleEvenly: of the time of its list's kernels
  std::vector<int> needs = {};  ///< tasks that end before it starts; lower numbers than its own
  std::vector<int> after = {};  ///< tasks that are issued before it, but may end later; lower numbers, too
};

/// Tasks of several lists, each of which keeps its order by LaneTask::after. The next task is the one that can start
/// first; of those that can start at once, the one with the least `until_message`, so that lanes of messages do not run
/// dry.
std::vector<int> ScheduleLists(const std::vector<LaneTask>& tasks);

/// The same, but of those that can start at once the one of the list that has done less: there are kernels of one list
/// under messages of the other to the end, and values of one die while the other makes its own.
std::vector<int> ScheduleEvenly(const std::vector<LaneTask>& tasks);

/// Tasks of strips of rows. The compute lane takes the task that can start first; of those that can start at once, a
/// short one that feeds a message, then the one of the lowest stage and strip. A task that fills gaps is taken where
/// all others would wait. The message lane prefers lower strips, so that the next matmuls of a strip can start before
/// the messages of all strips have arrived. A message is issued as soon as what it sends has been.
std::vector<int> ScheduleStrips(const std::vector<LaneTask>& tasks);

/// Messages and what they need as early as possible, if in the order given others wait for them; then the kernels that
/// wait for no message, in the order given, and last those that read one. A message waits for the kernels issued before
/// it, which may have used the memory that it gets.
std::vector<int> ScheduleMessages(const std::vector<LaneTask>& tasks);
/// The time that an order takes, where messages wait for kernels as in ScheduleMessages.
double TimeOf(const std::vector<LaneTask>& tasks, const std::vector<int>& order);
/// The order that takes the least time, the first of equal ones. Policies are rules of thumb, so an order by
/// rough times may take less of the true ones.
struct TimedOrder {
  double time = std::numeric_limits<double>::infinity();
  std::vector<int> order = {};
};
TimedOrder Shortest(const std::vector<LaneTask>& tasks, std::vector<std::vector<int>> orders);

}  // namespace espalier
