// Elements in packs of 16 bytes, widened to fp32; and loops of threads over them. A kernel is a template of the lanes
// of its packs: as many as fit if pointers and rows begin at multiples of 16 bytes, otherwise 1.
#pragma once

#include <array>
#include <bit>
#include <type_traits>

#include "espalier/kernels/cuda/launch.cuh"
#include "espalier/util/types.hpp"

namespace espalier::cuda {

template <int N>
using Lanes = std::integral_constant<int, N>;

/// Elements of T in 16 bytes.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};

/// The type in which a pack is stored. In complex control flow, the compiler splits the store of a struct into one
/// store per element, but not the intrinsic's store.
template <size_t kBytes>
using Word =
    std::conditional_t<kBytes == 16, uint4,
                       std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;

template <int N>
struct Floats {
  float values[N];
  __device__ float operator[](int k) const { return values[k]; }
  __device__ float& operator[](int k) { return values[k]; }
};

__device__ inline float Widen(float x) { return x; }
__device__ inline float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ T Narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

/// `x` rounded to the element type.
template <typename T>
__device__ float Rounded(float x) {
  return Widen(Narrow<T>(x));
}

/// f(k) for each lane.
template <int N, typename F>
__device__ Floats<N> Each(Lanes<N>, F f) {
  Floats<N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y[k] = f(k);
  return y;
}

template <typename T, int N>
__device__ Floats<N> Load(const T* p, Lanes<N> lanes) {
  CheckAligned(p, alignof(Pack<T, N>));
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(p);
  return Each(lanes, [&](int k) { return Widen(pack.values[k]); });
}

template <typename T, int N>
__device__ void Store(T* p, const Floats<N>& x) {
  CheckAligned(p, alignof(Pack<T, N>));
  if constexpr (N == 1) {
    *p = Narrow<T>(x[0]);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.values[k] = Narrow<T>(x[k]);
    constexpr size_t kWord = alignof(Pack<T, N>), kWords = sizeof pack / kWord;
    const auto words = std::bit_cast<std::array<Word<kWord>, kWords>>(pack);
#pragma unroll
    for (size_t w = 0; w < kWords; ++w) __stwb(reinterpret_cast<Word<kWord>*>(p) + w, words[w]);
  }
}

/// Calls f(i, lanes) for all n elements, each once in the grid.
template <int N, typename F>
__device__ void ForElements(int64_t n, F f) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x,
                packs = n / N;
  for (int64_t p = thread; p < packs; p += threads) f(p * N, Lanes<N>{});
  if constexpr (N > 1) {
    for (int64_t i = packs * N + thread; i < n; i += threads) f(i, Lanes<1>{});
  }
}

/// Calls f(r) for all rows, each once in the grid, with all threads of a block.
template <typename F>
__device__ void ForRows(int64_t rows, F f) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) f(r);
}

/// Calls f(c, lanes) for all columns, each once in the block; `width` is a multiple of N.
template <int N, typename F>
__device__ void ForColumns(int64_t width, F f) {
  for (int64_t c = int64_t{threadIdx.x} * N; c < width; c += int64_t{blockDim.x} * N) f(c, Lanes<N>{});
}

// The functions below run on the host.

/// Calls f with a value of the element type: float or __nv_bfloat16.
template <typename F>
void ForElementType(Dtype dtype, F f) {
  if (dtype == Dtype::kF32) {
    f(float{});
  } else {
    f(__nv_bfloat16{});
  }
}

/// True if all pointers are multiples of 16 bytes.
template <typename... Pointers>
bool AreAligned(const Pointers*... p) {
  return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/// Calls f(Lanes<N>) if `packed`, else f(Lanes<1>).
template <int N, typename F>
void ForLanes(bool packed, F f) {
  if (packed) {
    f(Lanes<N>{});
  } else {
    f(Lanes<1>{});
  }
}

/// Calls f(T{}, lanes) with the element type, and with packs if rows and pointers allow them.
template <typename F>
void ForPacks(Dtype dtype, int64_t width, bool aligned, F f) {
  ForElementType(dtype, [&]<typename T>(T type) {
    ForLanes<kPack<T>>(aligned && width % kPack<T> == 0, [&](auto lanes) { f(type, lanes); });
  });
}

inline constexpr int kThreads = 256;

inline unsigned Clamped(int64_t n, int64_t max) { return static_cast<unsigned>(n < 1 ? 1 : n < max ? n : max); }

/// Matrices of a launch that has a row of blocks for each.
inline constexpr int64_t kMaxMatrices = 65535;

/// Blocks for n elements in packs, at most enough to fill a GPU several times over.
inline dim3 ElementBlocks(int64_t n, int lanes) {
  return dim3(Clamped((n + kThreads * lanes - 1) / (kThreads * lanes), 8192));
}

inline dim3 RowBlocks(int64_t rows) { return dim3(Clamped(rows, 65536)); }

/// Threads for one row: whole warps, at most `max_threads`.
inline dim3 RowThreads(int64_t width, int lanes, int64_t max_threads = kThreads) {
  return dim3(Clamped((width + 32 * lanes - 1) / (32 * lanes), max_threads / 32) * 32);
}

}  // namespace espalier::cuda
