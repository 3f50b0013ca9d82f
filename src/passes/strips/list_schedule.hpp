// An order of ops on two lanes, one that computes and one that sends, by list scheduling with rough times.
#pragma once

#include <vector>

namespace espalier {

/// One op of a region in one strip.
struct StripTask {
  enum class Lane { kCompute, kMessage, kNone };  ///< kNone: takes no time here
  Lane lane = Lane::kCompute;
  double time = 0;          ///< in any unit
  bool fills_gaps = false;  ///< runs where no other task could: weight gradients
  int strip = 0;
  int stage = 0;           ///< messages of the region before it
  std::vector<int> after;  ///< tasks that come before it, lower numbers than its own
};

/// The numbers of the tasks in an order in which they may be issued.
///
/// Each lane runs what it is given in order. The compute lane takes the task that can start first; of those that can
/// start at once, a short one that feeds a message, then the one of the lowest stage and strip. A task that fills gaps
/// is taken where all others would wait. The message lane prefers lower strips, so that the next matmuls of a strip can
/// start before the messages of all strips have arrived. A message is issued as soon as what it sends has been.
std::vector<int> ListSchedule(const std::vector<StripTask>& tasks);

}  // namespace espalier
