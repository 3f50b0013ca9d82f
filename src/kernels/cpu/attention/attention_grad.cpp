// The gradient of attention in blocks (Dao 2023, algorithm 2): probabilities are recomputed from scores and lse. With
// many heads a task owns a kv head and computes all three gradients in one pass; with fewer kv heads than threads,
// tasks own parts of a head's keys (dk, dv) or queries (dq), and the scores are computed twice. Each element's sum has
// the same order either way, so its bits do not depend on the number of threads.
#include <span>
#include <utility>

#include "blocks.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// The work of a task: blocks of keys and queries of one batch element's heads [first_head, last_head), which share a
/// kv head. dq of its queries counts all keys; dk and dv of its keys count all queries and heads. A task computes dq,
/// or dk and dv, or all.
struct Share {
  int64_t batch, first_head, last_head;
  int64_t key_begin, key_end, query_begin, query_end;  ///< blocks
  bool want_queries, want_keys;
};

template <typename T, int kPack>
class BackwardTask {
 public:
  BackwardTask(const AttentionGradArgs& args, const Blocks& blocks, const Share& share)
      : args_(args),
        shape_(args.shape),
        blocks_(blocks),
        s_(share),
        layout_(shape_.head_dim),
        value_layout_(shape_.ValueDim()),
        mask_(shape_, args.first_keys, blocks, share.batch),
        scale_(ScaleOf(shape_)) {}

  void Run() {
    const AmxTiles tiles;
    DivideScratch();
    PackKeys();
    for (int64_t head = s_.first_head; head < s_.last_head; ++head) {
      PackQueries(head);
      for (int64_t j = s_.key_begin; j < s_.key_end; ++j) {
        for (int64_t i = s_.query_begin; i < s_.query_end; ++i) {
          visible_ = mask_.Between(i, j);
          if (visible_.KeysOf(kBlock - 1) > 0) AddPair(head, i, j);
        }
      }
      if (s_.want_queries) {
        const std::span queries = std::span(blocks_.queries).subspan(s_.query_begin, s_.query_end - s_.query_begin);
        StoreRows(dq_, scale_, queries, layout_, args_.dq, QueryHead(shape_, s_.batch, head), shape_.head_dim);
      }
    }
    if (!s_.want_keys) return;
    const int64_t kv_head = shape_.KvHeadOf(s_.first_head);
    const std::span keys = std::span(blocks_.keys).subspan(s_.key_begin, s_.key_end - s_.key_begin);
    StoreRows(dk_, scale_, keys, layout_, args_.dk, KeyHead(shape_, s_.batch, kv_head), shape_.head_dim);
    StoreRows(dv_, 1.0f, keys, value_layout_, args_.dv, ValueHead(shape_, s_.batch, kv_head), shape_.ValueDim());
  }

 private:
  /// Gives every buffer its place in the thread's scratch memory.
  void DivideScratch() {
    const int64_t keys = s_.key_end - s_.key_begin, queries = s_.query_end - s_.query_begin;
    const int64_t words = layout_.BlockWords(), value_words = value_layout_.BlockWords(), square = kBlock * kBlock;
    const int64_t floats = kBlock * layout_.width, value_floats = kBlock * value_layout_.width;
    const int64_t rows = std::max(words, value_words);
    const int64_t copies = kPack == 1 ? 1 : 2;
    const int64_t wanted_keys = s_.want_keys ? keys : 0, wanted_queries = s_.want_queries ? queries : 0;
    float* memory =
        ScratchOf<float>(keys * (words * copies + value_words) + queries * (words + value_words + kBlock) * 2 + rows +
                         floats * (wanted_keys + wanted_queries) + value_floats * wanted_keys +
                         (args_.dropout.Drops() ? 6 : 5) * square);
    const auto take = [&](int64_t count) { return std::exchange(memory, memory + count); };
    keys_ = take(keys * words);
    paired_keys_ = kPack == 1 ? keys_ : take(keys * words);
    values_ = take(keys * value_words);
    for (float** p : {&transposed_queries_, &paired_queries_}) *p = take(queries * words);
    for (float** p : {&transposed_dy_, &paired_dy_}) *p = take(queries * value_words);
    lse_ = take(queries * kBlock);
    mean_ = take(queries * kBlock);
    rows_ = take(rows);
    dk_ = take(floats * wanted_keys);
    dv_ = take(value_floats * wanted_keys);
    dq_ = take(floats * wanted_queries);
    scores_ = take(square);
    value_dots_ = take(square);
    probabilities_ = kPack == 1 ? scores_ : take(square);
    adjoints_ = kPack == 1 ? value_dots_ : take(square);
    paired_adjoints_ = kPack == 1 ? adjoints_ : take(square);
    std::fill_n(dk_, (floats + value_floats) * wanted_keys, 0.0f);
    if (!args_.dropout.Drops()) return;
    factors_ = take(square);
    std::fill_n(factors_, square, 0.0f);
  }

