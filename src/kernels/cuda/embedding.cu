// The adjoint needs neither a sort of the ids nor atomics: a block owns some rows of the table, reads all ids (8192 of
// them are 32 KB, of the second-level cache), lists the tokens that are its rows' in order, and adds these up. For
// 50000 rows and 8192 tokens that is some 25 MB of ids for every 1024 columns, beside 200 MB of the table's.
#include "embedding.hpp"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void Embedding(const int32_t* ids, int64_t tokens, const T* table, int64_t first, int64_t rows,
                          int64_t width, T* y) {
  ForRows(tokens, [&](int64_t t) {
    const int64_t row = ids[t] - first;
    const bool here = row >= 0 && row < rows;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      Store(y + t * width + c, here ? Load(table + row * width + c, lanes) : Floats<N>{});
    });
  });
}

constexpr int kTableRows = 64, kListed = 1024, kWarps = kThreads / 32;

/// Tokens whose ids are a block's rows, as found and by row.
struct TokenList {
  int token[kListed], row[kListed], by_row[kListed];
  int begin[kTableRows + 1];
  int warp[kWarps];
};

/// Appends the calling threads' tokens that are `listed`, in the order of threads; returns the new count.
__device__ int Append(TokenList& list, int count, bool listed, int token, int row) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const uint32_t votes = __ballot_sync(0xffffffffu, listed);
  if (lane == 0) list.warp[warp] = __popc(votes);
  __syncthreads();
  int at = count + __popc(votes & ((1u << lane) - 1));
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) at += list.warp[w];
    count += list.warp[w];
  }
  if (listed) {
    list.token[at] = token;
    list.row[at] = row;
  }
  __syncthreads();
  return count;
}

/// Orders the list by row, tokens of a row as they are. A thread a row.
__device__ void OrderByRow(TokenList& list, int count) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < kTableRows) {
    int before = 0;
    for (int i = 0; i < count; ++i) before += list.row[i] < row;
    list.begin[row] = before;
    for (int i = 0; i < count; ++i)
      if (list.row[i] == row) list.by_row[before++] = list.token[i];
    if (row == kTableRows - 1) list.begin[kTableRows] = before;
  }
  __syncthreads();
}

template <typename T, int N>
struct RowAdder {
  const T* dy;
  int64_t batch, tokens, width;
  float* table;  ///< the block's first row
  int rows;
  int64_t column;

  /// Adds the listed tokens; `started`: to what the table holds.
  __device__ void Add(TokenList& list, int count, bool started) const {
    OrderByRow(list, count);
    for (int r = 0; r < rows && column < width; ++r)
      if (!started || list.begin[r] < list.begin[r + 1]) AddRow(list, r, started);
    __syncthreads();
  }
  __device__ void AddRow(const TokenList& list, int r, bool started) const {
    constexpr Lanes<N> lanes;
    const int64_t begin = list.begin[r], end = list.begin[r + 1];
    float* to = table + r * width + column;
    Floats<N> sum{};
    if (started) sum = Load(to, lanes);
    if (batch == 1) {
      sum = AddInOrder(sum, begin, end, [&](int64_t i) { return Load(RowOf(0, list.by_row[i]), lanes); });
    } else {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = list.by_row[i];
        const Floats<N> term =
            AddInOrder(Floats<N>{}, 0, batch, [&](int64_t b) { return Load(RowOf(b, token), lanes); });
        sum = Each(lanes, [&](int k) { return sum[k] + term[k]; });
      }
    }
    Store(to, sum);
  }
  __device__ const T* RowOf(int64_t b, int64_t token) const { return dy + (b * tokens + token) * width + column; }

  /// sum + term(begin) + term(begin + 1) + ... Frequent tokens make long sums, so several terms are loaded at a time:
  /// what there is no term for is the last one again, and not added.
  template <typename Term>
  __device__ static Floats<N> AddInOrder(Floats<N> sum, int64_t begin, int64_t end, Term term) {
    constexpr int kAtOnce = 8;
    for (int64_t i = begin; i < end; i += kAtOnce) {
      Floats<N> terms[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) terms[a] = term(i + a < end ? i + a : end - 1);
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a)
        if (i + a < end) sum = Each(Lanes<N>{}, [&](int k) { return sum[k] + terms[a][k]; });
    }
    return sum;
  }
};

template <typename T, int N>
__global__ void AddRows(const int32_t* ids, int64_t tokens, const T* dy, int64_t batch, float* table, int64_t first,
                        int64_t rows, int block_rows, int64_t width, bool add) {
  __shared__ TokenList list;
  const int64_t row0 = int64_t{blockIdx.x} * block_rows;
  const int here = static_cast<int>(rows - row0 < block_rows ? rows - row0 : block_rows);
  const RowAdder<T, N> adder{
      dy, batch, tokens, width, table + row0 * width, here, (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N};
  const auto row_of = [&](int64_t token) { return token < tokens ? ids[token] - first - row0 : -1; };
  int count = 0;
  int64_t next = row_of(threadIdx.x);
  for (int64_t t = 0; t < tokens; t += kThreads) {
    const int64_t token = t + threadIdx.x, row = next;
    next = row_of(token + kThreads);  // under way while the block counts
    count = Append(list, count, row >= 0 && row < here, static_cast<int>(token), static_cast<int>(row));
    if (count + kThreads <= kListed) continue;
    adder.Add(list, count, add);
    add = true;
    count = 0;
  }
  if (count > 0 || !add) adder.Add(list, count, add);
}

/// Rows of the table for a block: fewer of a small one, so that there are blocks for a GPU.
int RowsOfBlock(int64_t rows, int64_t blocks_of_columns) {
  constexpr int64_t kLeastBlocks = 256;
  int each = kTableRows;
  while (each > 1 && (rows + each - 1) / each * blocks_of_columns < kLeastBlocks) each /= 2;
  return each;
}

}  // namespace

void LaunchEmbedding(Dtype dtype, const int32_t* ids, int64_t tokens, const void* table, int64_t first, int64_t rows,
                     int64_t width, void* y, cudaStream_t stream) {
  if (tokens * width == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(table, y), [&](auto lanes) {
      Launch(Embedding<T, lanes.value>, RowBlocks(tokens), RowThreads(width, lanes), 0, stream, ids, tokens,
             static_cast<const T*>(table), first, rows, width, static_cast<T*>(y));
    });
  });
}

void LaunchAddRows(Dtype dtype, const int32_t* ids, int64_t tokens, const void* dy, int64_t batch, float* table,
                   int64_t first, int64_t rows, int64_t width, bool add, cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<4>(width % 4 == 0 && LieAtPacks(dy, table), [&](auto lanes) {
      const int64_t columns = int64_t{kThreads} * lanes, blocks_of_columns = (width + columns - 1) / columns;
      const int block_rows = RowsOfBlock(rows, blocks_of_columns);
      const dim3 blocks(static_cast<unsigned>((rows + block_rows - 1) / block_rows),
                        static_cast<unsigned>(blocks_of_columns));
      Launch(AddRows<T, lanes.value>, blocks, dim3(kThreads), 0, stream, ids, tokens, static_cast<const T*>(dy), batch,
             table, first, rows, block_rows, width, add);
    });
  });
}

}  // namespace espalier::cuda
