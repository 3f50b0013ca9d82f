#include <fmt/core.h>

#include <sstream>

#include "espalier/comm/mpi_communication.hpp"
#include "espalier/executor/cpu_executor.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

/// The processor's name from Linux.
std::string Processor() {
  std::istringstream file(ReadSystemFile("/proc/cpuinfo"));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line;
  return "unknown";
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) { SetCpuThreads(threads); }

  DeviceKind Kind() const override { return DeviceKind::kCpu; }
  std::string Describe() const override { return fmt::format("cpu, instruction level {}", CpuLevel()); }
  std::string Conditions() const override { return fmt::format("{} {} {}", CpuLevel(), Processor(), threads_); }
  int64_t OutsideBytes(int64_t arena_bytes, int64_t staging_bytes) const override {
    return PeakResidentMemory() - arena_bytes - staging_bytes;
  }

  PeakRate Peak(Dtype compute) const override { return MeasureCpuPeak(compute, threads_); }

  std::vector<MemoryLimit> ArenaLimits() const override { return MemoryLimits(); }
  std::unique_ptr<Arena> MakeArena(int64_t bytes) override { return std::make_unique<HostArena>(bytes); }
  std::unique_ptr<Arena> MakeStaging(int64_t bytes) override { return std::make_unique<HostArena>(bytes); }

  void Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) override {
    communication_ = std::make_unique<MpiCommunication>(world, mesh, channels);
  }
  std::unique_ptr<Executor> MakeExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                                         Executor::Abort abort) override {
    return std::make_unique<CpuExecutor>(program, coordinate, memory, communication_.get(), FindCpuKernel,
                                         std::move(abort));
  }

 private:
  int threads_;
  std::unique_ptr<MpiCommunication> communication_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace espalier
