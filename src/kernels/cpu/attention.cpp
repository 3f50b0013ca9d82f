// Attention in blocks with a running softmax (Milakov and Gimelshein 2018; Dao 2023, algorithm 1): no matrix of queries
// by keys in memory. A query's bits depend neither on the number of threads nor on the other queries.
#include <limits>

#include "kernels/cpu/attention/blocks.hpp"
#include "kernels/cpu/attention/one_query.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLn2 = 0.693147180559945309f;

/// State of the softmax of a vector of queries over the keys so far: the largest score in bits, which is its exponent
/// as a power of two, and the sum of 2^(score in bits - largest).
struct RunningSoftmax {
  Floats largest = Broadcast(-kInfinity);
  Floats sum{};
};

/// Computes some of one head's queries against all keys that they see.
template <typename T, int kPack>
class ForwardTask {
 public:
  ForwardTask(const AttentionArgs& args, const Blocks& blocks, int64_t batch, int64_t head)
      : args_(args),
        shape_(args.shape),
        blocks_(blocks),
        batch_(batch),
        head_(head),
        layout_(shape_.head_dim),
        value_layout_(shape_.ValueDim()),
        mask_(shape_, args.first_keys, blocks, batch),
        bits_(kLog2E * shape_.score_factor / std::sqrt(static_cast<float>(shape_.head_dim))) {}

  /// Blocks of queries [begin, end).
  void Run(int64_t begin, int64_t end) {
    const AmxTiles tiles;
    FindKeyBlocks(begin, end);
    const int64_t key_blocks = key_end_ - key_begin_;
    const int64_t words = layout_.BlockWords(), value_words = value_layout_.BlockWords();
    constexpr int64_t kSquare = kBlock * kBlock;
    const int64_t squares = args_.dropout.Drops() ? 3 : 2, rows = std::max(words, value_words);
    float* memory = ScratchOf<float>(key_blocks * (words + value_words) + words + rows + kBlock * value_layout_.width +
                                     squares * kSquare);
    keys_ = memory;
    values_ = keys_ + key_blocks * words;
    rows_ = values_ + key_blocks * value_words;
    queries_ = rows_ + rows;
    scores_ = queries_ + words;
    probabilities_ = kPack == 1 ? scores_ : scores_ + kBlock * kBlock;  // in place if they have the same size
    sums_ = scores_ + 2 * kSquare;
    factors_ = sums_ + kBlock * value_layout_.width;
    if (args_.dropout.Drops()) std::fill_n(factors_, kSquare, 0.0f);
    PackKeys();
    for (int64_t block = begin; block < end; ++block) RunBlock(block);
  }

 private:
  /// Finds the first and the last block of keys that one of the blocks of queries [begin, end) sees.
  void FindKeyBlocks(int64_t begin, int64_t end) {
    const auto seen = [&](int64_t key) {
      for (int64_t block = begin; block < end; ++block)
        if (mask_.IsVisible(block, key)) return true;
      return false;
    };
    key_begin_ = 0;
    key_end_ = std::ssize(blocks_.keys);
    while (key_begin_ < key_end_ && !seen(key_begin_)) ++key_begin_;
    while (key_begin_ < key_end_ && !seen(key_end_ - 1)) --key_end_;
  }

  void PackKeys() {
    const int64_t kv_head = shape_.KvHeadOf(head_);
    const auto k = RowsOfHead<T>(args_.k, KeyHead(shape_, batch_, kv_head), shape_.head_dim);
    const auto v = RowsOfHead<T>(args_.v, ValueHead(shape_, batch_, kv_head), shape_.ValueDim());
    for (int64_t b = key_begin_; b < key_end_; ++b) {
      PackRows(k, blocks_.keys[b], layout_, keys_ + (b - key_begin_) * layout_.BlockWords());
      float* to = values_ + (b - key_begin_) * value_layout_.BlockWords();
      float* rows = kPack == 1 ? to : rows_;
      PackRows(v, blocks_.keys[b], value_layout_, rows);
      PackPaired(rows, value_layout_, to);
    }
  }

  void RunBlock(int64_t i) {
    const Block& block = blocks_.queries[i];
    PackRows(RowsOfHead<T>(args_.q, QueryHead(shape_, batch_, head_), shape_.head_dim), block, layout_, rows_);
    PackTransposed(rows_, layout_, queries_);
    std::fill_n(sums_, kBlock * value_layout_.width, 0.0f);
    for (RunningSoftmax& s : softmax_) s = {};
    for (int64_t j = key_begin_; j < key_end_; ++j) {
      visible_ = mask_.Between(i, j);
      if (visible_.KeysOf(block.count - 1) == 0) continue;
      if (args_.dropout.Drops())
        ProbabilityFactors(args_.dropout, shape_, batch_).Fill(head_, block, blocks_.keys[j], visible_, factors_);
      AddKeys(j);
    }
    Finish(block);
  }

