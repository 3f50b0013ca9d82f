// Chooses the attention of a call: cuDNN's if it has a kernel, otherwise the plain one.
#include <fmt/core.h>

#include <algorithm>

#include "attention/attention_in_blocks.hpp"
#include "attention/fused_attention.hpp"
#include "attention/plain_attention.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/util/error.hpp"
#include "kernels/read_arguments.hpp"
#include "runtime/kernels.hpp"
#include "runtime/prepare.hpp"

namespace espalier::cuda {
namespace {

template <typename Args>
AttentionInBlocks BlocksOf(const Args& a, Dtype results, BackwardMethod backward) {
  const bool documents = a.first_keys != nullptr;
  return {a.shape,   documents ? std::vector<AttentionBlock>() : AttentionBlocksOf(a.shape),
          a.q.dtype, results,
          backward,  a.dropout.Drops()};
}
AttentionInBlocks BlocksOf(const AttentionArgs& a) { return BlocksOf(a, a.o.dtype, {}); }
AttentionInBlocks BlocksOf(const AttentionGradArgs& a) { return BlocksOf(a, a.dq.dtype, a.backward); }

/// The library's way of one direction.
struct Fused {
  AttentionDirection direction;
  bool (*prepare)(const AttentionInBlocks&, int64_t workspace_bytes);

  std::string WhyNot(const AttentionInBlocks& call) const {
    return WhyNotFused(call, direction, FusedAttentionMajor());
  }
};
constexpr Fused kForward{AttentionDirection::kForward, PrepareInBlocks},
    kBackward{AttentionDirection::kBackward, PrepareGradInBlocks};

/// Notes that our own kernels compute `what`, since cuDNN cannot take it. Calls that it refuses later are noted there.
void NotePlain(const char* what, const AttentionInBlocks& call, const std::string& why) {
  const AttentionShape& x = call.whole;
  if (!x.IsEmpty())
    NoteFallback(
        fmt::format("{} of [{},{},{} x {}] queries and {} keys: cuDNN cannot take it ({}): the plain kernel "
                    "computes it, many times slower",
                    what, x.batch, x.queries, x.heads, x.head_dim, x.keys, why));
}

/// True if cuDNN serves the call. If not, our kernels must.
bool UseFused(const AttentionInBlocks& blocks, int64_t workspace_bytes, const Fused& fused) {
  if (fused.WhyNot(blocks).empty() && fused.prepare(blocks, workspace_bytes)) return true;
  if (const int64_t e = std::max(blocks.whole.head_dim, blocks.whole.ValueDim()); e > kMaxHeadDim)
    throw UserError(ExitStatus::kDeck, fmt::format("model.heads: heads of {} elements; on GPUs attention takes at most "
                                                   "{}: use more heads, or run.device = \"cpu\"",
                                                   e, kMaxHeadDim));
  return false;
}

}  // namespace

void PrepareAttention(const KernelCall& call) {
  const AttentionInBlocks blocks = BlocksOf(ReadArguments<AttentionArgs>(call));
  if (const std::string why = kForward.WhyNot(blocks); !why.empty()) NotePlain("attention", blocks, why);
  UseFused(blocks, call.workspace_bytes, kForward);
}
void PrepareAttentionGrad(const KernelCall& call) {
  const AttentionInBlocks blocks = BlocksOf(ReadArguments<AttentionGradArgs>(call));
  // The note of forward holds for both.
  if (const std::string why = kBackward.WhyNot(blocks);
      !why.empty() && !blocks.backward.own && kForward.WhyNot(blocks).empty())
    NotePlain("attention_grad", blocks, why);
  UseFused(blocks, call.workspace_bytes, kBackward);
}

void Attention(const AttentionArgs& a, const LaunchContext& context) {
  CHECK(a.positions == nullptr, "attention over a cache runs on CPUs only");
  const AttentionInBlocks blocks = BlocksOf(a);
  if (UseFused(blocks, context.workspace_bytes, kForward)) return AttentionByBlocks(blocks, a, context);
  LaunchAttention(a, context.stream);
}

void AttentionGrad(const AttentionGradArgs& a, const LaunchContext& context) {
  const AttentionInBlocks blocks = BlocksOf(a);
  if (UseFused(blocks, context.workspace_bytes, kBackward)) return AttentionGradByBlocks(blocks, a, context);
  LaunchAttentionGrad(a, context.stream);
}

}  // namespace espalier::cuda
