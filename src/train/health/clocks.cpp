#include "train/health/clocks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "espalier/train/threads.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/input_file.hpp"
#include "train/health/gpus.hpp"

namespace espalier {
namespace {

constexpr double kLeastLoss = 0.01;   // of a rate or a clock that is told
constexpr double kOftenEnough = 0.1;  // of the time, for a cause

std::string FileOf(const std::string& root, int core, const char* name) {
  return fmt::format("{}/sys/devices/system/cpu/cpu{}/{}", root, core, name);
}

/// "cpu MHz : 2400.000" of each processor, in their order.
std::vector<double> ClocksOfCpuinfo(const std::string& root) {
  std::istringstream lines(ReadSystemFile(root + "/proc/cpuinfo"));
  std::vector<double> clocks;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("cpu MHz")) clocks.push_back(std::atof(line.substr(line.find(':') + 1).c_str()));
  return clocks;
}

ClockSample SampleOf(const GpuFacts& gpu) {
  ClockSample sample{.mhz = double(gpu.clock_mhz), .watts = gpu.watts, .most_watts = gpu.most_watts};
  if (gpu.at_power_limit) sample.held_by.emplace_back("power limit");
  sample.held_by.insert(sample.held_by.end(), gpu.slowed_by.begin(), gpu.slowed_by.end());
  return sample;
}

}  // namespace

ClockMeans MeansOf(const std::vector<ClockSample>& samples, double from_ms, double to_ms) {
  std::vector<const ClockSample*> within;
  const ClockSample* before = nullptr;
  for (const ClockSample& sample : samples) {
    if (sample.at_ms < to_ms) before = &sample;
    if (from_ms <= sample.at_ms && sample.at_ms < to_ms) within.push_back(&sample);
  }
  if (within.empty() && before != nullptr) within.push_back(before);
  std::vector<ClockMeans> single;
  for (const ClockSample* sample : within) {
    ClockMeans& means = single.emplace_back(ClockMeans{sample->mhz, sample->watts, sample->most_watts});
    for (const std::string& cause : sample->held_by) means.held_by.emplace_back(cause, 1);
  }
  return MeansOf(single);
}

ClockMeans MeansOf(const std::vector<ClockMeans>& ranks) {
  ClockMeans mean;
  std::map<std::string, double> held_by;
  const double part = ranks.empty() ? 0 : 1 / double(ranks.size());
  for (const ClockMeans& rank : ranks) {
    mean.mhz += part * rank.mhz;
    mean.watts += part * rank.watts;
    mean.most_watts += part * rank.most_watts;
    for (const auto& [cause, share] : rank.held_by) held_by[cause] += part * share;
  }
  mean.held_by.assign(held_by.begin(), held_by.end());
  return mean;
}

std::string Describe(const ClockMeans& means) {
  std::string text = means.mhz > 0 ? fmt::format("{:.0f} MHz", means.mhz) : "";
  if (means.watts > 0) text += fmt::format("{}{:.0f} W", text.empty() ? "" : ", ", means.watts);
  if (means.watts > 0 && means.most_watts > 0) text += fmt::format(" of {:.0f} W", means.most_watts);
  return text;
}

std::string CauseOfLoss(double share, const ClockMeans& burst, const ClockMeans& steady) {
  if (share > 1 - kLeastLoss || burst.mhz == 0 || steady.mhz == 0) return "";
  if (steady.mhz > (1 - kLeastLoss) * burst.mhz)
    return "the clock did not fall, so other work on the machine or its memory made the steps slower";
  const auto most = std::ranges::max_element(steady.held_by, {}, &std::pair<std::string, double>::second);
  const double fall = 100 * (1 - steady.mhz / burst.mhz);
  if (most == steady.held_by.end() || most->second < kOftenEnough)
    return fmt::format("the clock fell by {:.1f} %, and the system does not say why", fall);
  return fmt::format("the clock fell by {:.1f} %, held down by {} for {:.0f} % of the time", fall, most->first,
                     100 * most->second);
}

double MeanClock(const std::vector<int>& cores, const std::string& root) {
  double sum = 0;
  std::vector<double> of_cpuinfo;
  for (const int core : cores) {
    const std::string khz = ReadSystemFile(FileOf(root, core, "cpufreq/scaling_cur_freq"));
    if (khz.empty() && of_cpuinfo.empty()) of_cpuinfo = ClocksOfCpuinfo(root);
    if (khz.empty() && core >= std::ssize(of_cpuinfo)) return 0;
    sum += khz.empty() ? of_cpuinfo[static_cast<size_t>(core)] : std::atof(khz.c_str()) / 1e3;
  }
  return cores.empty() ? 0 : sum / double(cores.size());
}

CoreReader::CoreReader(std::vector<int> cores, std::string root)
    : cores_(std::move(cores)), root_(std::move(root)), slowdowns_(Slowdowns()) {}

int64_t CoreReader::Slowdowns() const {
  int64_t sum = 0;
  for (const int core : cores_)
    for (const char* name : {"thermal_throttle/core_throttle_count", "thermal_throttle/package_throttle_count"})
      sum += std::atoll(ReadSystemFile(FileOf(root_, core, name)).c_str());
  return sum;
}

ClockSample CoreReader::Read() {
  ClockSample sample{.mhz = MeanClock(cores_, root_)};
  if (const int64_t now = Slowdowns(); now > std::exchange(slowdowns_, now)) sample.held_by.emplace_back("heat");
  return sample;
}

ClockWatch::ClockWatch(const std::string& bus_id, double period_ms) {
  std::function<ClockSample()> read;
  if (bus_id.empty()) {
    const auto cores = std::make_shared<CoreReader>(CoresOfThis().cores);
    if (cores->Read().mhz == 0) problem_ = "the system does not tell the clock of this process's cores";
    read = [cores] { return cores->Read(); };
  } else {
    const auto gpu = std::make_shared<GpuReader>(bus_id);
    problem_ = gpu->problem();
    read = [gpu] { return SampleOf(gpu->Read()); };
  }
  if (!problem_.empty()) return;
  thread_ = std::jthread([this, read, period_ms](const std::stop_token& stop) {
    const auto began = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    do {
      const double at_ms = MillisecondsSince(began);
      samples_.push_back(read());
      samples_.back().at_ms = at_ms;
    } while (!stopped.wait_for(lock, stop, std::chrono::duration<double, std::milli>(period_ms),
                               [&] { return stop.stop_requested(); }));
  });
}

std::vector<ClockSample> ClockWatch::Stop() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  return std::move(samples_);
}

}  // namespace espalier
