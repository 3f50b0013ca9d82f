// Attention as a plain loop, in place of src/kernels/cuda/attention/fused_attention.cpp: bf16 operands and results,
// fp32 inside, with the library's masks and memory. ESPALIER_EMULATED_CUDNN in the environment: `none` is a GPU without
// cuDNN, `say` prints prepared calls on stderr, `hungry` needs more workspace than planned for the planned part of
// backward, `starving` for every part. ESPALIER_EMULATED_SLOW_BACKWARD=WAY=MS,...: a
// call by such a value of run.attention_backward takes so many milliseconds longer.
#include "kernels/cuda/attention/fused_attention.hpp"

#include <cudnn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "emulate.hpp"
#include "espalier/util/error.hpp"
#include "fused_attention_calls.hpp"
#include "kernels/cuda/attention/choose_part.hpp"
#include "kernels/cuda/attention/parts.hpp"
#include "kernels/cuda/runtime/workspace.hpp"
#include "switches.hpp"

namespace espalier {
namespace {

int64_t calls = 0;

}  // namespace

int64_t emulation::FusedAttentionCalls() { return calls; }

}  // namespace espalier

namespace espalier::cuda {
namespace {

bool IsEmulated(std::string_view how) {
  const char* is = std::getenv("ESPALIER_EMULATED_CUDNN");
  return is != nullptr && is == how;
}

/// Rows of one head as fp32 [rows, e].
struct Rows {
  std::vector<float> values;
  size_t e;

  Rows(int64_t rows, int64_t head_dim)
      : values(static_cast<size_t>(rows * head_dim)), e(static_cast<size_t>(head_dim)) {}
  float* operator[](int64_t row) { return values.data() + static_cast<size_t>(row) * e; }
  const float* operator[](int64_t row) const { return values.data() + static_cast<size_t>(row) * e; }
};

/// Rows of one head in a tensor [b,rows,heads e], whose rows are `stride` elements apart.
struct Place {
  int64_t batch, rows, stride, head, head_dim;
  Bf16* At(void* x, int64_t row) const {
    return static_cast<Bf16*>(x) + (batch * rows + row) * stride + head * head_dim;
  }
};

Rows Load(void* x, const Place& at, int64_t rows) {
  Rows loaded(rows, at.head_dim);
  for (int64_t i = 0; i < rows; ++i)
    std::transform(at.At(x, i), at.At(x, i) + at.head_dim, loaded[i], [](Bf16 y) { return ToFloat(y); });
  return loaded;
}

void Store(const Rows& rows, void* x, const Place& at) {
  for (int64_t i = 0; i * at.head_dim < std::ssize(rows.values); ++i)
    std::transform(rows[i], rows[i] + at.head_dim, at.At(x, i), [](float y) { return ToBf16(y); });
}

float Dot(const float* a, const float* b, size_t e) {
  float sum = 0;
  for (size_t c = 0; c < e; ++c) sum += a[c] * b[c];
  return sum;
}

void Add(float weight, const float* x, float* sum, size_t e) {
  for (size_t c = 0; c < e; ++c) sum[c] += weight * x[c];
}

/// One head of queries in one sequence of a call.
struct Head {
  const FusedCall& call;
  int64_t batch, head;

