// Packed copies of heads, shared by attention and its gradient. A head's rows are cut into blocks of 64, padded with
// zeros; the features of a head are padded to `width`. Scores are computed transposed, keys by queries, so that the
// lanes of a vector are queries: maxima and sums over keys need no operations across lanes.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cpu/gemm/block_gemm.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/random_words.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Rows of a block of queries or keys.
inline constexpr int64_t kBlock = 64;

inline constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// At most 64 rows of a shard whose positions are adjacent: `count` rows from `row` on, the first at `position`.
struct Block {
  int64_t row, count, position;
};

/// A shard cut into blocks; a new one starts where positions jump.
inline std::vector<Block> BlocksOf(const SequenceShard& shard, int64_t rows) {
  std::vector<Block> blocks;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = shard.PositionOf(row);
    const bool goes_on =
        !blocks.empty() && blocks.back().count < kBlock && position == blocks.back().position + blocks.back().count;
    if (goes_on)
      ++blocks.back().count;
    else
      blocks.push_back({row, 1, position});
  }
  return blocks;
}

/// Queries and keys of a call.
struct Blocks {
  std::vector<Block> queries, keys;
};

inline Blocks BlocksOf(const AttentionShape& a) {
  return {BlocksOf(a.query_shard, a.queries), BlocksOf(a.key_shard, a.keys)};
}

/// Place of one head of one sequence in [batch,rows,heads e], in elements; queries and keys may be columns of wider
/// rows, results are dense.
struct HeadPlace {
  int64_t first, stride, rows;
};
inline HeadPlace QueryHead(const AttentionShape& s, int64_t batch, int64_t head) {
  return {batch * s.queries * s.QueryRow() + head * s.head_dim, s.QueryRow(), s.queries};
}
inline HeadPlace KeyHead(const AttentionShape& s, int64_t batch, int64_t kv_head) {
  return {batch * s.keys * s.KeyRow() + kv_head * s.head_dim, s.KeyRow(), s.keys};
}
inline HeadPlace ValueHead(const AttentionShape& s, int64_t batch, int64_t kv_head) {
  return {batch * s.keys * s.ValueRow() + kv_head * s.ValueDim(), s.ValueRow(), s.keys};
}
inline HeadPlace ResultHead(const AttentionShape& s, int64_t batch, int64_t head) {
  return {(batch * s.queries * s.heads + head) * s.ValueDim(), s.ResultRow(), s.queries};
}

/// Rows of one head.
template <typename T>
struct HeadRows {
  const T* data;
  int64_t stride;  ///< elements between rows
  int64_t count;
  int64_t e;
};

template <typename T>
HeadRows<T> RowsOfHead(const Array& x, const HeadPlace& place, int64_t e) {
  return {x.As<T>() + place.first, place.stride, place.rows, e};
}

/// log2(e): probabilities are computed as powers of two.
inline constexpr float kLog2E = 1.44269504088896341f;

/// The factor of the dot product of a query and a key.
inline float ScaleOf(const AttentionShape& s) { return s.score_factor / std::sqrt(static_cast<float>(s.head_dim)); }

/// The dot product of n elements.
template <typename X, typename Y>
float Dot(const X* x, const Y* y, int64_t n) {
  Sums sum;
  ForSums(0, n,
          [&](int64_t part, int64_t c, auto lanes) { sum.part[part] += Load(x + c, lanes) * Load(y + c, lanes); });
  return Sum(sum);
}

/// sums += factor x, over n elements.
template <typename T>
void AddScaled(float* sums, const T* x, float factor, int64_t n) {
  ForLanes(0, n,
           [&](int64_t c, auto lanes) { Store(sums + c, Load(sums + c, lanes) + Load(x + c, lanes) * factor, lanes); });
}

/// Replaces scores by e^(score - largest), and returns their sum.
inline float Exponentiate(float* scores, int64_t keys, float largest) {
  Floats total{};
  ForLanes(0, keys, [&](int64_t j, auto lanes) {
    const Floats p = Exp(Load(scores + j, lanes) - largest);
    Store(scores + j, p, lanes);
    total += KeepFirst(p, keys - j);
  });
  return Sum(total);
}

/// Extents of packed blocks: words of kPack elements along the contracted dim.
template <int kPack>
struct BlockLayout {
  int64_t width;  ///< features of a head, padded to whole vectors of words

  explicit BlockLayout(int64_t features) : width(RoundUp(features, kLanes * kPack)) {}
  int64_t Words() const { return width / kPack; }
  int64_t BlockWords() const { return kBlock * Words(); }
};

