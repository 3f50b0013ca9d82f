// Instructions of the PTX ISA for matmuls on tensor cores, from compute capability 8.0 on: copies into shared memory
// that run meanwhile (cp.async), loads of matrices (ldmatrix), and products of matrices (mma); of fp8 from 8.9 on.
// tests/emulation has the same functions for the host: lane by lane, with the same operands in the same lanes.
#pragma once

#include "espalier/kernels/cuda/launch.cuh"
#include "espalier/util/types.hpp"

#ifdef ESPALIER_EMULATE
#include "emulate_tensor_cores.hpp"
#else

namespace espalier::cuda {

__device__ inline uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// Starts to copy 16 bytes to shared memory, or zeros if not `inside`. Both are multiples of 16 bytes.
__device__ inline void CopyAsync(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
/// Ends a group of the thread's copies.
__device__ inline void EndCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most the last kGroups groups of the thread's copies are still running.
template <int kGroups>
__device__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

/// Four matrices of 8 by 8 bf16 in shared memory; lane l has the address of row l % 8 of matrix l / 8. Each lane gets
/// elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of every matrix, or with kTransposed of its column l / 4.
template <bool kTransposed>
__device__ void LoadMatrices(uint32_t (&x)[4], const __nv_bfloat16* row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(SharedAddress(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(SharedAddress(row))
                 : "memory");
  }
}

/// sums [16,8] += a [16,16] b [16,8]. With g = lane / 4 and t = 2 (lane % 4), and each register with a neighbour: sums
/// has rows g and g + 8 in columns t and t + 1; a has rows g, g + 8, g, g + 8, in columns t twice and t + 8 twice; b
/// has column g in rows t and t + 8.
__device__ inline void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Products in fp8 of which tensor cores keep about 14 bits of a sum (DeepSeek-AI 2024, section 3.3.2). On Hopper and
/// on Blackwell of data centers, mma of fp8 becomes products of fp16, and sums are in fp32.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
inline constexpr bool kFp8SumsAreShort = false;
#else
inline constexpr bool kFp8SumsAreShort = true;
#endif

/// sums [16,8] += a [16,32] b [32,8] with a in the fp8 format kA and b in e4m3: two neighbours along the contracted dim
/// are where MultiplyAdd has one bf16. The 32 products of an element are added up, then added in fp32. Compute
/// capabilities before 8.9 have no such product: a run in fp8 refuses them (train/choose_device.hpp).
template <Dtype kA>
__device__ void MultiplyAddFp8(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  float products[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) products[i] = kFp8SumsAreShort ? 0 : sums[i];
  if constexpr (kA == Dtype::kF8E4M3) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};\n"
        : "+f"(products[0]), "+f"(products[1]), "+f"(products[2]), "+f"(products[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};\n"
        : "+f"(products[0]), "+f"(products[1]), "+f"(products[2]), "+f"(products[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = kFp8SumsAreShort ? sums[i] + products[i] : products[i];
#else
  __trap();
#endif
}

}  // namespace espalier::cuda

#endif