  void PackKeys() {
    const int64_t kv_head = shape_.KvHeadOf(s_.first_head);
    const auto k = RowsOfHead<T>(args_.k, KeyHead(shape_, s_.batch, kv_head), shape_.head_dim);
    const auto v = RowsOfHead<T>(args_.v, ValueHead(shape_, s_.batch, kv_head), shape_.ValueDim());
    for (int64_t b = s_.key_begin; b < s_.key_end; ++b) {
      const int64_t at = (b - s_.key_begin) * layout_.BlockWords();
      PackRows(k, blocks_.keys[b], layout_, keys_ + at);
      PackPaired(keys_ + at, layout_, paired_keys_ + at);
      PackRows(v, blocks_.keys[b], value_layout_, values_ + (b - s_.key_begin) * value_layout_.BlockWords());
    }
  }

  void PackQueries(int64_t head) {
    const int64_t blocks = s_.query_end - s_.query_begin;
    const HeadPlace place = ResultHead(shape_, s_.batch, head);
    const auto q = RowsOfHead<T>(args_.q, QueryHead(shape_, s_.batch, head), shape_.head_dim);
    const auto o = RowsOfHead<T>(args_.o, place, shape_.ValueDim()),
               dy = RowsOfHead<T>(args_.d_o, place, shape_.ValueDim());
    for (int64_t b = 0; b < blocks; ++b) {
      PackBoth(q, b, layout_, transposed_queries_, paired_queries_);
      PackBoth(dy, b, value_layout_, transposed_dy_, paired_dy_);
    }
    const float* lse = args_.lse + (s_.batch * shape_.heads + head) * shape_.queries;
    std::fill_n(lse_, blocks * kBlock, 0.0f);
    std::fill_n(mean_, blocks * kBlock, 0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
      const Block& block = blocks_.queries[s_.query_begin + b];
      for (int64_t r = 0; r < block.count; ++r) {
        const int64_t query = block.row + r;
        lse_[b * kBlock + r] = lse[query] * kLog2E;
        mean_[b * kBlock + r] = Dot(o.data + query * o.stride, dy.data + query * dy.stride);
      }
    }
    if (s_.want_queries) std::fill_n(dq_, blocks * kBlock * layout_.width, 0.0f);
  }

  void PackBoth(const HeadRows<T>& x, int64_t b, BlockLayout<kPack> layout, float* transposed, float* paired) {
    const int64_t at = b * layout.BlockWords();
    float* rows = kPack == 1 ? paired + at : rows_;
    PackRows(x, blocks_.queries[s_.query_begin + b], layout, rows);
    PackTransposed(rows, layout, transposed + at);
    PackPaired(rows, layout, paired + at);
  }

  float Dot(const T* x, const T* y) const {
    Sums sum;
    ForSums(0, shape_.ValueDim(),
            [&](int64_t part, int64_t c, auto lanes) { sum.part[part] += Load(x + c, lanes) * Load(y + c, lanes); });
    return Sum(sum);
  }

  /// Block i of queries against block j of keys. The GEMMs run one after the other, so that each finds its right
  /// operand in the first-level cache.
  void AddPair(int64_t head, int64_t i, int64_t j) {
    const int64_t query = i - s_.query_begin, key = j - s_.key_begin, keys = visible_.KeysOf(kBlock - 1);
    const int64_t q_at = query * layout_.BlockWords(), k_at = key * layout_.BlockWords();
    const int64_t dy_at = query * value_layout_.BlockWords(), v_at = key * value_layout_.BlockWords();
    MultiplyTransposed(keys, layout_.Words(), keys_ + k_at, transposed_queries_ + q_at, scores_);
    MultiplyTransposed(keys, value_layout_.Words(), values_ + v_at, transposed_dy_ + dy_at, value_dots_);
    if (args_.dropout.Drops()) {
      ProbabilityFactors(args_.dropout, shape_, s_.batch)
          .Fill(head, blocks_.queries[i], blocks_.keys[j], visible_, factors_);
      for (int64_t r = 0; r < RoundUp(keys, kTileRows); r += kPack) Differentiate<true>(i, r);
    } else {
      for (int64_t r = 0; r < RoundUp(keys, kTileRows); r += kPack) Differentiate<false>(i, r);
    }
    if (s_.want_keys) {
      AddKeys(keys, value_layout_.width, probabilities_, paired_dy_ + dy_at, dv_ + key * kBlock * value_layout_.width);
      AddKeys(keys, layout_.width, adjoints_, paired_queries_ + q_at, dk_ + key * kBlock * layout_.width);
    }
    if (s_.want_queries) AddQueries(i, keys, paired_keys_ + k_at);
  }

