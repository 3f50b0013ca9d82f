#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

// In units of a bf16 element, the smallest there is. A position that the cache lacks ends the job.
__global__ void CacheWriteKernel(CacheWriteArgs a) {
  const auto* x = static_cast<const uint16_t*>(a.x);
  auto* y = static_cast<uint16_t*>(a.y);
  const int64_t width = a.row_bytes / int64_t{sizeof(uint16_t)};
  ForRows(a.batch * a.rows, [&](int64_t r) {
    const int64_t position = a.positions[r % a.rows];
    DEVICE_CHECK(position >= 0 && position < a.length);
    const int64_t row = r / a.rows * a.length + position;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) y[row * width + c] = x[r * width + c];
  });
}

}  // namespace

void CacheWrite(const CacheWriteArgs& a, const LaunchContext& context) {
  if (a.y != a.cache)
    CUDA_CALL(cudaMemcpyAsync(a.y, a.cache, static_cast<size_t>(a.batch * a.length * a.row_bytes),
                              cudaMemcpyDeviceToDevice, context.stream));
  const int64_t rows = a.batch * a.rows;
  if (rows * a.row_bytes == 0) return;
  Launch(CacheWriteKernel, RowBlocks(rows), kThreads, 0, context.stream, a);
}

}  // namespace espalier::cuda