  /// One block of keys, for the 64 queries.
  void AddKeys(int64_t block) {
    const int64_t keys = visible_.KeysOf(kBlock - 1);
    const float* k = keys_ + (block - key_begin_) * layout_.BlockWords();
    for (int64_t r = 0; r < keys; r += kTileRows) {
      const int64_t skip = std::clamp<int64_t>(r - visible_.offset, 0, kBlock) / kLanes * kLanes;
      RowTile<kPack, Order::kRowMajor>(layout_.Words(), {k + r * layout_.Words(), layout_.Words()},
                                       {queries_ + skip, kBlock}, kBlock - skip, {scores_ + r * kBlock + skip, kBlock},
                                       false);
    }
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) Softmax(lane);
    const float* v = values_ + (block - key_begin_) * value_layout_.BlockWords();
    const int64_t width = value_layout_.width;
    for (int64_t r = 0; r < kBlock; r += kTileRows) {
      const int64_t seen = std::min(visible_.KeysOf(r + kTileRows - 1), keys);
      if (seen == 0) continue;
      RowTile<kPack, Order::kColumnMajor>((seen + kPack - 1) / kPack, {probabilities_ + r, kBlock}, {v, width}, width,
                                          {sums_ + r * width, width}, true);
    }
  }

  /// Converts a vector of queries' scores into probabilities, relative to the largest so far, and rescales the earlier
  /// sums. Keys that only later queries of the tile see get the probability 0.
  void Softmax(int64_t lane) {
    RunningSoftmax& running = softmax_[lane / kLanes];
    const int64_t keys = visible_.KeysOf(lane / kTileRows * kTileRows + kTileRows - 1);
    const int64_t all = visible_.KeysOfAll(lane);
    const Floats largest = Max(Largest(lane, all, keys) * bits_, running.largest);
    const Floats rescale = running.largest == largest ? Broadcast(1.0f) : PowerOfTwo(running.largest - largest);
    const int64_t plain = all / kPack * kPack;
    Floats sum;
    if (args_.dropout.Drops()) {
      sum = Exponentiate<false, true>(lane, 0, plain, largest);
      sum += Exponentiate<true, true>(lane, plain, keys, largest);
    } else {
      sum = Exponentiate<false, false>(lane, 0, plain, largest);
      sum += Exponentiate<true, false>(lane, plain, keys, largest);
    }
    running.largest = largest;
    running.sum = running.sum * rescale + sum;
    Rescale(lane, rescale);
  }

  /// The largest of the block's scores. (The factor bits_ is positive.)
  Floats Largest(int64_t lane, int64_t all, int64_t keys) const {
    const float* scores = scores_ + lane;
    Floats largest = Broadcast(-kInfinity), other = largest;  // two chains hide the latency
    int64_t r = 0;
    for (; r + 2 <= all; r += 2) {
      largest = Max(Load(scores + r * kBlock), largest);
      other = Max(Load(scores + (r + 1) * kBlock), other);
    }
    for (; r < keys; ++r) {
      largest = Max(visible_.Select(lane, r, Load(scores + r * kBlock), Broadcast(-kInfinity)), largest);
    }
    return Max(largest, other);
  }

  /// Stores the probabilities of keys [begin, end), relative to the largest, and returns their sum. The end is rounded
  /// up to whole words with zeros. Dropout applies to the stored probabilities, not to the sum.
  template <bool kMasked, bool kDrops>
  Floats Exponentiate(int64_t lane, int64_t begin, int64_t end, Floats largest) {
    const float* scores = scores_ + lane;
    float* probabilities = probabilities_ + lane;
    const Visibility visible = visible_;
    const Floats bits = Broadcast(bits_);
    Floats sum{};
    for (int64_t r = begin; r < end; r += kPack) {
      Floats p[kPack];
#pragma GCC unroll 2
      for (int64_t w = 0; w < kPack; ++w) {
        p[w] = PowerOfTwo(Load(scores + (r + w) * kBlock) * bits - largest);
        if (kMasked) p[w] = visible.Select(lane, r + w, p[w], Floats{});
        sum += p[w];
        if constexpr (kDrops) p[w] *= Load(factors_ + (r + w) * kBlock + lane);
      }
      if constexpr (kPack == 1) {
        Store(probabilities + r * kBlock, p[0]);
      } else {
        Store(probabilities + r / 2 * kBlock, NarrowPairs(p[0], p[1]));
      }
    }
    return sum;
  }

  void Rescale(int64_t lane, Floats factors) {
    float factor[kLanes];
    Store(factor, factors);
    const int64_t width = value_layout_.width;
    for (int64_t q = 0; q < kLanes; ++q) {
      if (factor[q] == 1.0f) continue;
      float* row = sums_ + (lane + q) * width;
      for (int64_t c = 0; c < width; c += kLanes) Store(row + c, Load(row + c) * factor[q]);
    }
  }

  void Finish(const Block& block) {
    float* lse = args_.lse + (batch_ * shape_.heads + head_) * shape_.queries + block.row;
    for (int64_t q = 0; q < block.count; ++q) {
      const RunningSoftmax& s = softmax_[q / kLanes];
      const float sum = s.sum[q % kLanes];
      lse[q] = s.largest[q % kLanes] * kLn2 + std::log(sum);
      StoreQuery(block.row + q, sums_ + q * value_layout_.width, sum == 0.0f ? 0.0f : 1.0f / sum);
    }
  }
  void StoreQuery(int64_t query, const float* sums, float factor) {
    ForElementType(args_.o.dtype, [&]<typename O>(O) {
      O* o = args_.o.As<O>() + ((batch_ * shape_.queries + query) * shape_.heads + head_) * shape_.ValueDim();
      ForLanes(0, shape_.ValueDim(), [&](int64_t c, auto lanes) { Store(o + c, Load(sums + c) * factor, lanes); });
    });
  }

  const AttentionArgs& args_;
  const AttentionShape& shape_;
  const Blocks& blocks_;
  int64_t batch_, head_;
  BlockLayout<kPack> layout_, value_layout_;  ///< layouts of queries and keys, and of values and sums
  Mask mask_;
  Visibility visible_{};                 ///< visibility between the current blocks
  int64_t key_begin_ = 0, key_end_ = 0;  ///< blocks of keys that are packed
  float bits_;                           ///< bits of a score per unit of the dot product of query and key
  float *keys_, *values_, *rows_, *queries_, *scores_, *probabilities_, *sums_, *factors_;
  RunningSoftmax softmax_[kBlock / kLanes];
};

}  // namespace

