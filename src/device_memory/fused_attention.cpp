#include "espalier/device_memory/fused_attention.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Memory of cuDNN's kernels themselves: descriptors, counters, lengths of padded sequences.
constexpr int64_t kOwnBytes = int64_t{1} << 20;

/// Features of the widest heads that it takes, and that backward takes on every GPU.
constexpr int64_t kWidest = 256, kWidestBackward = 128;

constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t HeadsInGroup(const AttentionShape& x) { return x.kv_heads == 0 ? 0 : x.heads / x.kv_heads; }

/// Bytes of the bf16 scores of one head of keys, in cuDNN's tiles.
int64_t ScoreBytes(const AttentionShape& x) {
  return HeadsInGroup(x) * RoundUp(x.queries, 64) * RoundUp(x.keys, 128) * 2;
}

/// Bytes of backward of one head of keys, on the GPU that wants most: dO . o, with grouped heads dk and dv in bf16 of
/// every query head, and the scores in bf16 or dq in fp32. 10.x has dq where others have the scores; 8.x, which takes
/// heads of up to 128 features, has dq twice where no scores are stored.
int64_t BackwardBytes(const AttentionShape& x, bool stores_scores) {
  const int64_t group = HeadsInGroup(x), queries = RoundUp(x.queries, 8);
  const int64_t dq = group * queries * x.head_dim * 4, dot = group * queries * 4;
  const int64_t of_keys = group > 1 ? group * x.keys * (x.head_dim + x.ValueDim()) * 2 : 0;
  const bool narrow = std::max(x.head_dim, x.ValueDim()) <= kWidestBackward;
  return (stores_scores ? std::max(ScoreBytes(x), dq) : narrow ? 2 * dq : dq) + dot + of_keys;
}

int64_t LargestDivisor(int64_t n, int64_t limit) {
  int64_t largest = 1;
  for (int64_t d = 1; d * d <= n; ++d)
    if (n % d == 0)
      for (int64_t divisor : {d, n / d})
        if (divisor <= limit) largest = std::max(largest, divisor);
  return largest;
}

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kScratchAlignment); }

int64_t MaxRows(const AttentionInBlocks& call, int64_t AttentionBlock::*rows) {
  int64_t most = 0;
  for (const AttentionBlock& block : call.blocks) most = std::max(most, block.*rows);
  return most;
}

/// Bytes of fp32 sums of `features` over all rows of a sequence, from which bf16 results are rounded.
int64_t SumsOf(const AttentionInBlocks& call, int64_t features) {
  return call.results == Dtype::kF32 ? 0 : Aligned(call.whole.batch * features * 4);
}

/// Bytes for the largest block, for any alignment of its workspace.
template <typename F>
int64_t MaxLibraryBytes(const AttentionInBlocks& call, F bytes) {
  int64_t most = 0;
  for (const AttentionBlock& block : call.blocks) most = std::max(most, bytes(call.ShapeOf(block)));
  return most + 2 * kScratchAlignment;
}

}  // namespace

AttentionShape AttentionInBlocks::ShapeOf(const AttentionBlock& block) const {
  AttentionShape shape = whole;
  shape.queries = block.queries, shape.keys = block.keys, shape.causal = block.causal;
  shape.query_shard = shape.key_shard = {};
  return shape;
}

bool AttentionInBlocks::IsOneCall() const {
  return blocks.size() == 1 && blocks[0].queries == whole.queries && blocks[0].keys == whole.keys &&
         results == Dtype::kBf16;
}

std::string WhyNotFused(const AttentionInBlocks& call, AttentionDirection direction, int major) {
  const AttentionShape& x = call.whole;
  const bool backward = direction == AttentionDirection::kBackward;
  const bool latent = major == 10 && x.head_dim == 192 && x.ValueDim() == 128;
  const int64_t widest = !backward || major == 9 ? kWidest : latent ? 192 : kWidestBackward;
  if (backward && call.backward.own) return "run.attention_backward = \"own\"";
  if (major < 8) return fmt::format("compute capability {}.x is below 8.0", major);
  if (x.IsEmpty()) return "it is empty";
  if (call.inputs != Dtype::kBf16) return "it is fp32";
  if (backward && x.queries == 1 && x.keys == 1) return "it has one token";
  for (int64_t features : {x.head_dim, x.ValueDim()}) {
    if (features % 8 != 0) return fmt::format("heads of {} elements, no multiple of 8", features);
    if (features > widest) return fmt::format("heads of {} elements, more than {}", features, widest);
  }
  if (call.dropout) return "it has dropout, whose mask must not depend on the layout";
  return call.blocks.empty() ? "no mask for isolated documents, for a window with parallel.cp > 1, or for sequences "
                               "that are no multiple of 256 parallel.cp tokens"
                             : "";
}

