// What a run's rate is counted against.
#pragma once

#include <tuple>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// A rank's peak and the device that it is the peak of; ranks that share a GPU name the same one.
struct RankPeak {
  std::string device;
  PeakRate rate;

  auto Fields() { return std::tie(device, rate.flops, rate.source); }
};

/// All of them together, each device once; not known if one is not.
PeakRate SumOfPeaks(const std::vector<RankPeak>& ranks);

/// Of all ranks: run.peak_tflops, or what their devices say; on rank 0. Collective.
PeakRate PeakOfRun(const Deck& deck, const Device& device, World& world);

/// For people: what mfu is counted against, or why there is none. For rank 0.
void AnnouncePeak(const PeakRate& peak);

}  // namespace espalier
