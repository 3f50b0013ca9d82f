#include "espalier/ops/fused_attention.hpp"

#include <algorithm>

namespace espalier {
namespace {

/// What cuDNN's kernels keep for themselves: descriptors, counters, lengths of padded sequences.
constexpr int64_t kOwnBytes = int64_t{1} << 20;

constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t HeadsInGroup(const AttentionSizes& x) { return x.kv_heads == 0 ? 0 : x.heads / x.kv_heads; }

/// bf16 scores of one head of keys, in cuDNN's tiles.
int64_t ScoreBytes(const AttentionSizes& x) {
  return HeadsInGroup(x) * RoundUp(x.queries, 64) * RoundUp(x.keys, 128) * 2;
}

/// Sums of one head of keys: fp32 dq and dO . o; with grouped heads dk and dv of every head of queries.
int64_t SumBytes(const AttentionSizes& x) {
  const int64_t group = HeadsInGroup(x), whole_heads = group > 1 ? 2 * x.keys * x.head_dim : 0;
  return group * 4 * (x.queries * x.head_dim + x.queries + whole_heads);
}

int64_t LargestDivisor(int64_t n, int64_t most) {
  for (int64_t d = std::clamp<int64_t>(most, 1, std::max<int64_t>(n, 1)); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

}  // namespace

bool FusedAttentionTakes(const AttentionSizes& x, const AttentionDemand& demand, int major) {
  const bool masks = !demand.causal || (demand.plain_order && x.queries == x.keys);
  const int64_t widest = major >= 9 ? 256 : 128;
  const bool there = x.batch > 0 && x.heads > 0 && x.queries > 0 && x.keys > 0;
  return there && masks && major >= 8 && demand.inputs == Dtype::kBf16 && demand.results == Dtype::kBf16 && x.head_dim % 8 == 0 && x.head_dim <= widest;
}

AttentionPart PartOfBackward(const AttentionSizes& x) {
  const int64_t units = kMostScoreBytes / std::max<int64_t>(ScoreBytes(x), 1);
  if (units >= x.kv_heads) return {LargestDivisor(x.batch, units / std::max<int64_t>(x.kv_heads, 1)), x.kv_heads};
  return {1, LargestDivisor(x.kv_heads, units)};
}

int64_t FusedAttentionBytes(const AttentionSizes& x) { return kOwnBytes + x.batch * x.heads * x.queries * 4; }

int64_t FusedAttentionGradBytes(const AttentionSizes& x) {
  const AttentionPart part = PartOfBackward(x);
  const int64_t in_parts = part.batch * part.kv_heads * (ScoreBytes(x) + SumBytes(x));
  const int64_t at_once = x.batch * x.kv_heads * SumBytes(x);  // not deterministic: nothing is cut, no scores are stored
  return kOwnBytes + std::max(in_parts, at_once);
}

}  // namespace espalier