bool FusedAttentionTakes(const AttentionInBlocks& call, AttentionDirection direction, int major) {
  return WhyNotFused(call, direction, major).empty();
}

BackwardMethod BackwardMethodOf(std::string_view name) {
  if (name == "large_parts") return {kLargeScoreBytes, 1};
  if (name == "two_streams") return {kScoreBytes, 2};
  if (name == "ordered") return {0, 1};
  if (name == "own") return {.score_bytes = 0, .own = true};
  if (name == "unordered") return {0, 1, false};
  CHECK(name == "parts", "attention's backward is computed by '{}'", name);
  return {};
}

AttentionPart PartOfBackward(const AttentionShape& x, const BackwardMethod& method) {
  if (method.score_bytes == 0) return {x.batch, x.kv_heads};
  const int64_t units = method.score_bytes / std::max<int64_t>(ScoreBytes(x), 1);
  if (units >= x.kv_heads) return {LargestDivisor(x.batch, units / std::max<int64_t>(x.kv_heads, 1)), x.kv_heads};
  return {1, LargestDivisor(x.kv_heads, units)};
}

int64_t PartsIn(const AttentionShape& x, AttentionPart part) {
  return x.IsEmpty() ? 0 : x.batch / part.batch * (x.kv_heads / part.kv_heads);
}

int64_t ShareOfStream(int64_t bytes, int64_t streams) {
  return bytes / streams / kScratchAlignment * kScratchAlignment;
}

std::vector<AttentionPart> PartsFrom(const AttentionShape& x, AttentionPart first) {
  std::vector<AttentionPart> parts = {first};
  while (parts.back().batch > 1) parts.push_back({LargestDivisor(x.batch, parts.back().batch - 1), first.kv_heads});
  while (parts.back().kv_heads > 1) parts.push_back({1, LargestDivisor(x.kv_heads, parts.back().kv_heads - 1)});
  return parts;
}

int64_t FusedAttentionBytes(const AttentionShape& x) { return kOwnBytes + x.batch * x.heads * x.queries * 4; }

int64_t BackwardPartBytes(const AttentionShape& x, AttentionPart part, const BackwardMethod& method) {
  return kOwnBytes + part.Size() * BackwardBytes(x, method.score_bytes > 0);
}

int64_t FusedAttentionGradBytes(const AttentionShape& x, const BackwardMethod& method) {
  const AttentionPart part = PartOfBackward(x, method);
  const int64_t streams = std::min(method.streams, PartsIn(x, part)), of_part = BackwardPartBytes(x, part, method);
  return streams > 1 ? streams * Aligned(of_part) : of_part;
}

ForwardScratch ForwardScratchOf(const AttentionInBlocks& call) {
  if (call.IsOneCall()) return {};
  const AttentionShape& x = call.whole;
  const int64_t rows = x.batch * MaxRows(call, &AttentionBlock::queries);
  return {Aligned(rows * x.ResultRow() * 2), Aligned(rows * x.heads * 4), SumsOf(call, x.queries * x.ResultRow())};
}

BackwardScratch BackwardScratchOf(const AttentionInBlocks& call) {
  if (call.IsOneCall()) return {};
  const AttentionShape& x = call.whole;
  const int64_t queries = x.batch * MaxRows(call, &AttentionBlock::queries),
                keys = x.batch * MaxRows(call, &AttentionBlock::keys);
  const int64_t q = x.heads * x.head_dim, k = x.kv_heads * x.head_dim, v = x.kv_heads * x.ValueDim();
  return {.dq = Aligned(queries * q * 2),
          .dk = Aligned(keys * k * 2),
          .dv = Aligned(keys * v * 2),
          .lse = Aligned(queries * x.heads * 4),
          .dq_sums = SumsOf(call, x.queries * q),
          .dk_sums = SumsOf(call, x.keys * k),
          .dv_sums = SumsOf(call, x.keys * v)};
}

int64_t AttentionBytes(const AttentionInBlocks& call) {
  return ForwardScratchOf(call).Bytes() + MaxLibraryBytes(call, FusedAttentionBytes);
}
int64_t AttentionGradBytes(const AttentionInBlocks& call) {
  return BackwardScratchOf(call).Bytes() + MaxLibraryBytes(call, [&](const AttentionShape& block) {
           return FusedAttentionGradBytes(block, call.backward);
         });
}

}  // namespace espalier
