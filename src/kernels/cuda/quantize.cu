// Values in fp8 and their scales. If each row has a scale, one launch does all. Otherwise three launches: the first
// finds the largest magnitudes of parts (device_memory/partial_sums.hpp), the second computes scales from them, and the
// third rounds, through shared memory if the result is transposed. The order of a maximum does not matter. Blocks of
// their own (weights of experts) are one more dim of these grids. Scales of 32 elements take one launch either way, and
// another one where tiles of scales are padded.
#if !defined(ESPALIER_EMULATE)
#include <cuda_fp8.h>
#endif

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels/cuda/matmul.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"
#include "kernels/fp8.hpp"

namespace espalier::cuda {
namespace {

constexpr int kLanes = kPack<__nv_bfloat16>;
/// Rows and columns of a tile that is transposed; threads of its block in x and y; bytes that a thread writes at a
/// time.
constexpr int kTile = 64, kTileThreads = 32, kTileRows = 8, kTileBytes = 4;

struct Most {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

/// MagnitudeBits of a widened bf16.
__device__ uint32_t Magnitude(float x) { return (__float_as_uint(x) & 0x7fffffffu) >> 16; }

template <int N>
__device__ uint32_t LargestOf(const Floats<N>& x, uint32_t largest) {
#pragma unroll
  for (int k = 0; k < N; ++k) largest = Most{}(largest, Magnitude(x[k]));
  return largest;
}

/// The same code as ToFp8, except for infinities, which a scale of NaN precludes.
template <Dtype kTo>
__device__ uint8_t Fp8Of(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kTo == Dtype::kF8E4M3 ? __NV_E4M3 : __NV_E5M2);
#else
  return ToFp8<kTo>(x);
#endif
}

template <Dtype kTo, int N>
__device__ void StoreFp8(uint8_t* y, const Floats<N>& x, float factor) {
  if constexpr (N == 1) {
    *y = Fp8Of<kTo>(x[0] * factor);
  } else {
    CheckAligned(y, N);
    Pack<uint8_t, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.values[k] = Fp8Of<kTo>(x[k] * factor);
    __stwb(reinterpret_cast<Word<N>*>(y), std::bit_cast<Word<N>>(pack));
  }
}

template <Dtype kTo, int N>
__global__ void QuantizeRows(QuantizeArgs a) {
  ForRows(a.blocks * a.rows, [&](int64_t r) {
    if (a.expert_of_row != nullptr && a.expert_of_row[r] == kNoExpert) return;
    const __nv_bfloat16* x = a.x.As<__nv_bfloat16>() + r * a.width;
    uint8_t* y = a.y.As<uint8_t>() + r * a.width;
    uint32_t largest = 0;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) { largest = LargestOf(Load(x + c, lanes), largest); });
    const float scale = ScaleFor(kTo, BlockReduce(largest, 0u, Most{})), factor = InverseOf(scale);
    if (threadIdx.x == 0) a.scales.As<float>()[r] = scale;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) { StoreFp8<kTo>(y + c, Load(x + c, lanes), factor); });
  });
}

