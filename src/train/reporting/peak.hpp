// The peak rate that mfu is relative to.
#pragma once

#include <tuple>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// A rank's device and its peak rate. Ranks that share a GPU have the same `device`.
struct RankPeak {
  std::string device;
  PeakRate rate;

  auto Fields() { return std::tie(device, rate.flops, rate.source); }
};

/// The sum over devices, each counted once; unknown if one of them is unknown.
PeakRate SumOfPeaks(const std::vector<RankPeak>& ranks);

/// The peak of all ranks, on rank 0: from run.peak_tflops, otherwise from their devices. Collective.
PeakRate PeakOfRun(const Deck& deck, const Device& device, World& world);

/// The peak that mfu is relative to, or why there is no mfu.
std::string PeakText(const PeakRate& peak);

}  // namespace espalier
