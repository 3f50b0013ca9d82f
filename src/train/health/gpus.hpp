// The state of this node's GPUs, as the driver's management library (NVML) tells it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace espalier {

struct GpuFacts {
  std::string name, bus_id;
  int64_t free_bytes = 0, total_bytes = 0;
  int clock_mhz = 0, most_clock_mhz = 0;    ///< of multiprocessors, now and at most
  int64_t ecc_errors = 0;                   ///< that could not be corrected, since the driver was loaded
  int remapped_rows = 0;                    ///< of memory, in the life of the GPU
  bool remap_pending = false;               ///< rows wait for a reset
  bool remap_failed = false;                ///< no spare rows are left
  std::vector<std::string> slowed_by = {};  ///< "heat", "power brake", ...: faults that hold its clock down now
  double watts = 0, most_watts = 0;         ///< what it draws, and its limit
  bool at_power_limit = false;              ///< which holds its clock down now, and is no fault

  auto Fields() {
    return std::tie(name, bus_id, free_bytes, total_bytes, clock_mhz, most_clock_mhz, ecc_errors, remapped_rows,
                    remap_pending, remap_failed, slowed_by, watts, most_watts, at_power_limit);
  }
};

struct NodeGpus {
  std::vector<GpuFacts> gpus;
  std::string problem;  ///< why the library does not answer although it is there; empty: it does, or there is none
};

/// Figures that a GPU does not report (ECC of gaming GPUs) stay 0.
NodeGpus ReadGpus();

class Nvml;

/// Reads one GPU again and again.
class GpuReader {
 public:
  /// `bus_id`: its PCI address, "0000:1b:00.0".
  explicit GpuReader(const std::string& bus_id);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// Why it cannot be read; empty: it can.
  const std::string& problem() const { return problem_; }
  GpuFacts Read() const;

 private:
  std::unique_ptr<Nvml> library_;
  void* device_ = nullptr;
  std::string problem_;
};

}  // namespace espalier