/// The largest magnitude in part blockIdx.x of the n elements of block blockIdx.y.
template <int N>
__global__ void LargestParts(const __nv_bfloat16* x, int64_t n, uint32_t* parts) {
  x += blockIdx.y * n;
  uint32_t largest = 0;
  ForElements<N>(n, [&](int64_t i, auto lanes) { largest = LargestOf(Load(x + i, lanes), largest); });
  largest = BlockReduce(largest, 0u, Most{});
  if (threadIdx.x == 0) parts[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = largest;
}

/// Largest magnitude of column blockIdx.x * kTileThreads + threadIdx.x, over the rows of part blockIdx.y of block
/// blockIdx.z.
__global__ void LargestOfColumns(const __nv_bfloat16* x, int64_t rows, int64_t width, uint32_t* parts) {
  x += blockIdx.z * rows * width;
  parts += int64_t{blockIdx.z} * gridDim.y * width;
  __shared__ uint32_t block[kTileRows][kTileThreads];
  const int64_t c = int64_t{blockIdx.x} * kTileThreads + threadIdx.x;
  uint32_t largest = 0;
  if (c < width) {
    const int64_t part = blockIdx.y, count = gridDim.y;
    for (int64_t r = rows * part / count + threadIdx.y; r < rows * (part + 1) / count; r += kTileRows)
      largest = LargestOf(Load(x + r * width + c, Lanes<1>{}), largest);
  }
  block[threadIdx.y][threadIdx.x] = largest;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
  for (int r = 1; r < kTileRows; ++r) largest = Most{}(largest, block[r][threadIdx.x]);
  parts[int64_t{blockIdx.y} * width + c] = largest;
}

/// The scales of block blockIdx.y, from `count` parts.
__global__ void FinishScales(const uint32_t* parts, int64_t count, int64_t scales, Dtype to, float* result) {
  parts += blockIdx.y * count * scales;
  result += blockIdx.y * scales;
  const int64_t s = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (s >= scales) return;
  uint32_t largest = 0;
#pragma unroll 16  // loads in flight
  for (int64_t part = 0; part < count; ++part) largest = Most{}(largest, parts[part * scales + s]);
  result[s] = ScaleFor(to, largest);
}

template <Dtype kTo, int N>
__global__ void RoundKernel(QuantizeArgs all) {
  const QuantizeArgs a = all.Block(blockIdx.y);
  const float factor = InverseOf(a.scales.As<float>()[0]);
  ForElements<N>(a.rows * a.width, [&](int64_t i, auto lanes) {
    StoreFp8<kTo>(a.y.As<uint8_t>() + i, Load(a.x.As<__nv_bfloat16>() + i, lanes), factor);
  });
}

/// Writes the codes of one tile of x as rows of y; code(r, c) gives the one of row r and column c.
template <int kBytes, typename F>
__device__ void StoreColumns(const QuantizeArgs& a, int64_t row, int64_t column, F code) {
  const int thread = static_cast<int>(threadIdx.y * kTileThreads + threadIdx.x);
  for (int i = thread; i < kTile * kTile / kBytes; i += kTileThreads * kTileRows) {
    const int c = i / (kTile / kBytes), r = i % (kTile / kBytes) * kBytes;
    if (column + c >= a.width || row + r >= a.rows) continue;
    uint8_t* y = a.y.As<uint8_t>() + (column + c) * a.rows + row + r;
    if constexpr (kBytes == 1) {
      *y = code(r, c);
    } else {
      CheckAligned(y, kBytes);
      Pack<uint8_t, kBytes> pack;
#pragma unroll
      for (int k = 0; k < kBytes; ++k) pack.values[k] = code(r + k, c);
      __stwb(reinterpret_cast<Word<kBytes>*>(y), std::bit_cast<Word<kBytes>>(pack));
    }
  }
}

/// One tile of x per block. Rows of a tile are padded, so that the bytes of a column are in different banks.
template <Dtype kTo, int kBytes>
__global__ void RoundTransposed(QuantizeArgs all) {
  const QuantizeArgs a = all.Block(blockIdx.z);
  __shared__ uint8_t tile[kTile][kTile + kTileBytes];
  const int64_t row = int64_t{blockIdx.y} * kTile, column = int64_t{blockIdx.x} * kTile;
  const bool per_column = a.scale_of == ScaleOf::kRow;
  for (int c = static_cast<int>(threadIdx.x); c < kTile; c += kTileThreads) {
    if (column + c >= a.width) break;
    const float factor = InverseOf(a.scales.As<float>()[per_column ? column + c : 0]);
    for (int r = static_cast<int>(threadIdx.y); r < kTile && row + r < a.rows; r += kTileRows)
      tile[r][c] = Fp8Of<kTo>(Widen(a.x.As<__nv_bfloat16>()[(row + r) * a.width + column + c]) * factor);
  }
  __syncthreads();
  StoreColumns<kBytes>(a, row, column, [&](int r, int c) { return tile[r][c]; });
}

/// Packs of N elements; kScaleBlock / N neighbouring threads share a scale.
template <Dtype kTo, int N>
__global__ void RoundRowsInBlocks(QuantizeArgs a) {
  constexpr int kSharing = kScaleBlock / N;
  const int64_t packs = a.rows * a.width / N;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < packs; first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pack = first + threadIdx.x, i = pack * N;
    Floats<N> x{};
    if (pack < packs) x = Load(a.x.As<__nv_bfloat16>() + i, Lanes<N>{});
    uint32_t largest = LargestOf(x, 0u);
#pragma unroll
    for (int lanes = kSharing / 2; lanes > 0; lanes /= 2)
      largest = Most{}(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    if (pack >= packs) continue;
    const float scale = ScaleFor(kTo, largest);
    StoreFp8<kTo>(a.y.As<uint8_t>() + i, x, InverseOf(scale));
    if (pack % kSharing == 0)
      a.scales.As<uint8_t>()[BlockScaleAt(i / a.width, i % a.width / kScaleBlock, a.width)] = ToE8M0(scale);
  }
}

/// One tile of x per block, as RoundTransposed.
template <Dtype kTo, int kBytes>
__global__ void RoundColumnsInBlocks(QuantizeArgs a) {
  __shared__ float tile[kTile][kTile + 1], factors[kTile / kScaleBlock][kTile];
  const int64_t row = int64_t{blockIdx.y} * kTile, column = int64_t{blockIdx.x} * kTile;
  for (int c = static_cast<int>(threadIdx.x); c < kTile && column + c < a.width; c += kTileThreads)
    for (int r = static_cast<int>(threadIdx.y); r < kTile && row + r < a.rows; r += kTileRows)
      tile[r][c] = Widen(a.x.As<__nv_bfloat16>()[(row + r) * a.width + column + c]);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * kTileThreads + threadIdx.x);
  if (const int c = thread % kTile, block = thread / kTile, first = block * static_cast<int>(kScaleBlock);
      first < kTile && column + c < a.width && row + first < a.rows) {
    uint32_t largest = 0;
    for (int r = first; r < first + kScaleBlock; ++r) largest = Most{}(largest, Magnitude(tile[r][c]));
    const float scale = ScaleFor(kTo, largest);
    factors[block][c] = InverseOf(scale);
    a.scales.As<uint8_t>()[BlockScaleAt(column + c, row / kScaleBlock + block, a.rows)] = ToE8M0(scale);
  }
  __syncthreads();
  StoreColumns<kBytes>(a, row, column,
                       [&](int r, int c) { return Fp8Of<kTo>(tile[r][c] * factors[r / kScaleBlock][c]); });
}

