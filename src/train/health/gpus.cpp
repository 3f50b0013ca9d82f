#include "train/health/gpus.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <utility>

namespace espalier {

/// The library; an empty one if this host has none.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ != nullptr) problem_ = ProblemOf("nvmlInit_v2", Call("nvmlInit_v2"));
  }
  ~Nvml() {
    if (library_ != nullptr && problem_.empty()) Call("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool IsMissing() const { return library_ == nullptr; }
  bool Answers() const { return library_ != nullptr && problem_.empty(); }
  const std::string& problem() const { return problem_; }

  /// The library's status; kMissing if it has no such function.
  template <typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    constexpr int kMissing = -1;
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? kMissing : function(arguments...);
  }
  static std::string ProblemOf(const char* name, int status) {
    return status == 0 ? "" : fmt::format("{} fails with status {}", name, status);
  }

 private:
  void* library_;
  std::string problem_;
};

namespace {

/// NVML's types and numbers, from its documentation: hosts without a GPU have no header.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlPci {
  char old_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
constexpr int kClockOfMultiprocessors = 1, kUncorrected = 1, kSinceDriverWasLoaded = 0;
constexpr unsigned long long kPowerLimit = 0x4;
constexpr std::pair<unsigned long long, const char*> kSlowdowns[] = {
    {0x8, "hardware"}, {0x20, "heat (software)"}, {0x40, "heat"}, {0x80, "power brake"}};

GpuFacts FactsOf(const Nvml& nvml, NvmlDevice device) {
  GpuFacts facts;
  std::array<char, 96> name{};
  NvmlPci pci{};
  NvmlMemory memory{};
  unsigned clock = 0, most_clock = 0, corrected = 0, uncorrected = 0, pending = 0, failed = 0, milliwatts = 0,
           most_milliwatts = 0;
  unsigned long long errors = 0, slowdowns = 0;
  nvml.Call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size()));
  nvml.Call("nvmlDeviceGetPciInfo_v3", device, &pci);
  nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory);
  nvml.Call("nvmlDeviceGetClockInfo", device, kClockOfMultiprocessors, &clock);
  nvml.Call("nvmlDeviceGetMaxClockInfo", device, kClockOfMultiprocessors, &most_clock);
  nvml.Call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverWasLoaded, &errors);
  nvml.Call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed);
  nvml.Call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &slowdowns);
  nvml.Call("nvmlDeviceGetPowerUsage", device, &milliwatts);
  nvml.Call("nvmlDeviceGetEnforcedPowerLimit", device, &most_milliwatts);
  facts.name = name.data();
  facts.bus_id = pci.bus_id;
  facts.free_bytes = static_cast<int64_t>(memory.free);
  facts.total_bytes = static_cast<int64_t>(memory.total);
  facts.clock_mhz = static_cast<int>(clock);
  facts.most_clock_mhz = static_cast<int>(most_clock);
  facts.ecc_errors = static_cast<int64_t>(errors);
  facts.remapped_rows = static_cast<int>(corrected + uncorrected);
  facts.remap_pending = pending != 0;
  facts.remap_failed = failed != 0;
  for (const auto& [bit, what] : kSlowdowns)
    if ((slowdowns & bit) != 0) facts.slowed_by.emplace_back(what);
  facts.watts = milliwatts / 1e3;
  facts.most_watts = most_milliwatts / 1e3;
  facts.at_power_limit = (slowdowns & kPowerLimit) != 0;
  return facts;
}

}  // namespace

NodeGpus ReadGpus() {
  const Nvml nvml;
  NodeGpus found{{}, nvml.problem()};
  if (!nvml.Answers()) return found;
  unsigned count = 0;
  found.problem = Nvml::ProblemOf("nvmlDeviceGetCount_v2", nvml.Call("nvmlDeviceGetCount_v2", &count));
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    const int status = nvml.Call("nvmlDeviceGetHandleByIndex_v2", i, &device);
    if (status == 0)
      found.gpus.push_back(FactsOf(nvml, device));
    else
      found.problem = fmt::format("GPU {}: {}", i, Nvml::ProblemOf("nvmlDeviceGetHandleByIndex_v2", status));
  }
  return found;
}

GpuReader::GpuReader(const std::string& bus_id) : library_(std::make_unique<Nvml>()) {
  problem_ = library_->IsMissing() ? "there is no libnvidia-ml.so.1" : library_->problem();
  if (!problem_.empty()) return;
  const char* function = "nvmlDeviceGetHandleByPciBusId_v2";
  problem_ = Nvml::ProblemOf(function, library_->Call(function, bus_id.c_str(), &device_));
}
GpuReader::~GpuReader() = default;

GpuFacts GpuReader::Read() const { return FactsOf(*library_, device_); }

}  // namespace espalier
