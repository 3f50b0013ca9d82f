// How kernels are issued, in one place: here by the CUDA runtime; tests/emulation replaces these headers and uses host
// threads. No fmt, spdlog or toml++ under nvcc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/kernels/cuda/cuda_call.hpp"

#ifdef ESPALIER_EMULATE
#include "emulate.hpp"
#else

namespace espalier::cuda {

/// Dynamic shared memory that every kernel may have; a kernel must request more explicitly.
inline constexpr size_t kSharedBytes = 48 << 10;

/// The largest dynamic shared memory that a kernel may request on this device, with room for 1 KiB of static shared
/// memory.
inline size_t MostSharedBytes() {
  static const size_t bytes = [] {
    int device = 0, value = 0;
    CUDA_CALL(cudaGetDevice(&device));
    CUDA_CALL(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return static_cast<size_t>(value) - 1024;
  }();
  return bytes;
}

/// Issues `kernel` on `stream`: blocks x threads, with `shared_bytes` of dynamic shared memory, at most
/// MostSharedBytes().
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared_bytes, cudaStream_t stream,
            Arguments... arguments) {
  if (shared_bytes > kSharedBytes)
    CUDA_CALL(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel<<<blocks, threads, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  CUDA_CALL(cudaGetLastError());
}

/// Emulated: an access that a device would not make at this address is an error.
__device__ inline void CheckAligned(const void*, size_t) {}

}  // namespace espalier::cuda

/// An invariant that only the device can check: a violation ends the launch, and with it the job.
#define DEVICE_CHECK(condition) \
  do {                          \
    if (!(condition)) __trap(); \
  } while (false)

/// A block's dynamic shared memory as an array of `type`.
#define SHARED_ARRAY(type, name)                                \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  type* name = reinterpret_cast<type*>(name##_bytes)

#endif