  const AttentionShape& shape() const { return call.shape; }
  Place Queries(int64_t rows) const { return {batch, rows, shape().QueryRow(), head, shape().head_dim}; }
  /// Place of the dense o and its gradient.
  Place Results(int64_t rows) const { return {batch, rows, shape().ResultRow(), head, shape().ValueDim()}; }
  Place Keys(int64_t rows) const { return {batch, rows, shape().KeyRow(), shape().KvHeadOf(head), shape().head_dim}; }
  Place Values(int64_t rows) const {
    return {batch, rows, shape().ValueRow(), shape().KvHeadOf(head), shape().ValueDim()};
  }
  int64_t Visible(int64_t query) const { return call.shape.causal ? query + 1 : shape().keys; }
  int64_t First(int64_t query) const {
    return shape().window > 0 ? std::max<int64_t>(0, Visible(query) - shape().window) : 0;
  }
  float Scale() const { return shape().score_factor / std::sqrt(static_cast<float>(shape().head_dim)); }
  float* Lse(void* lse) const { return static_cast<float*>(lse) + (batch * shape().heads + head) * shape().queries; }
};

void Forward(const Head& h, const FusedMemory& m) {
  const AttentionShape& s = h.shape();
  const Rows q = Load(m.q, h.Queries(h.call.query_rows), s.queries), k = Load(m.k, h.Keys(h.call.key_rows), s.keys),
             v = Load(m.v, h.Values(h.call.key_rows), s.keys);
  Rows o(s.queries, s.ValueDim());
  std::vector<float> p(static_cast<size_t>(s.keys));
  for (int64_t i = 0; i < s.queries; ++i) {
    const int64_t first = h.First(i);
    const std::span<float> seen(p.data(), static_cast<size_t>(h.Visible(i) - first));
    for (size_t j = 0; j < seen.size(); ++j) seen[j] = h.Scale() * Dot(q[i], k[first + static_cast<int64_t>(j)], q.e);
    const float largest = *std::ranges::max_element(seen);
    float sum = 0;
    for (float& x : seen) sum += x = std::exp(x - largest);
    for (size_t j = 0; j < seen.size(); ++j) Add(seen[j] / sum, v[first + static_cast<int64_t>(j)], o[i], o.e);
    h.Lse(m.lse)[i] = largest + std::log(sum);
  }
  Store(o, m.o, h.Results(s.queries));
}

/// Adds one head of queries to dk and dv, and computes its dq.
void Backward(const Head& h, const FusedMemory& m, Rows& dk, Rows& dv) {
  const AttentionShape& s = h.shape();
  const Place results = h.Results(h.call.query_rows);
  const Rows q = Load(m.q, h.Queries(h.call.query_rows), s.queries), o = Load(m.o, results, s.queries),
             d_o = Load(m.d_o, results, s.queries);
  const Rows k = Load(m.k, h.Keys(h.call.key_rows), s.keys), v = Load(m.v, h.Values(h.call.key_rows), s.keys);
  Rows dq(s.queries, s.head_dim);
  for (int64_t i = 0; i < s.queries; ++i) {
    const float mean = Dot(o[i], d_o[i], o.e), lse = h.Lse(m.lse)[i];
    for (int64_t j = h.First(i); j < h.Visible(i); ++j) {
      const float p = std::exp(h.Scale() * Dot(q[i], k[j], q.e) - lse),
                  ds = h.Scale() * p * (Dot(d_o[i], v[j], v.e) - mean);
      Add(p, d_o[i], dv[j], v.e);
      Add(ds, k[j], dq[i], k.e);
      Add(ds, q[i], dk[j], q.e);
    }
  }
  Store(dq, m.dq, h.Queries(s.queries));
}

void BackwardOfKeys(const FusedCall& call, const FusedMemory& m, int64_t batch, int64_t kv_head) {
  const AttentionShape& s = call.shape;
  const int64_t group = s.heads / s.kv_heads;
  Rows dk(s.keys, s.head_dim), dv(s.keys, s.ValueDim());
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) Backward({call, batch, head}, m, dk, dv);
  const Head first{call, batch, kv_head * group};
  Store(dk, m.dk, first.Keys(s.keys));
  Store(dv, m.dv, first.Values(s.keys));
}

/// Checks every operand except lse, as the front end does.
void CheckAligned(const FusedMemory& m) {
  constexpr uintptr_t kAlignment = 16;
  for (const void* x : {m.q, m.k, m.v, m.o, m.d_o, m.dq, m.dk, m.dv})
    CHECK(reinterpret_cast<uintptr_t>(x) % kAlignment == 0, "attention's operands on no multiple of {} bytes",
          kAlignment);
}

/// Overwrites the workspace, whose contents the library leaves undefined.
void Scribble(const FusedMemory& m) {
  const Workspace workspace = AlignedWorkspace(m.workspace, m.workspace_bytes);
  std::memset(workspace.data, 0xff, static_cast<size_t>(workspace.bytes));
}

/// Bytes for a part of a call, by the formulas of the plan.
int64_t WantedBytes(const FusedCall& call, AttentionDirection direction, AttentionPart part) {
  return direction == AttentionDirection::kForward ? FusedAttentionBytes(call.shape)
                                                   : BackwardPartBytes(call.shape, part, call.backward);
}

/// The part that the library computes in one call. A library that needs more than the plan is emulated, too.
std::optional<AttentionPart> Choose(const char* what, const FusedCall& call, AttentionDirection direction,
                                    AttentionPart planned, int64_t usable) {
  const AttentionShape& s = call.shape;
  std::string more = s.window > 0 ? fmt::format(", window {}", s.window) : "";
  if (direction == AttentionDirection::kBackward && !call.backward.deterministic) more += ", added in any order";
  const std::string text =
      fmt::format("{} of [{},{},{} x {}] queries, {} keys, {} kv heads, {}{}", what, s.batch, s.queries, s.heads,
                  s.head_dim, s.keys, s.kv_heads, s.causal ? "causal" : "not causal", more);
  const int64_t wanted = WantedBytes(call, direction, planned);
  CHECK(wanted <= usable, "{} may use {} bytes, {} are left", text, wanted, usable);
  CHECK(!s.causal || s.queries == s.keys, "{}: the diagonal of what is no square", text);
  CHECK(s.window == 0 || s.causal, "{}: a window without its diagonal", text);
  static std::set<std::string> said;
  if (IsEmulated("say") && said.insert(text).second) fmt::print(stderr, "emulated cuDNN: {}\n", text);
  const auto ask = [&](AttentionPart part) {
    const bool too_much =
        IsEmulated("starving") ||
        (IsEmulated("hungry") && direction == AttentionDirection::kBackward && part.Size() >= planned.Size());
    return Offer{too_much ? usable + 1 : WantedBytes(call, direction, part), ""};
  };
  return ChoosePart(s, planned, usable, ask, text);
}

/// Takes its time for a way of cuDNN that a switch makes slow.
void Dawdle(const BackwardMethod& method) {
  for (const std::string way : {"parts", "large_parts", "two_streams", "ordered"}) {
    const BackwardMethod slow = BackwardMethodOf(way);
    if (method.score_bytes == slow.score_bytes && method.streams == slow.streams && method.deterministic)
      std::this_thread::sleep_for(
          std::chrono::milliseconds(emulation::SwitchedNumber("ESPALIER_EMULATED_SLOW_BACKWARD", way + "=", 0)));
  }
}

std::optional<AttentionPart> ChooseForward(const FusedCall& call, int64_t workspace_bytes) {
  return Choose("attention", call, AttentionDirection::kForward, {call.shape.batch, call.shape.kv_heads},
                UsableBytes(workspace_bytes));
}

std::optional<AttentionPart> ChooseBackward(const FusedCall& call, int64_t workspace_bytes) {
  return Choose("attention_grad", call, AttentionDirection::kBackward, PartOfBackward(call.shape, call.backward),
                UsableByPart(call, workspace_bytes));
}

}  // namespace