/// Loads a vector of words, converted to the layout of kPack.
template <int kPack, typename T>
Floats LoadWords(const T* x) {
  if constexpr (kPack == 1) return Load(x);
  return Load(reinterpret_cast<const float*>(x));
}

/// A block of a head's rows, contracted along e: row r, word w at to[r * Words() + w].
template <int kPack, typename T>
void PackRows(const HeadRows<T>& x, const Block& block, BlockLayout<kPack> layout, float* to) {
  constexpr int64_t kElements = kLanes * kPack;
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(T);  // rows of a head are apart: no processor prefetches them
  for (int64_t r = 0; r < kBlock; ++r) {
    const int64_t row = block.row + r, valid = r < block.count ? x.e : 0;
    const T* from = x.data + row * x.stride;
    if (row + kAhead < x.count) {
      for (int64_t c = 0; c < x.e; c += kLine) __builtin_prefetch(from + kAhead * x.stride + c, 0, 2);
    }
    for (int64_t c = 0; c < layout.width; c += kElements) {
      if (c + kElements <= valid) {
        Store(to + r * layout.Words() + c / kPack, LoadWords<kPack>(from + c));
        continue;
      }
      T tail[kElements] = {};
      for (int64_t i = c; i < valid; ++i) tail[i - c] = from[i];
      Store(to + r * layout.Words() + c / kPack, LoadWords<kPack>(tail));
    }
  }
}

/// The transpose of PackRows' block: row r, word w at to[w * 64 + r].
template <int kPack>
void PackTransposed(const float* rows, BlockLayout<kPack> layout, float* to) {
  const int64_t words = layout.Words();
  for (int64_t r = 0; r < kBlock; r += kLanes) {
    for (int64_t w = 0; w < words; w += kLanes) {
      Floats x[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) x[i] = Load(rows + (r + i) * words + w);
      Transpose(x);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) Store(to + (w + i) * kBlock + r, x[i]);
    }
  }
}

/// PackRows' block contracted along its rows: rows kPack w ..., column c at to[w * width + c]. With kPack = 1 this is
/// PackRows' own layout.
template <int kPack>
const float* PackPaired(const float* rows, BlockLayout<kPack> layout, float* to) {
  if constexpr (kPack == 1) return rows;
  for (int64_t w = 0; w < kBlock / 2; ++w) {
    const auto* low = reinterpret_cast<const Bf16*>(rows + 2 * w * layout.Words());
    for (int64_t c = 0; c < layout.width; c += kLanes) {
      Halves pair[2];
      std::memcpy(&pair[0], low + c, sizeof(Halves));
      std::memcpy(&pair[1], low + layout.width + c, sizeof(Halves));
      Store(to + w * layout.width + c, Interleave(pair[0], pair[1]));
    }
  }
  return to;
}

/// Which queries of a block see which keys of another, both counted from the start of their block.
struct Visibility {
  int64_t keys, offset;  ///< key j is seen by query i iff j <= i + offset, and no earlier than the query's first key
  const int32_t* first_keys = nullptr;  ///< first keys of the queries, by position; nullptr: not after the block's
                                        ///< first
  int32_t position = 0;                 ///< position of key 0
  /// Keys [0, n) are seen by query i or an earlier one, except those before the queries' first keys.
  int64_t KeysOf(int64_t i) const { return std::clamp<int64_t>(i + offset + 1, 0, keys); }
  /// Keys [0, n) are seen by all queries from i on.
  int64_t KeysOfAll(int64_t i) const { return first_keys == nullptr ? KeysOf(i) : 0; }
  /// `x` for queries, from i on, that see key j; `otherwise` for the others.
  Floats Select(int64_t i, int64_t j, Floats x, Floats otherwise) const {
    if (j >= keys) return otherwise;
    if (first_keys != nullptr) {
      Ints first;
      std::memcpy(&first, first_keys + i, sizeof first);
      x = first <= position + static_cast<int32_t>(j) ? x : otherwise;
    }
    const int64_t first = std::clamp<int64_t>(j - offset - i, 0, kLanes);  // lanes before it see nothing
    return first == 0 ? x : (kLaneIndex >= static_cast<int32_t>(first) ? x : otherwise);
  }
};

