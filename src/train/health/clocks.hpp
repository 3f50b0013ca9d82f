// Clocks and power of a rank's device under load, and what holds the clock down.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace espalier {

/// A device at one moment. 0 where the system does not say.
struct ClockSample {
  double at_ms = 0;                       ///< since the watch began
  double mhz = 0;                         ///< of a GPU's multiprocessors, or the mean of a rank's cores
  double watts = 0, most_watts = 0;       ///< of a GPU: what it draws, and its limit
  std::vector<std::string> held_by = {};  ///< "power limit", "heat", ...
};

/// The means of several samples, or of several ranks.
struct ClockMeans {
  double mhz = 0, watts = 0, most_watts = 0;
  std::vector<std::pair<std::string, double>> held_by = {};  ///< in which share of the samples, 0 to 1; by name

  auto Fields() { return std::tie(mhz, watts, most_watts, held_by); }
};

/// For the samples from `from_ms` on and before `to_ms`; if there are none, for the last one before `to_ms`. All 0
/// without samples.
ClockMeans MeansOf(const std::vector<ClockSample>& samples, double from_ms, double to_ms);
ClockMeans MeansOf(const std::vector<ClockMeans>& ranks);

/// "1980 MHz, 612 W of 700 W"; empty if nothing is known.
std::string Describe(const ClockMeans& means);

/// Why a load that keeps `share` of its first rate became slower: "the clock fell by 7.2 %, held down by power limit
/// for 97 % of the time". Empty if the loss is below 1 %, or no clock is known.
std::string CauseOfLoss(double share, const ClockMeans& burst, const ClockMeans& steady);

/// Mean clock of cores in MHz: by their cpufreq, otherwise by /proc/cpuinfo; 0: the system does not say. `root` stands
/// before the paths.
double MeanClock(const std::vector<int>& cores, const std::string& root = "");

/// Reads a device from time to time, in a thread of its own, until it is stopped.
class ClockWatch {
 public:
  /// The GPU with this PCI address ("0000:1b:00.0"), or the cores of this process if it is empty.
  ClockWatch(const std::string& bus_id, double period_ms);

  /// All samples. The watch ends.
  std::vector<ClockSample> Stop();
  /// Why there are no samples; empty if there are.
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
  std::vector<ClockSample> samples_;
  std::jthread thread_;
};

/// Reads how often cores were slowed down by heat, and their clock. `root` as for MeanClock.
class CoreReader {
 public:
  explicit CoreReader(std::vector<int> cores, std::string root = "");
  /// "heat" if the processor slowed a core down since the last call.
  ClockSample Read();

 private:
  /// How often; 0 if the system does not say.
  int64_t Slowdowns() const;

  std::vector<int> cores_;
  std::string root_;
  int64_t slowdowns_;
};

}  // namespace espalier