int FusedAttentionMajor() { return IsEmulated("none") ? 0 : emulation::Capability() / 10; }

bool PrepareFusedAttention(const FusedCall& call, int64_t workspace_bytes) {
  return ChooseForward(call, workspace_bytes).has_value();
}
bool PrepareFusedAttentionGrad(const FusedCall& call, int64_t workspace_bytes) {
  PrepareParts(call);
  return ChooseBackward(call, workspace_bytes).has_value();
}

void FusedAttention(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream) {
  ++calls;
  CheckAligned(memory);
  emulation::issue(stream, [=] {
    Scribble(memory);
    for (int64_t batch = 0; batch < call.shape.batch; ++batch)
      for (int64_t head = 0; head < call.shape.heads; ++head) Forward({call, batch, head}, memory);
  });
}

void FusedAttentionGrad(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream) {
  ++calls;
  CheckAligned(memory);
  const AttentionPart part = ChooseBackward(call, memory.workspace_bytes).value();
  emulation::issue(stream, [method = call.backward] { Dawdle(method); });
  ForEachPart(call, part, memory, stream, [&](const FusedMemory& m, cudaStream_t on) {
    emulation::issue(on, [=] {
      Scribble(m);
      for (int64_t batch = 0; batch < part.batch; ++batch)
        for (int64_t kv_head = 0; kv_head < part.kv_heads; ++kv_head) BackwardOfKeys(call, m, batch, kv_head);
    });
  });
}

}  // namespace espalier::cuda

extern "C" size_t cudnnGetVersion() {
  return static_cast<size_t>(espalier::emulation::Version("cuDNN", CUDNN_VERSION, 10000, 100));
}
