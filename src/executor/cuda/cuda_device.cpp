#include "cuda_device.hpp"

#include <cuda_profiler_api.h>
#include <fmt/core.h>
#include <nccl.h>

#include <cstdlib>

#include "arenas.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/host_name.hpp"
#include "measure_peak.hpp"
#include "staged_executor.hpp"
#include "stream_executor.hpp"
#include "versions.hpp"

namespace espalier::cuda {
namespace {

/// Measured GEMM plans select other algorithms, which give other bits.
std::string GemmPlansInUse() {
  const GemmPlans& plans = GetCudaKernelOptions().gemm_plans;
  const std::string text = plans.Text();
  return plans.entries.empty() ? "no product plans"
                               : fmt::format("product plans {:08x}", Crc32c(text.data(), text.size()));
}

/// If switches reduce (NVLink SHARP), the order of sums differs from call to call. From 2.24 on NCCL takes algorithms
/// by function, and switches go on gathering. Settings of the user are kept.
void LetNoSwitchAdd() {
  constexpr int kFirstByFunction = NCCL_VERSION(2, 24, 0);
  int version = 0;
  ncclGetVersion(&version);
  if (std::getenv("NCCL_NVLS_ENABLE") != nullptr) return;
  if (version >= kFirstByFunction && std::getenv("NCCL_ALGO") == nullptr)
    setenv("NCCL_ALGO", "allreduce:^nvls,nvlstree;reducescatter:^nvls,nvlstree", 1);
  else
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}

}  // namespace

CudaDevice::CudaDevice(Gpu gpu, GpuOptions options) : gpu_(std::move(gpu)), options_(options) {}

std::string CudaDevice::Conditions() const {
  int driver = 0;
  CUDA_CALL(cudaDriverGetVersion(&driver));
  return fmt::format("{} driver {} {} {} {} {}", gpu_.name, driver, Versions(),
                     options_.deterministic ? "deterministic" : "fast",
                     options_.transport == GpuTransport::kNccl ? "nccl" : "mpi", GemmPlansInUse());
}

PeakRate CudaDevice::Peak(Dtype compute) const {
  const PeakRate known = GpuPeak(gpu_.name, compute);
  return known.flops > 0 ? known : MeasureGpuPeak(compute, streams_.Compute());
}

/// Without a profiler both calls do nothing.
void CudaDevice::Profile(Profiling profiling) const {
  if (profiling == Profiling::kStart)
    CUDA_CALL(cudaProfilerStart());
  else
    CUDA_CALL(cudaProfilerStop());
}

/// Memory of all processes on the GPU, as the driver reports it; with nccl a rank has the GPU to itself.
int64_t CudaDevice::OutsideBytes(int64_t arena_bytes, int64_t) const {
  size_t free = 0, total = 0;
  CUDA_CALL(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total - free) - arena_bytes;
}

/// Ranks that share a GPU share its free memory.
std::vector<MemoryLimit> CudaDevice::ArenaLimits() const {
  size_t free = 0, total = 0;
  CUDA_CALL(cudaMemGetInfo(&free, &total));
  const std::string what =
      fmt::format("free memory of {} {}, which has {}", gpu_.name, gpu_.bus_id, Gigabytes(static_cast<int64_t>(total)));
  return {{NodeKey() + " gpu " + gpu_.bus_id, what, static_cast<int64_t>(free)}};
}

std::unique_ptr<Arena> CudaDevice::MakeArena(int64_t bytes) {
  return std::make_unique<DeviceArena>(bytes, streams_.Compute());
}
std::unique_ptr<Arena> CudaDevice::MakeStaging(int64_t bytes) { return std::make_unique<PinnedArena>(bytes); }

void CudaDevice::Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) {
  if (options_.deterministic) LetNoSwitchAdd();
  if (options_.transport == GpuTransport::kNccl)
    nccl_ = MakeNcclCommunication(world, mesh, channels, {NcclToItself(), options_.ctas});
  else
    mpi_ = std::make_unique<MpiCommunication>(world, mesh, channels);
}

std::unique_ptr<Executor> CudaDevice::MakeExecutor(const Program& program, const Coordinate& coordinate,
                                                   const Memory& memory, Executor::Abort abort) {
  if (mpi_ != nullptr)
    return std::make_unique<StagedExecutor>(program, coordinate, memory, streams_, *mpi_, gpu_.index, std::move(abort));
  return std::make_unique<StreamExecutor>(program, coordinate, memory, streams_, nccl_.get(), std::move(abort));
}

}  // namespace espalier::cuda