  /// Queries of a block that tile `r` of the keys skips, in whole vectors of words and whole tiles: none of them sees
  /// it.
  int64_t Skipped(int64_t r) const {
    constexpr int64_t kElements = std::max<int64_t>(kLanes * kPack, kTileRows);
    return std::clamp<int64_t>(r / kTileRows * kTileRows - visible_.offset, 0, kBlock) / kElements * kElements;
  }

  /// y[key][query] = sum over the words of rows[key] columns[query].
  void MultiplyTransposed(int64_t keys, int64_t words, const float* rows, const float* columns, float* y) {
    for (int64_t r = 0; r < keys; r += kTileRows) {
      const int64_t skip = Skipped(r);
      RowTile<kPack, Order::kRowMajor>(words, {rows + r * words, words}, {columns + skip, kBlock}, kBlock - skip,
                                       {y + r * kBlock + skip, kBlock}, false);
    }
  }

  /// sums[key] += sum over queries of factors[key][query] rows[query].
  void AddKeys(int64_t keys, int64_t width, const float* factors, const float* rows, float* sums) {
    const int64_t stride = kBlock / kPack;
    for (int64_t r = 0; r < keys; r += kTileRows) {
      const int64_t first = Skipped(r) / kPack;
      RowTile<kPack, Order::kRowMajor>(stride - first, {factors + r * stride + first, stride},
                                       {rows + first * width, width}, width, {sums + r * width, width}, true);
    }
  }

  /// Keys r ... r + kPack - 1 of a block, queries of block i: computes probabilities and their gradients, in place of
  /// scores and value dots if they have the same size.
  template <bool kDrops>
  void Differentiate(int64_t i, int64_t r) {
    const Visibility visible = visible_;
    const Floats bits = Broadcast(scale_ * kLog2E);
    const float *scores = scores_ + r * kBlock, *value_dots = value_dots_ + r * kBlock;
    const float* lse = lse_ + (i - s_.query_begin) * kBlock;
    const float* mean = mean_ + (i - s_.query_begin) * kBlock;
    float *probabilities = probabilities_, *adjoints = adjoints_, *paired = paired_adjoints_;
    for (int64_t lane = Skipped(r); lane < kBlock; lane += kLanes) {
      Floats p[kPack], ds[kPack];
#pragma GCC unroll 2
      for (int64_t w = 0; w < kPack; ++w) {
        p[w] = PowerOfTwo(Load(scores + w * kBlock + lane) * bits - Load(lse + lane));
        p[w] = visible.Select(lane, r + w, p[w], Floats{});
        if constexpr (kDrops) {
          const Floats factor = Load(factors_ + (r + w) * kBlock + lane);
          ds[w] = p[w] * (Load(value_dots + w * kBlock + lane) * factor - Load(mean + lane));
          p[w] *= factor;
        } else {
          ds[w] = p[w] * (Load(value_dots + w * kBlock + lane) - Load(mean + lane));
        }
        ds[w] = visible.Select(lane, r + w, ds[w], Floats{});
        StoreRow(probabilities, r + w, lane, p[w]);
        StoreRow(adjoints, r + w, lane, ds[w]);
      }
      if constexpr (kPack == 2) Store(paired + r / 2 * kBlock + lane, NarrowPairs(ds[0], ds[1]));
    }
  }

  /// Stores row `key` of a block whose contracted dim is the queries.
  static void StoreRow(float* block, int64_t key, int64_t lane, Floats x) {
    if constexpr (kPack == 1) {
      Store(block + key * kBlock + lane, x);
    } else {
      Store(reinterpret_cast<Bf16*>(block) + key * kBlock + lane, x);
    }
  }

