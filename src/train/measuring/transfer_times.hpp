// Times of transfers within the steps of a program, from the moment at which their last member is ready.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/costs/cost_table.hpp"
#include "espalier/timeline/timeline.hpp"
#include "train/programs.hpp"
#include "train/reporting/measured_timeline.hpp"

namespace espalier {

/// Times by kind, place and bytes, us.
using TransferSamples = std::map<CollectiveKey, std::map<int64_t, std::vector<double>>>;

/// Adds the transfers of a measured step (MeetPeers has been called), separately for each member of a group. For a
/// message the recv counts: a send may end when its bytes are in a buffer.
void AddTransfers(const Timeline& step, int ranks_per_node, TransferSamples& samples);

/// Medians.
std::map<CollectiveKey, std::map<int64_t, Measured>> RowsOf(const TransferSamples& samples);

/// Collects timed steps on this rank. With more than kMaxRanks ranks, only rank 0's pipeline is measured, and only its
/// messages have rows.
class TransferTimes {
 public:
  static constexpr int kMaxRanks = 64;

  /// Both must outlive it.
  TransferTimes(const Programs& programs, World& world);

  /// Must be called just before a timed step begins: measures the clock offsets of the nodes. No other step may be in
  /// flight. Collective.
  void Before();
  /// Must be called after that step, which ran `training`, was awaited.
  void Add(const Training& training);
  /// The results of all steps, on rank 0; empty elsewhere. Collective.
  std::map<CollectiveKey, std::map<int64_t, Measured>> Rows(int ranks_per_node) const;

 private:
  struct TimedStep {
    const Training* training;
    MeasuredRank measured;
  };

  World& world_;
  const std::vector<int> measured_;  ///< ranks
  std::vector<double> barriers_us_;
  std::vector<TimedStep> steps_;
};

}  // namespace espalier
