#include "parts.hpp"

#include <algorithm>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/util/error.hpp"
#include "kernels/cuda/runtime/workspace.hpp"

namespace espalier::cuda {
namespace {

/// The stream that runs every other part. Never destroyed: when a process ends, the driver may have ended before.
struct SideStream {
  SideStream() {
    constexpr int kLowest = 0;
    CUDA_CALL(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, kLowest));
    CUDA_CALL(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    CUDA_CALL(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  }
  void Fork(cudaStream_t from) const { Wait(from, forked, stream); }
  void Join(cudaStream_t to) const { Wait(stream, joined, to); }

  cudaStream_t stream = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;

 private:
  static void Wait(cudaStream_t first, cudaEvent_t event, cudaStream_t then) {
    CUDA_CALL(cudaEventRecord(event, first));
    CUDA_CALL(cudaStreamWaitEvent(then, event, 0));
  }
};

const SideStream& Side() {
  static const auto& side = *new SideStream;
  return side;
}

int64_t StreamsOf(const FusedCall& call) {
  return std::min(call.backward.streams, PartsIn(call.shape, PartOfBackward(call.shape, call.backward)));
}

/// The address of a bf16 tensor, `elements` further on.
void* Advanced(void* data, int64_t elements) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + elements * 2;
}

/// The operands and results of the part that begins at sequence `batch` and kv head `kv_head`.
FusedMemory PartOf(const FusedMemory& m, const FusedCall& call, int64_t batch, int64_t kv_head) {
  const AttentionShape& w = call.shape;
  const int64_t head = kv_head * (w.heads / w.kv_heads);
  const auto query = [&](int64_t rows) { return batch * rows * w.QueryRow() + head * w.head_dim; };
  const auto key = [&](int64_t rows) { return batch * rows * w.KeyRow() + kv_head * w.head_dim; };
  const auto value = [&](int64_t rows) { return batch * rows * w.ValueRow() + kv_head * w.ValueDim(); };
  FusedMemory part = m;
  part.q = Advanced(m.q, query(call.query_rows));
  for (void** x : {&part.o, &part.d_o}) *x = Advanced(*x, (batch * call.query_rows * w.heads + head) * w.ValueDim());
  part.k = Advanced(m.k, key(call.key_rows));
  part.v = Advanced(m.v, value(call.key_rows));
  part.dq = Advanced(m.dq, query(w.queries));
  part.dk = Advanced(m.dk, key(w.keys));
  part.dv = Advanced(m.dv, value(w.keys));
  part.lse = static_cast<float*>(m.lse) + (batch * w.heads + head) * w.queries;
  return part;
}

}  // namespace

int64_t UsableByPart(const FusedCall& call, int64_t bytes) {
  const int64_t streams = StreamsOf(call);
  return streams > 1 ? ShareOfStream(UsableBytes(bytes), streams) : UsableBytes(bytes);
}

void PrepareParts(const FusedCall& call) {
  if (StreamsOf(call) > 1) Side();
}

void ForEachPart(const FusedCall& call, AttentionPart part, const FusedMemory& memory, cudaStream_t stream,
                 const std::function<void(const FusedMemory& of_part, cudaStream_t on)>& run) {
  const int64_t streams = StreamsOf(call), share = UsableByPart(call, memory.workspace_bytes);
  CHECK(streams <= 2, "parts of attention on {} streams", streams);
  const Workspace workspace = AlignedWorkspace(memory.workspace, memory.workspace_bytes);
  if (streams > 1) Side().Fork(stream);
  int64_t index = 0;
  for (int64_t batch = 0; batch < call.shape.batch; batch += part.batch)
    for (int64_t kv_head = 0; kv_head < call.shape.kv_heads; kv_head += part.kv_heads, ++index) {
      const bool aside = streams > 1 && index % 2 == 1;
      FusedMemory of_part = PartOf(memory, call, batch, kv_head);
      of_part.workspace = static_cast<std::byte*>(workspace.data) + (aside ? share : 0);
      of_part.workspace_bytes = share;
      run(of_part, aside ? Side().stream : stream);
    }
  if (streams > 1) Side().Join(stream);
}

}  // namespace espalier::cuda