  void AddQueries(int64_t i, int64_t keys, const float* paired_keys) {
    for (int64_t r = 0; r < kBlock; r += kTileRows) {
      // Whole pairs and tiles of rows were computed, with zeros where a key is hidden.
      const int64_t seen = std::min(visible_.KeysOf(r + kTileRows - 1), keys);
      if (seen == 0) continue;
      float* sums = dq_ + ((i - s_.query_begin) * kBlock + r) * layout_.width;
      RowTile<kPack, Order::kColumnMajor>((seen + kPack - 1) / kPack, {paired_adjoints_ + r, kBlock},
                                          {paired_keys, layout_.width}, layout_.width, {sums, layout_.width}, true);
    }
  }

  /// Writes one head's gradient, from `factor` times the sums of its blocks.
  void StoreRows(const float* sums, float factor, std::span<const Block> blocks, BlockLayout<kPack> layout,
                 const Array& y, const HeadPlace& place, int64_t features) {
    ForElementType(y.dtype, [&]<typename O>(O) {
      O* to = y.As<O>() + place.first;
      for (size_t b = 0; b < blocks.size(); ++b) {
        for (int64_t r = 0; r < blocks[b].count; ++r) {
          const float* row = sums + (static_cast<int64_t>(b) * kBlock + r) * layout.width;
          ForLanes(0, features, [&](int64_t c, auto lanes) {
            Store(to + (blocks[b].row + r) * place.stride + c, Load(row + c) * factor, lanes);
          });
        }
      }
    });
  }

  const AttentionGradArgs& args_;
  const AttentionShape& shape_;
  const Blocks& blocks_;
  Share s_;
  BlockLayout<kPack> layout_, value_layout_;  ///< layouts of q, k and their gradients, and of v, o and theirs
  Mask mask_;
  Visibility visible_{};  ///< visibility between the current blocks
  float scale_;
  float *keys_, *paired_keys_, *values_, *transposed_queries_, *paired_queries_, *transposed_dy_, *paired_dy_;
  float *lse_, *mean_, *rows_, *dk_, *dv_, *dq_;
  float *probabilities_, *adjoints_, *paired_adjoints_, *scores_, *value_dots_, *factors_ = nullptr;
};

/// The tasks of a call, longest first.
std::vector<Share> SharesOf(const AttentionShape& a, const Blocks& blocks) {
  const int64_t keys = std::ssize(blocks.keys), queries = std::ssize(blocks.queries);
  const int64_t group = a.heads / a.kv_heads, kv_heads = a.batch * a.kv_heads, heads = a.batch * a.heads;
  std::vector<Share> shares;
  if (kv_heads >= Threads()) {
    for (int64_t g = 0; g < kv_heads; ++g) {
      const int64_t first = g % a.kv_heads * group;
      shares.push_back({g / a.kv_heads, first, first + group, 0, keys, 0, queries, true, true});
    }
    return shares;
  }
  const int64_t key_parts = PartsOf(keys, kv_heads), query_parts = PartsOf(queries, heads);
  for (int64_t part = 0; part < key_parts; ++part) {  // early keys are seen by more queries
    for (int64_t g = 0; g < kv_heads; ++g) {
      const int64_t first = g % a.kv_heads * group;
      shares.push_back({g / a.kv_heads, first, first + group, keys * part / key_parts, keys * (part + 1) / key_parts, 0,
                        queries, false, true});
    }
  }
  for (int64_t part = query_parts; part-- > 0;) {
    for (int64_t h = 0; h < heads; ++h) {
      shares.push_back({h / a.heads, h % a.heads, h % a.heads + 1, 0, keys, queries * part / query_parts,
                        queries * (part + 1) / query_parts, true, false});
    }
  }
  return shares;
}

}  // namespace

void AttentionGrad(const AttentionGradArgs& a) {
  if (a.shape.batch * a.shape.heads == 0) return;
  const Blocks blocks = BlocksOf(a.shape);
  const std::vector<Share> shares = SharesOf(a.shape, blocks);
  ForAttentionType(a.q.dtype, [&]<typename T, int kPack>(T, std::integral_constant<int, kPack>) {
    ParallelTasks(static_cast<int64_t>(shares.size()),
                  [&](int64_t i) { BackwardTask<T, kPack>(a, blocks, shares[static_cast<size_t>(i)]).Run(); });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