/// Calls f with an integral constant of the format.
template <typename F>
void ForFormat(Dtype to, F f) {
  if (to == Dtype::kF8E4M3)
    f(std::integral_constant<Dtype, Dtype::kF8E4M3>{});
  else
    f(std::integral_constant<Dtype, Dtype::kF8E5M2>{});
}

unsigned Blocks(const QuantizeArgs& a) {
  Require(a.blocks <= 65535, "quantize: more than 65,535 blocks");
  return static_cast<unsigned>(a.blocks);
}

/// Packs do not cross the ends of `length` elements.
bool IsPacked(const QuantizeArgs& a, int64_t length) { return AreAligned(a.x.data, a.y.data) && length % kLanes == 0; }

void LaunchRows(const QuantizeArgs& a, cudaStream_t stream) {
  ForFormat(a.y.dtype, [&](auto to) {
    ForLanes<kLanes>(IsPacked(a, a.width), [&](auto lanes) {
      Launch(QuantizeRows<to(), lanes()>, RowBlocks(a.blocks * a.rows), RowThreads(a.width, lanes()), 0, stream, a);
    });
  });
}

void FindScale(const QuantizeArgs& a, const LaunchContext& context) {
  const int64_t n = a.rows * a.width, parts = MaximaParts(n);
  auto* workspace = context.Workspace<uint32_t>(a.blocks * MaximaBytes(n));
  ForLanes<kLanes>(AreAligned(a.x.data) && (a.blocks == 1 || n % kLanes == 0), [&](auto lanes) {
    Launch(LargestParts<lanes()>, dim3(static_cast<unsigned>(parts), Blocks(a)), dim3(kThreads), 0, context.stream,
           a.x.As<__nv_bfloat16>(), n, workspace);
  });
  Launch(FinishScales, dim3(1, Blocks(a)), dim3(32), 0, context.stream, workspace, parts, int64_t{1}, a.y.dtype,
         a.scales.As<float>());
}