/// Which keys the queries of a sequence see, block by block.
class Mask {
 public:
  /// `blocks` must outlive the mask.
  Mask(const AttentionShape& shape, const int32_t* first_keys, const Blocks& blocks, int64_t batch)
      : blocks_(blocks), causal_(shape.causal) {
    if (shape.window == 0 && first_keys == nullptr) return;
    first_keys_.resize(static_cast<size_t>(shape.queries + kBlock));  // a block of fewer queries is read whole
    for (int64_t i = 0; i < shape.queries; ++i)
      first_keys_[static_cast<size_t>(i)] =
          static_cast<int32_t>(std::max<int64_t>(0, shape.FirstKey(first_keys, batch, i)));
    for (const Block& block : blocks.queries) {
      const auto [least, most] = std::minmax_element(FirstKeys(block), FirstKeys(block) + block.count);
      bounds_.push_back({*least, *most});
    }
  }

  /// Visibility between block i of queries and block j of keys: without keys if no query sees any.
  Visibility Between(int64_t i, int64_t j) const {
    const Block &queries = blocks_.queries[static_cast<size_t>(i)], &keys = blocks_.keys[static_cast<size_t>(j)];
    const int64_t offset = causal_ ? queries.position - keys.position : keys.count;
    if (bounds_.empty()) return {keys.count, offset};
    const Bounds& first = bounds_[static_cast<size_t>(i)];
    if (keys.position + keys.count <= first.least) return {0, offset};
    if (first.most <= keys.position) return {keys.count, offset};
    return {keys.count, offset, FirstKeys(queries), static_cast<int32_t>(keys.position)};
  }
  /// Whether a query of the block sees a key of the other.
  bool IsVisible(int64_t i, int64_t j) const {
    return Between(i, j).KeysOf(blocks_.queries[static_cast<size_t>(i)].count - 1) > 0;
  }

 private:
  struct Bounds {
    int32_t least, most;
  };
  const int32_t* FirstKeys(const Block& block) const { return first_keys_.data() + block.row; }

  const Blocks& blocks_;
  bool causal_;
  std::vector<int32_t> first_keys_;  ///< first key by query, as a position; empty: all see the first key
  std::vector<Bounds> bounds_;       ///< bounds of first_keys_, by block of queries
};

/// The dropout factors of one head's probabilities.
class ProbabilityFactors {
 public:
  ProbabilityFactors(const DropoutMask& mask, const AttentionShape& shape, int64_t batch)
      : mask_(mask), tokens_(mask.tokens + batch * shape.queries), step_(mask.Step()) {}

  /// The factors of a block of queries and a block of keys: key j and query i at to[64 j + i]. Keys that no query of a
  /// vector sees are not written.
  void Fill(int64_t head, const Block& queries, const Block& keys, const Visibility& visible, float* to) const {
    alignas(64) int32_t tokens[kBlock] = {};
    std::copy_n(tokens_ + queries.row, queries.count, tokens);
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) {
      Words rows;
      std::memcpy(&rows, tokens + lane, sizeof rows);
      const int64_t end = keys.position + visible.KeysOf(lane + kLanes - 1);
      for (int64_t first = keys.position / 4 * 4; first < end; first += 4) {
        const PhiloxLanes words = TenRounds(
            {BroadcastWord(first / 4), rows, BroadcastWord(step_), BroadcastWord(mask_.first + head)}, mask_.key);
        const Words of_key[] = {words.x0, words.x1, words.x2, words.x3};
        for (int64_t k = 0; k < 4; ++k)
          if (const int64_t j = first + k - keys.position; 0 <= j && j < kBlock)
            Store(to + j * kBlock + lane, of_key[k] < mask_.threshold ? Floats{} : Broadcast(mask_.scale));
      }
    }
  }

 private:
  const DropoutMask& mask_;
  const int32_t* tokens_;
  uint32_t step_;
};

/// Calls f(T{}, kPack as a constant) for the element type and the processor.
template <typename F>
void ForAttentionType(Dtype dtype, F f) {
  if (dtype == Dtype::kF32) return f(float{}, std::integral_constant<int, 1>{});
  CHECK(dtype == Dtype::kBf16, "attention of {}", Name(dtype));
  f(Bf16{}, std::integral_constant < int, kHasBf16Dot ? 2 : 1 > {});
}

/// Into how many parts to cut `blocks` blocks when `outer` units of work are shared by all threads: one if there are
/// plenty of units, otherwise enough for four tasks per thread.
inline int64_t PartsOf(int64_t blocks, int64_t outer) {
  const int64_t wanted = (4 * Threads() + outer - 1) / std::max<int64_t>(outer, 1);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(blocks, 1));
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
