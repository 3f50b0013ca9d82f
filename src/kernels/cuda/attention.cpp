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

using Prepare = bool (*)(const AttentionInBlocks&, int64_t workspace_bytes);

std::string Describe(const AttentionInBlocks& call) {
  const AttentionShape& x = call.whole;
  return fmt::format("attention of [{},{},{} x {}] queries and {} keys", x.batch, x.queries, x.heads, x.head_dim,
                     x.keys);
}

/// Notes that our own kernels compute calls that cuDNN cannot take. Calls that it refuses later are noted there.
void NoteIfPlain(const AttentionInBlocks& call) {
  if (const std::string why = WhyNotFused(call, FusedAttentionMajor()); !why.empty() && !call.whole.IsEmpty())
    NoteFallback(fmt::format("{}: cuDNN cannot take it ({}): the plain kernel computes it, many times slower",
                             Describe(call), why));
}

/// True if cuDNN serves the call. If not, our kernels must.
bool UseFused(const AttentionInBlocks& blocks, int64_t workspace_bytes, Prepare prepare) {
  if (FusedAttentionTakes(blocks, FusedAttentionMajor()) && prepare(blocks, workspace_bytes)) return true;
  if (const int64_t e = std::max(blocks.whole.head_dim, blocks.whole.ValueDim()); e > kMaxHeadDim)
    throw UserError(ExitStatus::kDeck, fmt::format("model.heads: heads of {} elements; on GPUs attention takes at most "
                                                   "{}: use more heads, or run.device = \"cpu\"",
                                                   e, kMaxHeadDim));
  return false;
}

}  // namespace

void PrepareAttention(const KernelCall& call) {
  const AttentionInBlocks blocks = BlocksOf(ReadArguments<AttentionArgs>(call));
  NoteIfPlain(blocks);
  UseFused(blocks, call.workspace_bytes, PrepareInBlocks);
}
void PrepareAttentionGrad(const KernelCall& call) {
  UseFused(BlocksOf(ReadArguments<AttentionGradArgs>(call)), call.workspace_bytes, PrepareGradInBlocks);
}

void Attention(const AttentionArgs& a, const LaunchContext& context) {
  CHECK(a.positions == nullptr, "attention over a cache runs on CPUs only");
  const AttentionInBlocks blocks = BlocksOf(a);
  if (UseFused(blocks, context.workspace_bytes, PrepareInBlocks)) return AttentionByBlocks(blocks, a, context);
  LaunchAttention(a, context.stream);
}

void AttentionGrad(const AttentionGradArgs& a, const LaunchContext& context) {
  const AttentionInBlocks blocks = BlocksOf(a);
  if (UseFused(blocks, context.workspace_bytes, PrepareGradInBlocks)) return AttentionGradByBlocks(blocks, a, context);
  LaunchAttentionGrad(a, context.stream);
}

}  // namespace espalier::cuda
