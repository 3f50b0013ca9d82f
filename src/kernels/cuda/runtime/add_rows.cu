// The gradient of a table needs neither a sort of the ids nor atomics: a block owns some rows of the table, reads all
// ids (8192 ids are 32 KB, in the second-level cache), lists the tokens of its rows in order, and adds them up. For
// 50000 rows and 8192 tokens that is about 33 MB of ids per 1024 columns, compared with 200 MB of the table.
//
// Tokenizers give frequent tokens the lowest ids. So the rows of a block are 2^shift apart, the number of blocks. If a
// block had neighbouring rows, a few blocks would do most of the sums of a text.
#include "add_rows.hpp"
#include "launch_context.hpp"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kTableRows = 64, kListed = 1024, kWarps = kThreads / 32;

/// Tokens whose ids belong to rows of a block: in the order found, and sorted by row.
struct TokenList {
  int token[kListed], row[kListed], by_row[kListed];
  int begin[kTableRows + 1];
  int warp[kWarps];
};

/// Appends the tokens of calling threads with `listed`, in the order of threads; returns the new count.
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

/// Sorts the list by row, stably. One thread per row.
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
  float* table;    ///< the block's first row
  int64_t stride;  ///< elements from one of the block's rows to the next
  int rows;
  int64_t column;

  /// Adds the listed tokens; `started`: to the table's contents.
  __device__ void Add(TokenList& list, int count, bool started) const {
    OrderByRow(list, count);
    for (int r = 0; r < rows && column < width; ++r)
      if (!started || list.begin[r] < list.begin[r + 1]) AddRow(list, r, started);
    __syncthreads();
  }
  __device__ void AddRow(const TokenList& list, int r, bool started) const {
    constexpr Lanes<N> lanes;
    const int64_t begin = list.begin[r], end = list.begin[r + 1];
    float* to = table + r * stride + column;
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

  /// sum + term(begin) + term(begin + 1) + ... Frequent tokens make long sums, so several terms are loaded at a time;
  /// past the end, the last term is loaded again and not added.
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
__global__ void AddRows(AddRowsArgs a, int shift) {
  __shared__ TokenList list;
  const int64_t first = blockIdx.x, stride = int64_t{1} << shift, tokens = a.tokens;
  const int here = static_cast<int>((a.rows - first + stride - 1) >> shift);
  const RowAdder<T, N> adder{a.dy.As<T>(),
                             a.batch,
                             tokens,
                             a.width,
                             a.table + first * a.width,
                             stride * a.width,
                             here,
                             (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N};
  // The block's row that the token belongs to; -1: none.
  const auto row_of = [&](int64_t token) -> int64_t {
    const int64_t row = token < tokens ? a.ids[token] - a.first_id : -1;
    return row >= 0 && row < a.rows && (row & (stride - 1)) == first ? row >> shift : -1;
  };
  bool started = a.accumulate;
  int count = 0;
  int64_t next = row_of(threadIdx.x);
  for (int64_t t = 0; t < tokens; t += kThreads) {
    const int64_t token = t + threadIdx.x, row = next;
    next = row_of(token + kThreads);  // loaded while the block counts
    count = Append(list, count, row >= 0, static_cast<int>(token), static_cast<int>(row));
    if (count + kThreads <= kListed) continue;
    adder.Add(list, count, started);
    started = true;
    count = 0;
  }
  if (count > 0 || !started) adder.Add(list, count, started);
}

/// The rows are shared by 2^result blocks: enough that no block has more than kTableRows rows and that a small table
/// still fills a GPU, but no more blocks than rows.
int ShiftOf(int64_t rows, int64_t blocks_of_columns) {
  constexpr int64_t kMinBlocks = 256;
  int shift = 0;
  const auto blocks = [&] { return int64_t{1} << shift; };
  while ((rows + blocks() - 1) / blocks() > kTableRows ||
         (blocks() * blocks_of_columns < kMinBlocks && 2 * blocks() <= rows))
    ++shift;
  return shift;
}

}  // namespace

void LaunchAddRows(const AddRowsArgs& a, cudaStream_t stream) {
  Require(a.tokens <= INT32_MAX, "more than 2^31 - 1 tokens");
  if (a.rows * a.width == 0) return;
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    ForLanes<4>(a.width % 4 == 0 && AreAligned(a.dy.data, a.table), [&](auto lanes) {
      const int64_t columns = int64_t{kThreads} * lanes, blocks_of_columns = (a.width + columns - 1) / columns;
      const int shift = ShiftOf(a.rows, blocks_of_columns);
      const dim3 blocks(1u << shift, static_cast<unsigned>(blocks_of_columns));
      Launch(AddRows<T, lanes.value>, blocks, dim3(kThreads), 0, stream, a, shift);
    });
  });
}

}  // namespace espalier::cuda
