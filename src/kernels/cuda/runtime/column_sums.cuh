// Sums over the rows of a matrix, one of each column, in two launches: rows are cut into parts
// (device_memory/partial_sums.hpp) that blocks sum in fp32 beside each other, and the parts are added up in order, in
// fp64.
#pragma once

#include "espalier/device_memory/partial_sums.hpp"
#include "pack.cuh"

namespace espalier::cuda {

/// Up to two sums of one kernel, and their outputs f32[columns]; `add` to what they hold.
struct ColumnSums {
  float* outputs[2];
  bool add;
  float* workspace;
};

inline constexpr int kSumLanes = 32, kSumRows = 8;

/// `term(r, c, sums, lanes)` adds row r's to the sums of the columns from c on. Partials are [sum, part, column].
template <int kSums, int N, typename Term>
__global__ void SumParts(Term term, int64_t rows, int64_t columns, float* partials) {
  __shared__ float block[kSums][kSumRows][kSumLanes * N];
  const int64_t first = int64_t{blockIdx.x} * kSumLanes * N, c = first + threadIdx.x * N, parts = gridDim.y,
                part = blockIdx.y;
  Floats<N> sums[kSums] = {};
  if (c < columns) {
    for (int64_t r = rows * part / parts + threadIdx.y; r < rows * (part + 1) / parts; r += kSumRows)
      term(r, c, sums, Lanes<N>{});
  }
  for (int s = 0; s < kSums; ++s)
    for (int k = 0; k < N; ++k) block[s][threadIdx.y][threadIdx.x * N + k] = sums[s][k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * kSumLanes + threadIdx.x); i < kSums * kSumLanes * N;
       i += kSumLanes * kSumRows) {
    const int s = i / (kSumLanes * N), column = i % (kSumLanes * N);
    float sum = 0;
    for (int r = 0; r < kSumRows; ++r) sum += block[s][r][column];
    if (first + column < columns) partials[(s * parts + part) * columns + first + column] = sum;
  }
}

template <int kSums>
__global__ void AddParts(ColumnSums sums, int64_t parts, int64_t columns) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  for (int s = 0; s < kSums; ++s) {
    double sum = 0;
#pragma unroll 16  // loads in flight
    for (int64_t part = 0; part < parts; ++part) sum += sums.workspace[(s * parts + part) * columns + c];
    float* y = sums.outputs[s] + c;
    *y = sums.add ? *y + static_cast<float>(sum) : static_cast<float>(sum);
  }
}

template <int kSums, int N, typename Term>
void LaunchColumnSums(Term term, int64_t rows, int64_t columns, const ColumnSums& sums, cudaStream_t stream) {
  if (columns == 0) return;
  const int64_t parts = ColumnSumParts(rows);
  const dim3 blocks(static_cast<unsigned>((columns + kSumLanes * N - 1) / (kSumLanes * N)),
                    static_cast<unsigned>(parts));
  Launch(SumParts<kSums, N, Term>, blocks, dim3(kSumLanes, kSumRows), 0, stream, term, rows, columns, sums.workspace);
  Launch(AddParts<kSums>, dim3(static_cast<unsigned>((columns + 63) / 64)), dim3(64), 0, stream, sums, parts, columns);
}

}  // namespace espalier::cuda
