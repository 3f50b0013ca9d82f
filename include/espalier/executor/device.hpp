// The only interface to the hardware of a rank: memory, communication, executors. A run has one device per rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/executor/peak_rate.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {

class Costs;

enum class Profiling : uint8_t { kStart, kStop };

class Device {
 public:
  virtual ~Device() = default;
  /// Programs are compiled for it.
  virtual DeviceKind Kind() const = 0;
  /// False on a device that only waits: values, losses and norms do not exist there.
  virtual bool Computes() const { return true; }
  /// For messages: "NVIDIA H200, 0000:1b:00.0".
  virtual std::string Describe() const = 0;
  /// The PCI address of a GPU, "0000:1b:00.0"; empty for other devices.
  virtual std::string BusId() const { return ""; }
  /// Everything on this rank that may change the last bits of a result: processor or GPU, libraries, threads.
  virtual std::string Conditions() const = 0;
  /// Device memory of this rank outside its arena. On a CPU: the high-water mark without the staging buffer. On a GPU:
  /// the current use (context, modules, NCCL).
  virtual int64_t OutsideBytes(int64_t arena_bytes, int64_t staging_bytes) const = 0;
  /// Messages about operations that run slower than possible because a library or the driver refused the faster way;
  /// each once, since the last call.
  virtual std::vector<std::string> TakeFallbacks() const { return {}; }
  /// Tells profilers that wait for it to begin or end recording this process: on GPUs by CUDA; elsewhere nothing.
  virtual void Profile(Profiling) const {}
  /// Peak rate of matmuls of this type. CPUs measure it in about 30 ms. GPUs without a known datasheet measure it in a
  /// fraction of a second; ranks that share a GPU must measure at the same time.
  virtual PeakRate Peak(Dtype compute) const = 0;

  /// The limits of the arena: memory of this node, or of the GPU.
  virtual std::vector<MemoryLimit> ArenaLimits() const = 0;
  /// The limits of an arena on the host: memory of this node; none on a device that allocates nothing.
  virtual std::vector<MemoryLimit> HostLimits() const { return MemoryLimits(); }
  /// The arena of this rank. Throws UserError (kDoesNotFit) if it does not fit.
  virtual std::unique_ptr<Arena> MakeArena(int64_t bytes) = 0;
  /// Host memory that this device copies to and from at full speed: a staging buffer, or an arena on the host. Throws
  /// like MakeArena.
  virtual std::unique_ptr<Arena> MakeStaging(int64_t bytes) = 0;

  /// Makes the communicators of `channels`, once, before the first executor that communicates. Collective, with the
  /// same list on all ranks (AgreeOnChannels). `world` must outlive it.
  virtual void Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) = 0;

  /// An executor in arenas of this device. Program, arenas and device must outlive it.
  virtual std::unique_ptr<Executor> MakeExecutor(const Program& program, const Coordinate& coordinate,
                                                 const Memory& memory, Executor::Abort abort) = 0;
};

/// The CPU, with `threads` threads for kernels. Messages use MPI.
std::unique_ptr<Device> MakeCpuDevice(int threads);

/// A device that waits in place of kernels and messages, `dilation` times as long as they take by `costs`. Messages of
/// at most about 1 KiB travel over MPI, so that ranks wait for each other as on the cluster.
std::unique_ptr<Device> MakeSleepDevice(Costs costs, double dilation);

}  // namespace espalier
