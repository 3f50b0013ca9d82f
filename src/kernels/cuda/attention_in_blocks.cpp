#include "attention_in_blocks.hpp"

#include "attention_parts.hpp"
#include "elementwise.hpp"
#include "fused_attention.hpp"
#include "kernels.hpp"
#include "prepare.hpp"

namespace espalier::cuda {
namespace {

FusedCall CallOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.SizesOf(block), a.whole.queries, a.whole.keys, block.causal};
}

using PrepareFused = bool (*)(const FusedCall&, int64_t);

bool PrepareAll(const AttentionInBlocks& a, int64_t library_bytes, PrepareFused prepare) {
  return std::ranges::all_of(a.blocks,
                             [&](const AttentionBlock& block) { return prepare(CallOf(a, block), library_bytes); });
}

/// Takes a workspace apart, front to back.
class Scratch {
 public:
  explicit Scratch(const KernelCall& call) : left_(AlignedWorkspace(call.workspace, call.workspace_bytes)) {}

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

void* RowsFrom(const Tensor& x, int64_t row) { return x.As<std::byte>() + row * ColumnsOf(x) * SizeOf(x.dtype); }

PartRows QueriesOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.whole.batch, a.whole.queries, block.query, block.queries};
}
PartRows KeysOf(const AttentionInBlocks& a, const AttentionBlock& block) {
  return {a.whole.batch, a.whole.keys, block.key, block.keys};
}

/// The operands of a block.
FusedMemory OperandsOf(const AttentionBlock& block, const KernelCall& call, const Workspace& workspace) {
  FusedMemory memory{};
  memory.q = RowsFrom(call.inputs[0], block.query);
  memory.k = RowsFrom(call.inputs[1], block.key);
  memory.v = RowsFrom(call.inputs[2], block.key);
  memory.workspace = workspace.data;
  memory.workspace_bytes = workspace.bytes;
  return memory;
}

/// Those of backward, but for lse.
FusedMemory GradOperandsOf(const AttentionBlock& block, const KernelCall& call, const Workspace& workspace) {
  FusedMemory memory = OperandsOf(block, call, workspace);
  memory.o = RowsFrom(call.inputs[3], block.query);
  memory.d_o = RowsFrom(call.inputs[5], block.query);
  return memory;
}

/// Where fp32 sums are made that become `result`: there, if it is fp32.
float* SumsIn(const Tensor& result, float* sums) { return result.dtype == Dtype::kF32 ? result.As<float>() : sums; }

void Round(const float* sums, const Tensor& result, cudaStream_t stream) {
  if (result.dtype != Dtype::kF32)
    LaunchCast(Dtype::kF32, result.dtype, sums, result.data, Volume(result.shape), stream);
}

/// One of the gradients: bf16 parts, and fp32 sums of them.
struct Gradient {
  void* part;
  float* sums;
};

/// lse of a block's queries, dense: cuDNN reads it no other way.
void* LseOf(const AttentionInBlocks& a, const AttentionBlock& block, const Tensor& lse, float* taken,
            cudaStream_t stream) {
  if (block.queries == a.whole.queries) return lse.data;
  LaunchTakeRows(QueriesOf(a, block), a.whole.heads, lse.As<float>(), taken, stream);
  return taken;
}

void ForwardInParts(const AttentionInBlocks& a, const KernelCall& call) {
  const ForwardScratch bytes = ForwardScratchOf(a);
  const Tensor &o = call.outputs[0], &lse = call.outputs[1];
  Scratch scratch(call);
  void* part = scratch.Take(bytes.o);
  auto* part_lse = scratch.Take<float>(bytes.lse);
  float* sums = SumsIn(o, scratch.Take<float>(bytes.sums));
  Before before = Before::kNothing;
  for (const AttentionBlock& block : a.blocks) {
    FusedMemory memory = OperandsOf(block, call, scratch.left());
    memory.o = part;
    memory.lse = part_lse;
    FusedAttention(CallOf(a, block), memory, StreamOf(call));
    LaunchMergePart(QueriesOf(a, block), {part, part_lse, a.whole.heads, a.whole.head_dim}, before, sums,
                    lse.As<float>(), StreamOf(call));
    before = Before::kSums;
  }
  Round(sums, o, StreamOf(call));
}

void BackwardInParts(const AttentionInBlocks& a, const KernelCall& call) {
  const BackwardScratch bytes = BackwardScratchOf(a);
  const std::span<const Tensor> in = call.inputs, out = call.outputs;
  Scratch scratch(call);
  void *dq = scratch.Take(bytes.dq), *dk = scratch.Take(bytes.dk), *dv = scratch.Take(bytes.dv);
  auto* lse = scratch.Take<float>(bytes.lse);
  const Gradient gradients[] = {{dq, SumsIn(out[0], scratch.Take<float>(bytes.dq_sums))},
                                {dk, SumsIn(out[1], scratch.Take<float>(bytes.dk_sums))},
                                {dv, SumsIn(out[2], scratch.Take<float>(bytes.dv_sums))}};
  Before before = Before::kNothing;
  for (const AttentionBlock& block : a.blocks) {
    FusedMemory memory = GradOperandsOf(block, call, scratch.left());
    memory.lse = LseOf(a, block, in[4], lse, StreamOf(call));
    memory.dq = dq, memory.dk = dk, memory.dv = dv;
    FusedAttentionGrad(CallOf(a, block), memory, StreamOf(call));
    for (size_t i = 0; i < 3; ++i)
      LaunchAddPart(i == 0 ? QueriesOf(a, block) : KeysOf(a, block), ColumnsOf(out[i]), gradients[i].part, before,
                    gradients[i].sums, StreamOf(call));
    before = Before::kSums;
  }
  for (size_t i = 0; i < 3; ++i) Round(gradients[i].sums, out[i], StreamOf(call));
}

}  // namespace

bool PrepareInBlocks(const AttentionInBlocks& a, const KernelCall& call) {
  return PrepareAll(a, UsableBytes(call.workspace_bytes) - ForwardScratchOf(a).Bytes(), PrepareFusedAttention);
}
bool PrepareGradInBlocks(const AttentionInBlocks& a, const KernelCall& call) {
  return PrepareAll(a, UsableBytes(call.workspace_bytes) - BackwardScratchOf(a).Bytes(), PrepareFusedAttentionGrad);
}

void AttentionByBlocks(const AttentionInBlocks& a, const KernelCall& call) {
  if (!a.IsOneCall()) return ForwardInParts(a, call);
  FusedMemory memory = OperandsOf(a.blocks[0], call, Scratch(call).left());
  memory.o = call.outputs[0].data;
  memory.lse = call.outputs[1].data;
  FusedAttention(CallOf(a, a.blocks[0]), memory, StreamOf(call));
}

void AttentionGradByBlocks(const AttentionInBlocks& a, const KernelCall& call) {
  if (!a.IsOneCall()) return BackwardInParts(a, call);
  FusedMemory memory = GradOperandsOf(a.blocks[0], call, Scratch(call).left());
  memory.lse = call.inputs[4].data;
  memory.dq = call.outputs[0].data, memory.dk = call.outputs[1].data, memory.dv = call.outputs[2].data;
  FusedAttentionGrad(CallOf(a, a.blocks[0]), memory, StreamOf(call));
}

}  // namespace espalier::cuda
