#include "arenas.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"

namespace espalier::cuda {
namespace {

/// CUDA does not allocate 0 bytes.
size_t AtLeastOne(int64_t bytes) { return static_cast<size_t>(std::max(bytes, int64_t{1})); }

/// "unlimited", or the limit of this process.
std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return Gigabytes(static_cast<int64_t>(limit.rlim_cur));
}

}  // namespace

PinnedMemory::PinnedMemory(size_t bytes) {
  CUDA_CALL(cudaHostAlloc(&data_, std::max(bytes, size_t{1}), cudaHostAllocDefault));
  std::memset(data_, 0, bytes);
}

DeviceArena::DeviceArena(int64_t bytes, cudaStream_t stream) : Arena(bytes), stream_(stream) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, AtLeastOne(bytes)) != cudaSuccess) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    CUDA_CALL(cudaMemGetInfo(&free, &total));
    throw UserError(ExitStatus::kDoesNotFit, fmt::format("the GPU gives no arena of {} bytes ({} of its {} bytes are "
                                                         "free): use more ranks (espalier plan shows the memory of "
                                                         "each), smaller microbatches or recompute.mode",
                                                         bytes, free, total));
  }
  base_ = static_cast<std::byte*>(memory);
  CUDA_CALL(cudaMemsetAsync(base_, 0, static_cast<size_t>(bytes), stream_));
  CUDA_CALL(cudaStreamSynchronize(stream_));
}

DeviceArena::~DeviceArena() { cudaFree(base_); }

void DeviceArena::Read(const void* from, void* to, int64_t bytes) const {
  CUDA_CALL(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_));
  CUDA_CALL(cudaStreamSynchronize(stream_));
}

void DeviceArena::Write(void* to, const void* from, int64_t bytes) {
  CUDA_CALL(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_));
  CUDA_CALL(cudaStreamSynchronize(stream_));
}

PinnedArena::PinnedArena(int64_t bytes) : Arena(bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, AtLeastOne(bytes), cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();
    throw UserError(ExitStatus::kDoesNotFit,
                    fmt::format("the system gives no pinned memory of {} bytes (locked memory is limited to {}: ulimit "
                                "-l): raise that limit, keep less on the host (offload), or use more ranks",
                                bytes, LockedMemoryLimit()));
  }
  base_ = static_cast<std::byte*>(memory);
  std::memset(base_, 0, static_cast<size_t>(bytes));
}

PinnedArena::~PinnedArena() { cudaFreeHost(base_); }

void PinnedArena::Read(const void* from, void* to, int64_t bytes) const {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void PinnedArena::Write(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace espalier::cuda
