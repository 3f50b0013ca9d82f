// Tests the emulation itself: barriers and shuffles behave like CUDA's, and forbidden operations are detected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/kernels/cuda/launch.cuh"
#include "espalier/util/error.hpp"
#include "kernels/cuda/runtime/tensor_cores.cuh"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename... Parameters, typename... Arguments>
void Start(void (*kernel)(Parameters...), int blocks, int threads, int shared_bytes, Arguments... arguments) {
  cuda::Launch(kernel, dim3(unsigned(blocks)), dim3(unsigned(threads)), size_t(shared_bytes), nullptr, arguments...);
}

__global__ void Indices(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] +=
      int(threadIdx.x + 100 * blockIdx.x + 1000 * blockIdx.y);
}

TEST(Emulation, EveryThreadRunsOnce) {
  std::vector<int> out(2 * 3 * 40);
  cuda::Launch(Indices, dim3(3, 2), dim3(40), 0, nullptr, out.data());
  for (int i = 0; i < 240; ++i) EXPECT_EQ(out[size_t(i)], i % 40 + i / 40 % 3 * 100 + i / 120 * 1000);
}

/// Sum of the thread indices of a block, by a tree in shared memory.
__global__ void TreeSum(int* out) {
  SHARED_ARRAY(int, sums);
  sums[threadIdx.x] = int(threadIdx.x);
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

TEST(Emulation, BarriersOrderABlock) {
  std::vector<int> out(3);
  Start(TreeSum, 3, 256, 1024, out.data());
  EXPECT_THAT(out, ::testing::Each(255 * 128));
}

__global__ void Shuffles(int* out) {
  const int lane = int(threadIdx.x % 32);
  int sum = lane;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  int* mine = out + 6 * threadIdx.x;
  mine[0] = sum;
  mine[1] = __shfl_down_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
  mine[3] = __shfl_sync(0xffffffffu, lane, 5);
  mine[4] = int(__ballot_sync(0xffffffffu, lane % 3 == 0));
  if (lane < 16) mine[5] = __shfl_xor_sync(0xffffu, lane, 8);
}

TEST(Emulation, ShufflesAreThoseOfAWarp) {
  std::vector<int> out(64 * 6);
  Start(Shuffles, 1, 64, 0, out.data());
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, *mine = &out[size_t(6 * t)];
    EXPECT_EQ(mine[0], 496);
    EXPECT_EQ(mine[1], lane + 3 < 32 ? lane + 3 : lane);
    EXPECT_EQ(mine[2], lane % 8 >= 3 ? lane - 3 : lane);
    EXPECT_EQ(mine[3], 5);
    EXPECT_EQ(mine[4], 0x49249249);
    EXPECT_EQ(mine[5], lane < 16 ? lane ^ 8 : 0);
  }
}

