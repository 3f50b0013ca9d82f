#include "attention_in_blocks.hpp"

#include <algorithm>

#include "block_results.hpp"
#include "espalier/util/error.hpp"
#include "fused_attention.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/workspace.hpp"

namespace espalier::cuda {
namespace {

FusedCall CallOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.ShapeOf(block), a.whole.queries, a.whole.keys, a.backward};
}

using PrepareFused = bool (*)(const FusedCall&, int64_t);

bool PrepareAll(const AttentionInBlocks& a, int64_t library_bytes, PrepareFused prepare) {
  return std::ranges::all_of(a.blocks,
                             [&](const AttentionBlock& block) { return prepare(CallOf(a, block), library_bytes); });
}

/// Divides a workspace, front to back.
class Scratch {
 public:
  explicit Scratch(const LaunchContext& context)
      : left_(AlignedWorkspace(context.workspace, context.workspace_bytes)) {}

  template <typename T = void>
  T* Take(int64_t bytes) {
    void* taken = left_.data;
    left_ = {static_cast<std::byte*>(left_.data) + bytes, left_.bytes - bytes};
    return static_cast<T*>(taken);
  }
  const Workspace& left() const { return left_; }

 private:
  Workspace left_;
};

BlockRows QueriesOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.whole.batch, a.whole.queries, block.query, block.queries};
}
BlockRows KeysOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.whole.batch, a.whole.keys, block.key, block.keys};
}

int64_t QueryWidth(const AttentionInBlocks& a) { return a.whole.heads * a.whole.head_dim; }
int64_t KeyWidth(const AttentionInBlocks& a) { return a.whole.kv_heads * a.whole.head_dim; }
int64_t ValueWidth(const AttentionInBlocks& a) { return a.whole.kv_heads * a.whole.ValueDim(); }
int64_t ResultWidth(const AttentionInBlocks& a) { return a.whole.ResultRow(); }

void* RowsFrom(const Array& x, int64_t row, int64_t width) { return x.As<std::byte>() + row * width * SizeOf(x.dtype); }

/// The operands of a block that forward and backward share.
template <typename Args>
FusedMemory OperandsOf(const AttentionInBlocks& a, const AttentionBlock& block, const Args& args,
                       const Workspace& workspace) {
  FusedMemory memory{};
  memory.q = RowsFrom(args.q, block.query, QueryWidth(a));
  memory.k = RowsFrom(args.k, block.key, KeyWidth(a));
  memory.v = RowsFrom(args.v, block.key, ValueWidth(a));
  memory.workspace = workspace.data;
  memory.workspace_bytes = workspace.bytes;
  return memory;
}

/// The operands of backward except lse.
FusedMemory GradOperandsOf(const AttentionInBlocks& a, const AttentionBlock& block, const AttentionGradArgs& args,
                           const Workspace& workspace) {
  FusedMemory memory = OperandsOf(a, block, args, workspace);
  memory.o = RowsFrom(args.o, block.query, ResultWidth(a));
  memory.d_o = RowsFrom(args.d_o, block.query, ResultWidth(a));
  return memory;
}

/// Memory of the fp32 sums of a result: the result itself, if it is fp32.
float* SumsIn(const Array& result, float* sums) { return result.dtype == Dtype::kF32 ? result.As<float>() : sums; }

void Round(float* sums, const Array& result, int64_t n, const LaunchContext& context) {
  if (result.dtype != Dtype::kF32) Cast({{sums, Dtype::kF32}, result, n}, context);
}

/// One of the gradients: a block's bf16 result, and the fp32 sums over all blocks.
struct Gradient {
  void* of_block;
  float* sums;
  int64_t width;
};

/// lse of a block's queries, dense, as cuDNN requires.
void* LseOf(const AttentionInBlocks& a, const AttentionBlock& block, const float* lse, float* taken,
            cudaStream_t stream) {
  if (block.queries == a.whole.queries) return const_cast<float*>(lse);
  LaunchTakeRows(QueriesOf(a, block), a.whole.heads, lse, taken, stream);
  return taken;
}

