// Combines the measurements of every rank in one step into a timeline. Pure functions, without communication.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// The step as one rank measured it. Only the clock is set if the rank is not traced.
struct MeasuredRank {
  std::string node;                      ///< processes of one node share a clock
  std::vector<double> barriers_us;       ///< when the rank left each barrier before the step, on its own clock
  double began_us = 0;                   ///< begin of its step, on its own clock
  std::vector<double> ready_us, end_us;  ///< by instruction, from the beginning of its step

  auto Fields() { return std::tie(node, barriers_us, began_us, ready_us, end_us); }
};

/// How far the clock of every rank is ahead of rank 0's, in microseconds. Ranks leave a barrier at about the same time,
/// so the offset of a node is the median over barriers of the difference between its first rank and rank 0. Within rank
/// 0's node it is exactly 0.
std::vector<double> ClockOffsets(const std::vector<MeasuredRank>& ranks);

/// The ranks for which a trace has tracks: all if there are at most `most`, otherwise the pipeline of rank 0.
std::vector<int> TracedRanks(const Mesh& mesh, int most);

/// One track per traced rank, on one clock that begins with the first rank's step. MeetPeers sets the begin of
/// transfers.
Timeline MeasuredTimeline(std::string title, const std::vector<MeasuredRank>& ranks, const std::vector<int>& traced,
                          const std::function<std::shared_ptr<const Program>(int rank)>& program_of);

/// The mean over the timeline's tracks.
Breakdown MeanBreakdown(const Timeline& timeline);

}  // namespace espalier
