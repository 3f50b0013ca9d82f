// Sums over the rows of a matrix, one per column, in two launches: blocks in parallel sum parts of the rows
// (device_memory/partial_sums.hpp) in fp32, then the parts are added in order, in fp64. A pass over whole rows that has
// another purpose can also compute the sums, in the same order.
#pragma once

#include "espalier/device_memory/partial_sums.hpp"
#include "pack.cuh"

namespace espalier::cuda {

/// Up to two sums of one kernel, and their outputs f32[columns]; `add`: to the old values.
struct ColumnSums {
  float* outputs[2];
  bool add;
  float* workspace;
};

inline constexpr int kSumLanes = 32, kSumRows = kRowsBeside;

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

/// The same sums, bit by bit, in blocks that pass over whole rows for another purpose, too: all threads of a block call
/// `row(r)` before the term. A part has kSumRows rows side by side, each with its own block. Its sums are in shared
/// memory f32[sum, lane, pack], so that the threads of a warp have neighbouring words; a thread reads only the words
/// that it has written.
template <int kSums, int N, typename Row, typename Term>
__global__ void SumPartsInPass(Row row, Term term, int64_t rows, int64_t columns, float* partials) {
  SHARED_ARRAY(float, sums);
  const int64_t parts = gridDim.x / kSumRows, part = blockIdx.x / kSumRows, packs = columns / N;
  const auto sum = [&](int s, int k, int64_t c) -> float& { return sums[(s * N + k) * packs + c / N]; };
  ForColumns<N>(columns, [&](int64_t c, auto) {
    for (int s = 0; s < kSums; ++s)
      for (int k = 0; k < N; ++k) sum(s, k, c) = 0;
  });
  for (int64_t r = rows * part / parts + blockIdx.x % kSumRows; r < rows * (part + 1) / parts; r += kSumRows) {
    row(r);
    ForColumns<N>(columns, [&](int64_t c, auto lanes) {
      Floats<N> here[kSums];
      for (int s = 0; s < kSums; ++s) here[s] = Each(lanes, [&](int k) { return sum(s, k, c); });
      term(r, c, here, lanes);
      for (int s = 0; s < kSums; ++s)
        for (int k = 0; k < N; ++k) sum(s, k, c) = here[s][k];
    });
  }
  ForColumns<N>(columns, [&](int64_t c, auto lanes) {
    for (int s = 0; s < kSums; ++s)
      Store(partials + (int64_t{s} * gridDim.x + blockIdx.x) * columns + c,
            Each(lanes, [&](int k) { return sum(s, k, c); }));
  });
}

/// Adds up the neighbouring rows of each part in fp32, as SumParts does, then the parts.
template <int kSums>
__global__ void AddPartsOfPass(ColumnSums sums, int64_t parts, int64_t columns) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  for (int s = 0; s < kSums; ++s) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const float* beside = sums.workspace + (s * parts + part) * kSumRows * columns + c;
      float of_part = 0;
#pragma unroll
      for (int64_t r = 0; r < kSumRows; ++r) of_part += beside[r * columns];
      sum += of_part;
    }
    float* y = sums.outputs[s] + c;
    *y = sums.add ? *y + static_cast<float>(sum) : static_cast<float>(sum);
  }
}

/// True if a block's sums fit into its shared memory.
template <int kSums>
bool MaySumInPass(int64_t columns) {
  return columns * kSums * sizeof(float) <= MostSharedBytes();
}

/// `threads`: number of threads of a block that passes over a row; they take the columns in turn (RowThreads).
template <int kSums, int N, typename Row, typename Term>
void LaunchColumnSumsInPass(Row row, Term term, int64_t rows, int64_t columns, const ColumnSums& sums, dim3 threads,
                            cudaStream_t stream) {
  if (columns == 0) return;
  const int64_t parts = ColumnSumParts(rows);
  Launch(SumPartsInPass<kSums, N, Row, Term>, dim3(static_cast<unsigned>(parts * kSumRows)), threads,
         static_cast<size_t>(columns) * kSums * sizeof(float), stream, row, term, rows, columns, sums.workspace);
  Launch(AddPartsOfPass<kSums>, dim3(static_cast<unsigned>((columns + 63) / 64)), dim3(64), 0, stream, sums, parts,
         columns);
}

}  // namespace espalier::cuda