void FindScalesOfColumns(const QuantizeArgs& a, const LaunchContext& context) {
  const int64_t parts = ColumnSumParts(a.rows);
  auto* workspace = context.Workspace<uint32_t>(a.blocks * ColumnSumBytes(1, a.rows, a.width));
  const dim3 blocks(static_cast<unsigned>((a.width + kTileThreads - 1) / kTileThreads), static_cast<unsigned>(parts),
                    Blocks(a));
  Launch(LargestOfColumns, blocks, dim3(kTileThreads, kTileRows), 0, context.stream, a.x.As<__nv_bfloat16>(), a.rows,
         a.width, workspace);
  Launch(FinishScales, dim3(static_cast<unsigned>((a.width + 63) / 64), Blocks(a)), dim3(64), 0, context.stream,
         workspace, parts, a.width, a.y.dtype, a.scales.As<float>());
}

void LaunchTransposed(const QuantizeArgs& a, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((a.width + kTile - 1) / kTile),
                    static_cast<unsigned>((a.rows + kTile - 1) / kTile), Blocks(a));
  Require((a.rows + kTile - 1) / kTile <= 65535, "quantize: more than 4 million rows");
  ForFormat(a.y.dtype, [&](auto to) {
    ForLanes<kTileBytes>(AreAligned(a.y.data) && a.rows % kTileBytes == 0, [&](auto bytes) {
      Launch(a.scale_of == ScaleOf::kBlock ? RoundColumnsInBlocks<to(), bytes()> : RoundTransposed<to(), bytes()>,
             blocks, dim3(kTileThreads, kTileRows), 0, stream, a);
    });
  });
}

void LaunchInBlocks(const QuantizeArgs& a, cudaStream_t stream) {
  const int64_t n = a.rows * a.width;
  if (a.scale_bytes > n / kScaleBlock) LaunchClear(a.scales.data, a.scale_bytes, stream);
  if (n == 0) return;
  if (a.transposed) return LaunchTransposed(a, stream);
  ForFormat(a.y.dtype, [&](auto to) {
    ForLanes<kLanes>(AreAligned(a.x.data, a.y.data), [&](auto lanes) {
      Launch(RoundRowsInBlocks<to(), lanes()>, ElementBlocks(n, lanes()), dim3(kThreads), 0, stream, a);
    });
  });
}

}  // namespace

void Quantize(const QuantizeArgs& a, const LaunchContext& context) {
  if (a.scale_of == ScaleOf::kBlock) return LaunchInBlocks(a, context.stream);
  // All scales of an empty shard are 1.
  if (a.blocks * a.rows * a.width == 0) {
    const int64_t scales = a.blocks * a.ScalesOfBlock();
    if (scales > 0)
      Launch(FinishScales, dim3(static_cast<unsigned>((scales + 63) / 64)), dim3(64), 0, context.stream,
             static_cast<const uint32_t*>(nullptr), int64_t{0}, scales, a.y.dtype, a.scales.As<float>());
    return;
  }
  if (a.scale_of == ScaleOf::kRow && !a.transposed) return LaunchRows(a, context.stream);
  if (a.scale_of == ScaleOf::kRow)
    FindScalesOfColumns(a, context);
  else
    FindScale(a, context);
  if (a.transposed) return LaunchTransposed(a, context.stream);
  const int64_t n = a.rows * a.width;
  ForFormat(a.y.dtype, [&](auto to) {
    ForLanes<kLanes>(AreAligned(a.x.data, a.y.data) && (a.blocks == 1 || n % kLanes == 0), [&](auto lanes) {
      Launch(RoundKernel<to(), lanes()>, dim3(ElementBlocks(n, lanes()).x, Blocks(a)), dim3(kThreads), 0,
             context.stream, a);
    });
  });
}

}  // namespace espalier::cuda