void Attention(const AttentionArgs& args) {
  AttentionArgs a = args;
  a.shape = args.Placed();
  if (a.positions != nullptr && a.shape.queries == 1) return AttentionOfOneQuery(a);
  const Blocks all = BlocksOf(a.shape);
  const int64_t blocks = std::ssize(all.queries), heads = a.shape.batch * a.shape.heads;
  const int64_t parts = PartsOf(blocks, heads);
  if (heads * blocks == 0) return;
  ForAttentionType(a.q.dtype, [&]<typename T, int kPack>(T, std::integral_constant<int, kPack>) {
    ParallelTasks(heads * parts, [&](int64_t task) {
      // Later queries see more keys: the longest parts come first.
      const int64_t part = parts - 1 - task / heads, head = task % heads;
      ForwardTask<T, kPack> forward(a, all, head / a.shape.heads, head % a.shape.heads);
      if (blocks * part / parts < blocks * (part + 1) / parts) {
        forward.Run(blocks * part / parts, blocks * (part + 1) / parts);
      }
    });
  });
}

void AttentionMerge(const AttentionMergeArgs& a) {
  const float *o_a = a.o_a, *o_b = a.o_b;
  ForElementType(a.o.dtype, [&]<typename T>(T) {
    ForRows(a.batch * a.queries, a.heads * a.head_dim, [&](int64_t row) {
      for (int64_t head = 0; head < a.heads; ++head) {
        const int64_t query = (row / a.queries * a.heads + head) * a.queries + row % a.queries;
        const int64_t at = (row * a.heads + head) * a.head_dim;
        const MergeWeights weights = MergeWeightsOf(a.lse_a[query], a.lse_b[query]);
        a.lse[query] = weights.lse;
        T* o = a.o.As<T>() + at;
        ForLanes(0, a.head_dim, [&](int64_t c, auto lanes) {
          Store(o + c, Load(o_a + at + c, lanes) * weights.a + Load(o_b + at + c, lanes) * weights.b, lanes);
        });
      }
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
