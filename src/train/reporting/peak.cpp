#include "train/reporting/peak.hpp"

#include <fmt/core.h>

#include <set>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

PeakRate PeakOfRank(const Deck& deck, const Device& device) {
  if (deck.run.peak_tflops > 0)
    return {deck.run.peak_tflops * 1e12, fmt::format("run.peak_tflops = {}", deck.run.peak_tflops)};
  // A processor's rate depends on its clock and on other work, so a measurement at the start would say little.
  if (device.Kind() == DeviceKind::kCpu) return {0, "a processor has no stated peak"};
  return device.Peak(deck.precision.compute);
}

/// Ranks share a processor by cores, so each CPU rank counts as a separate device, and so does each waiting rank.
std::string NameOf(const Device& device, int rank) {
  return device.Kind() == DeviceKind::kCuda && device.Computes() ? HostName() + " " + device.Describe()
                                                                 : fmt::format("rank {}", rank);
}

}  // namespace

PeakRate SumOfPeaks(const std::vector<RankPeak>& ranks) {
  PeakRate sum;
  std::set<std::string> counted;
  for (const RankPeak& rank : ranks) {
    if (rank.rate.flops <= 0) return rank.rate;
    if (!counted.insert(rank.device).second) continue;
    sum.flops += rank.rate.flops;
    if (sum.source.empty()) sum.source = rank.rate.source;
  }
  if (counted.size() > 1) sum.source += fmt::format("; of the first of {} devices", counted.size());
  return sum;
}

PeakRate PeakOfRun(const Deck& deck, const Device& device, World& world) {
  const PeakRate mine = PeakOfRank(deck, device);
  return SumOfPeaks(Gathered(world, RankPeak{NameOf(device, world.Rank()), mine}));
}

std::string PeakText(const PeakRate& peak) {
  if (peak.flops > 0) return fmt::format("{:.4g} TFLOP/s ({}), for mfu", peak.flops / 1e12, peak.source);
  return fmt::format("{}; mfu is null unless run.peak_tflops states it", peak.source);
}

}  // namespace espalier
