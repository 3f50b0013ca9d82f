// What a rank computes on, and all that depends on it: memory, communication, executors. A run has one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/executor/peak_rate.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind Kind() const = 0;
  /// For people: "NVIDIA H200, 0000:1b:00.0".
  virtual std::string Describe() const = 0;
  /// All of this rank that may change the last bits of a result: processor or GPU, libraries, threads.
  virtual std::string Conditions() const = 0;
  /// What this rank takes of the device's memory beside its arena: high-water mark on the processor, where the staging
  /// buffer lies too; what is used now on a GPU (context, modules, NCCL).
  virtual int64_t OutsideBytes(int64_t arena_bytes, int64_t staging_bytes) const = 0;
  /// The most that it computes in products of this type. A processor measures it, with the other ranks of its node if
  /// they ask at the same time: some 30 ms.
  virtual PeakRate Peak(Dtype compute) const = 0;

  /// What limits the arena: memory of this node, or of the GPU.
  virtual std::vector<MemoryLimit> ArenaLimits() const = 0;
  /// The rank's one arena. Throws UserError (kDoesNotFit) if there is no room for it.
  virtual std::unique_ptr<Arena> MakeArena(int64_t bytes) = 0;
  /// Memory of the host that this device copies to and from at full speed. Throws as MakeArena.
  virtual std::unique_ptr<Arena> MakeStaging(int64_t bytes) = 0;

  /// Makes the communicators of `channels`, once, before the first executor that communicates. Collective, with the
  /// same list on all ranks (AgreeOnChannels). `world` must outlive it.
  virtual void Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) = 0;

  /// An executor in an arena of this device. All arguments, and the device, must outlive it.
  virtual std::unique_ptr<Executor> MakeExecutor(const Program& program, const Coordinate& coordinate, Arena& arena,
                                                 Executor::Abort abort) = 0;
};

/// The processor, with `threads` threads for kernels. Messages travel over MPI.
std::unique_ptr<Device> MakeCpuDevice(int threads);

}  // namespace espalier