void ForwardInBlocks(const AttentionInBlocks& a, const AttentionArgs& args, const LaunchContext& context) {
  CHECK(a.whole.joined_row == 0, "attention in blocks of a joined tensor");
  const ForwardScratch bytes = ForwardScratchOf(a);
  Scratch scratch(context);
  void* o = scratch.Take(bytes.o);
  auto* lse = scratch.Take<float>(bytes.lse);
  float* sums = SumsIn(args.o, scratch.Take<float>(bytes.sums));
  Before before = Before::kNothing;
  for (const AttentionBlock& block : a.blocks) {
    FusedMemory memory = OperandsOf(a, block, args, scratch.left());
    memory.o = o;
    memory.lse = lse;
    FusedAttention(CallOf(a, block), memory, context.stream);
    LaunchMergeBlock(QueriesOf(a, block), {o, lse, a.whole.heads, a.whole.ValueDim()}, before, sums, args.lse,
                     context.stream);
    before = Before::kSums;
  }
  Round(sums, args.o, a.whole.batch * a.whole.queries * ResultWidth(a), context);
}

void BackwardInBlocks(const AttentionInBlocks& a, const AttentionGradArgs& args, const LaunchContext& context) {
  CHECK(a.whole.joined_row == 0, "attention in blocks of a joined tensor");
  const BackwardScratch bytes = BackwardScratchOf(a);
  Scratch scratch(context);
  void *dq = scratch.Take(bytes.dq), *dk = scratch.Take(bytes.dk), *dv = scratch.Take(bytes.dv);
  auto* taken_lse = scratch.Take<float>(bytes.lse);
  const Gradient gradients[] = {{dq, SumsIn(args.dq, scratch.Take<float>(bytes.dq_sums)), QueryWidth(a)},
                                {dk, SumsIn(args.dk, scratch.Take<float>(bytes.dk_sums)), KeyWidth(a)},
                                {dv, SumsIn(args.dv, scratch.Take<float>(bytes.dv_sums)), ValueWidth(a)}};
  Before before = Before::kNothing;
  for (const AttentionBlock& block : a.blocks) {
    FusedMemory memory = GradOperandsOf(a, block, args, scratch.left());
    memory.lse = LseOf(a, block, args.lse, taken_lse, context.stream);
    memory.dq = dq, memory.dk = dk, memory.dv = dv;
    FusedAttentionGrad(CallOf(a, block), memory, context.stream);
    const BlockRows rows[] = {QueriesOf(a, block), KeysOf(a, block), KeysOf(a, block)};
    for (size_t i = 0; i < 3; ++i)
      LaunchAddBlock(rows[i], gradients[i].width, gradients[i].of_block, before, gradients[i].sums, context.stream);
    before = Before::kSums;
  }
  const int64_t rows[] = {a.whole.batch * a.whole.queries, a.whole.batch * a.whole.keys, a.whole.batch * a.whole.keys};
  const Array results[] = {args.dq, args.dk, args.dv};
  for (size_t i = 0; i < 3; ++i) Round(gradients[i].sums, results[i], rows[i] * gradients[i].width, context);
}

}  // namespace

bool PrepareInBlocks(const AttentionInBlocks& a, int64_t workspace_bytes) {
  return PrepareAll(a, UsableBytes(workspace_bytes) - ForwardScratchOf(a).Bytes(), PrepareFusedAttention);
}
bool PrepareGradInBlocks(const AttentionInBlocks& a, int64_t workspace_bytes) {
  return PrepareAll(a, UsableBytes(workspace_bytes) - BackwardScratchOf(a).Bytes(), PrepareFusedAttentionGrad);
}

void AttentionByBlocks(const AttentionInBlocks& a, const AttentionArgs& args, const LaunchContext& context) {
  if (!a.IsOneCall()) return ForwardInBlocks(a, args, context);
  FusedMemory memory = OperandsOf(a, a.blocks[0], args, Scratch(context).left());
  memory.o = args.o.data;
  memory.lse = args.lse;
  FusedAttention(CallOf(a, a.blocks[0]), memory, context.stream);
}

void AttentionGradByBlocks(const AttentionInBlocks& a, const AttentionGradArgs& args, const LaunchContext& context) {
  if (!a.IsOneCall()) return BackwardInBlocks(a, args, context);
  FusedMemory memory = GradOperandsOf(a, a.blocks[0], args, Scratch(context).left());
  memory.lse = const_cast<float*>(args.lse);
  memory.dq = args.dq.data, memory.dk = args.dk.data, memory.dv = args.dv.data;
  FusedAttentionGrad(CallOf(a, a.blocks[0]), memory, context.stream);
}

}  // namespace espalier::cuda