__global__ void HalfWaits() {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void LaneIsMissing() {
  if (threadIdx.x != 7) __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void Overflows() {
  SHARED_ARRAY(int, x);
  x[threadIdx.x] = 1;
}
__global__ void ReadsWhatNobodyWrote(float* out) {
  SHARED_ARRAY(float, x);
  out[0] = x[0];
}

TEST(Emulation, ErrorsAreFound) {
  EXPECT_THAT([] { Start(HalfWaits, 1, 64, 0); },
              ThrowsMessage<InvariantError>(HasSubstr("waits for threads that have ended")));
  EXPECT_THAT([] { Start(LaneIsMissing, 1, 32, 0); },
              ThrowsMessage<InvariantError>(HasSubstr("waits for threads that have ended")));
  std::vector<int> out(48 * 6);
  EXPECT_THAT([&] { Start(Shuffles, 1, 48, 0, out.data()); },
              ThrowsMessage<InvariantError>(HasSubstr("lanes that its warp does not have")));
  EXPECT_THAT([] { Start(Overflows, 1, 64, 252); },
              ThrowsMessage<InvariantError>(HasSubstr("writes around its 252 bytes")));
  EXPECT_THAT([] { Start(HalfWaits, 0, 64, 0); }, ThrowsMessage<InvariantError>(HasSubstr("a grid of 0 x 1 x 1")));
  float found = 0;
  Start(ReadsWhatNobodyWrote, 1, 1, 4, &found);
  EXPECT_TRUE(std::isnan(found));
}

__global__ void ReadsTheThreadBefore(int* out) {
  SHARED_ARRAY(int, x);
  x[threadIdx.x] = int(threadIdx.x);
  out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x > 0 ? x[threadIdx.x - 1] : 0;
}
__global__ void ReadsTheLaneBefore(int* out) {
  SHARED_ARRAY(int, x);
  __syncthreads();
  __shfl_xor_sync(0xffffffffu, 1, 1);
  x[threadIdx.x] = int(threadIdx.x);
  out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x > 0 ? x[threadIdx.x - 1] : 0;
}
__global__ void ReadsTheBlockBefore(int* out) { out[blockIdx.x] = blockIdx.x > 0 ? out[blockIdx.x - 1] + 1 : 0; }

TEST(Emulation, WhatNeedsAnOrderComesOutOtherwise) {
  for (const auto kernel : {ReadsTheThreadBefore, ReadsTheLaneBefore}) {
    std::vector<int> out(128);
    Start(kernel, 2, 64, 256, out.data());
    EXPECT_NE(std::vector(out.begin(), out.begin() + 64), std::vector(out.begin() + 64, out.end()));
  }
  std::vector<int> first(4), second(4);
  Start(ReadsTheBlockBefore, 4, 1, 0, first.data());
  Start(ReadsTheBlockBefore, 4, 1, 0, second.data());
  EXPECT_NE(first, second);
}

TEST(Emulation, SharedMemoryBeyondWhatAKernelMayAskForIsRefused) {
  EXPECT_THAT([] { Start(Overflows, 1, 64, (98 << 10) + 4); },
              ThrowsMessage<InvariantError>(HasSubstr("100356 bytes of dynamic shared memory")));
}

TEST(Emulation, GoesOnAfterAnError) {
  EXPECT_THROW(Start(HalfWaits, 1, 64, 0), InvariantError);
  std::vector<int> out(1);
  Start(TreeSum, 1, 64, 256, out.data());
  EXPECT_EQ(out[0], 63 * 32);
}

/// c [16,16] = a [16,16] b^T [16,16], or with kTransposed a^T b. One warp; `awaited`: the copies into shared memory.
template <bool kTransposed>
__global__ void ProductOfMatrices(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, bool awaited) {
  SHARED_ARRAY(__nv_bfloat16, shared);
  const int lane = int(threadIdx.x), row = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
  cuda::CopyAsync(shared + 8 * lane, a + 8 * lane, true);
  cuda::EndCopies();
  cuda::CopyAsync(shared + 256 + 8 * lane, b + 8 * lane, lane < 24);
  cuda::EndCopies();
  awaited ? cuda::AwaitCopies<0>() : cuda::AwaitCopies<1>();
  __syncthreads();
  const auto at = [&](int outer, int k) { return kTransposed ? (k + row) * 16 + outer : (outer + row) * 16 + k; };
  uint32_t left[4], right[4];
  cuda::LoadMatrices<kTransposed>(left, shared + at(low, high));
  cuda::LoadMatrices<kTransposed>(right, shared + 256 + at(high, low));
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {};
    cuda::MultiplyAdd(sums, left, right[2 * half], right[2 * half + 1]);
    for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 16 + 8 * half + lane % 4 * 2 + i % 2] = sums[i];
  }
  cuda::AwaitCopies<0>();
}

TEST(Emulation, TensorCoresMultiplyWhatHasArrived) {
  alignas(16) __nv_bfloat16 a[256], b[256];
  for (int i = 0; i < 256; ++i) a[i] = float(i % 17 - 8), b[i] = float(i % 13 - 6);
  std::vector<float> c(256), transposed(256);
  Start(ProductOfMatrices<false>, 1, 32, 1024, a, b, c.data(), true);
  Start(ProductOfMatrices<true>, 1, 32, 1024, a, b, transposed.data(), true);
  for (int i = 192; i < 256; ++i) b[i] = 0.0f;  // was not copied
  for (int i = 0; i < 256; ++i) {
    float sum = 0, of_transposed = 0;
    for (int k = 0; k < 16; ++k) {
      sum += float(a[i / 16 * 16 + k]) * float(b[i % 16 * 16 + k]);
      of_transposed += float(a[k * 16 + i / 16]) * float(b[k * 16 + i % 16]);
    }
    EXPECT_EQ(c[size_t(i)], sum) << i;
    EXPECT_EQ(transposed[size_t(i)], of_transposed) << i;
  }
  Start(ProductOfMatrices<false>, 1, 32, 1024, a, b, c.data(), false);
  EXPECT_THAT(c, ::testing::Each(::testing::IsNan()));
}

}  // namespace
}  // namespace espalier
