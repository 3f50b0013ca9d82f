// A GPU as the device of a rank.
#pragma once

#include "espalier/comm/mpi_communication.hpp"
#include "espalier/comm/stream_communication.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice(Gpu gpu, GpuOptions options);

  DeviceKind Kind() const override { return DeviceKind::kCuda; }
  std::string Describe() const override { return gpu_.name + ", " + gpu_.bus_id; }
  std::string BusId() const override { return gpu_.bus_id; }
  std::string Conditions() const override;
  int64_t OutsideBytes(int64_t arena_bytes, int64_t staging_bytes) const override;
  void Profile(Profiling profiling) const override;
  std::vector<std::string> TakeFallbacks() const override { return cuda::TakeFallbacks(); }
  /// From a table by the GPU's name, otherwise measured.
  PeakRate Peak(Dtype compute) const override;

  std::vector<MemoryLimit> ArenaLimits() const override;
  std::unique_ptr<Arena> MakeArena(int64_t bytes) override;
  std::unique_ptr<Arena> MakeStaging(int64_t bytes) override;
  void Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) override;
  std::unique_ptr<Executor> MakeExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                                         Executor::Abort abort) override;

 private:
  Gpu gpu_;
  GpuOptions options_;
  Streams streams_;
  std::unique_ptr<StreamCommunication> nccl_;
  std::unique_ptr<MpiCommunication> mpi_;
};

}  // namespace espalier::cuda
