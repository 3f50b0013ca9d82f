#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

/// Rows are in units of a bf16 element, the smallest type.
constexpr int64_t kUnit = sizeof(uint16_t);

__global__ void CopyCache(CacheWriteArgs a) {
  const auto* from = static_cast<const uint16_t*>(a.cache);
  auto* to = static_cast<uint16_t*>(a.y);
  const int64_t width = a.row_bytes / kUnit;
  ForRows(a.batch * a.length, [&](int64_t r) {
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) to[r * width + c] = from[r * width + c];
  });
}

// A position outside of the cache ends the job.
__global__ void WriteRows(CacheWriteArgs a) {
  const auto* x = static_cast<const uint16_t*>(a.x);
  auto* y = static_cast<uint16_t*>(a.y);
  const int64_t width = a.row_bytes / kUnit;
  ForRows(a.batch * a.rows, [&](int64_t r) {
    const int64_t position = a.positions[r % a.rows];
    DEVICE_CHECK(position >= 0 && position < a.length);
    const int64_t row = r / a.rows * a.length + position;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) y[row * width + c] = x[r * width + c];
  });
}

}  // namespace

void CacheWrite(const CacheWriteArgs& a, const LaunchContext& context) {
  if (a.batch * a.length * a.row_bytes == 0) return;
  if (a.y != a.cache) Launch(CopyCache, RowBlocks(a.batch * a.length), kThreads, 0, context.stream, a);
  if (a.rows > 0) Launch(WriteRows, RowBlocks(a.batch * a.rows), kThreads, 0, context.stream, a);
}

}  // namespace espalier::cuda
