// The small part of CUDA that kernels use, on the host: included by espalier/kernels/cuda/launch.cuh if
// ESPALIER_EMULATE is defined. Blocks run one after the other, a block's threads as fibers: one runs until it must wait
// for others, at a barrier or in a shuffle. Blocks and threads run forwards or backwards in turn, so that code that
// lacks a barrier but needs an order gives other results. Forbidden operations are errors (InvariantError): barriers
// that not all threads reach, shuffles without a lane that the mask names, launches beyond the device's limits, wide
// accesses at odd addresses, writes around the dynamic shared memory. That memory holds NaN when a block begins. Not
// emulated: speed, registers, concurrency of the hardware, uninitialized static shared memory. Headers of the toolkit
// give the types; nothing of its libraries is linked.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>

namespace espalier::emulation {

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes;
};

/// Every other launch runs its blocks backwards, and every other block its threads, so that code that depends on an
/// order gives other results. `opposite` reverses both.
struct Order {
  unsigned launch = 0;  ///< number of the next launch of this host thread
  bool opposite = false;
};
extern thread_local Order order;

/// Runs `thread` once for every thread of the grid, and returns when all have ended.
void RunGrid(const Grid& grid, const std::function<void()>& thread);

/// Runs a launch: at once, unless a runtime with streams of its own sets another function.
extern void (*issue)(cudaStream_t stream, std::function<void()> work);

/// Which threads a thread waits for: the whole block, or the lanes of a warp that `mask` names.
enum class Meeting : uint8_t { kNone, kBlock, kWarp, kShuffle, kBallot };

/// Waits for the others. kShuffle: returns the `value` of lane `source`; kBallot: returns the lanes whose value is not
/// 0.
uint64_t Meet(Meeting meeting, uint32_t mask = 0, uint64_t value = 0, int source = 0);

/// Reports a broken invariant of a kernel.
[[noreturn]] void Fail(const char* what);

/// Ends the process where a call of a library would break the context of a GPU.
[[noreturn]] inline void EndContext(const char* library, const char* what) {
  std::fprintf(stderr, "emulated %s: %s\n", library, what);
  std::abort();
}

/// Index of the calling thread in its warp.
int Lane();

/// The block's dynamic shared memory.
unsigned char* SharedMemory();

/// Dynamic shared memory that a launch may have.
size_t MostSharedBytes();

template <typename T>
T Shuffle(uint32_t mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Meet(Meeting::kShuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// `lane`, or the caller's own if `lane` is outside its group of `width` lanes.
inline int LaneInGroup(int lane, int width) { return lane >= 0 && lane / width == Lane() / width ? lane : Lane(); }

}  // namespace espalier::emulation

// NOLINTBEGIN: CUDA's names
inline thread_local constinit uint3 threadIdx{}, blockIdx{};
inline thread_local constinit dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

#undef __shared__
#define __shared__ static thread_local
#define SHARED_ARRAY(type, name) type* name = reinterpret_cast<type*>(::espalier::emulation::SharedMemory())
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

inline void __syncthreads() { espalier::emulation::Meet(espalier::emulation::Meeting::kBlock); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  espalier::emulation::Meet(espalier::emulation::Meeting::kWarp, mask);
}
inline uint32_t __ballot_sync(uint32_t mask, int vote) {
  return static_cast<uint32_t>(espalier::emulation::Meet(espalier::emulation::Meeting::kBallot, mask, vote != 0));
}
inline int __any_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) == mask; }
template <typename T>
T __shfl_sync(uint32_t mask, T value, int lane, int width = 32) {
  return espalier::emulation::Shuffle(mask, value, espalier::emulation::Lane() / width * width + lane % width);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32) {
  return espalier::emulation::Shuffle(mask, value,
                                      espalier::emulation::LaneInGroup(espalier::emulation::Lane() ^ lanes, width));
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned lanes, int width = 32) {
  return espalier::emulation::Shuffle(
      mask, value, espalier::emulation::LaneInGroup(espalier::emulation::Lane() + int(lanes), width));
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, int width = 32) {
  return espalier::emulation::Shuffle(
      mask, value, espalier::emulation::LaneInGroup(espalier::emulation::Lane() - int(lanes), width));
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
void __stwb(T* p, T x) {
  *p = x;
}
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
/// y with the largest allowed error of a function, upwards for some arguments and downwards for others.
inline float OffByUlps(float y, float ulps, float argument) {
  const float sign = std::bit_cast<uint32_t>(argument) * 2654435761u >> 31 != 0 ? 1.0f : -1.0f;
  return y * (1.0f + sign * ulps / (1 << 24));
}
inline float __expf(float x) { return OffByUlps(std::exp(x), 2 + std::floor(std::abs(1.173f * x)), x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return std::abs(y) > 0x1p126f ? 0.0f : OffByUlps(x / y, 2, y); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
// NOLINTEND

namespace espalier::cuda {

/// Limit of the bytes of a kernel's parameters, since CUDA 12.1.
inline constexpr size_t kMaxParameterBytes = 32764;

/// The limit of the GPU's compute capability; if none is set that of 8.6, the smallest from 8.0 to 10.0.
inline size_t MostSharedBytes() { return emulation::MostSharedBytes(); }

/// Issues `kernel` on `stream`: blocks x threads, with `shared_bytes` of dynamic shared memory.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared_bytes, cudaStream_t stream,
            Arguments... arguments) {
  static_assert(sizeof(std::tuple<Parameters...>) <= kMaxParameterBytes);
  emulation::issue(stream, [=, parameters = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
    emulation::RunGrid({blocks, threads, shared_bytes}, [&] { std::apply(kernel, parameters); });
  });
}

inline void CheckAligned(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    emulation::Fail("an access of several bytes at an address that is no multiple of them");
}

}  // namespace espalier::cuda

#define DEVICE_CHECK(condition)                                \
  do {                                                         \
    if (!(condition)) ::espalier::emulation::Fail(#condition); \
  } while (false)
