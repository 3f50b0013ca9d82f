// cuDNN's fused attention, through its front end's graphs. Only this file includes the front end, which takes most of a
// minute to compile.
#include "fused_attention.hpp"

#include <cudnn_frontend.h>
#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "choose_part.hpp"
#include "espalier/util/error.hpp"
#include "kernels/cuda/runtime/workspace.hpp"
#include "parts.hpp"
#include "planned_gpu.hpp"

namespace espalier::cuda {
namespace {

namespace fe = cudnn_frontend;
using TensorAttributes = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Names of a graph's tensors.
enum Id : int64_t { kQ = 1, kK, kV, kO, kLse, kDo, kDq, kDk, kDv };

using Direction = AttentionDirection;

/// The call that a graph computes: `part` of the sequences and heads of tensors that hold `whole`. Operands may be rows
/// of longer sequences. Before a part is chosen, `part` is the planned one.
struct Key {
  AttentionShape whole;
  AttentionPart part;
  int64_t query_rows, key_rows;
  bool causal;
  Direction direction;
  bool deterministic, ordered;

  auto Fields() const {
    return std::tuple(whole.batch, whole.queries, whole.keys, whole.heads, whole.kv_heads, whole.head_dim,
                      whole.ValueDim(), whole.score_factor, part.batch, part.kv_heads, query_rows, key_rows, causal,
                      whole.window, whole.joined_row, direction, deterministic, ordered);
  }
  bool operator<(const Key& other) const { return Fields() < other.Fields(); }
  int64_t Heads() const { return part.kv_heads * (whole.heads / whole.kv_heads); }
};

Key KeyOf(const FusedCall& call, Direction direction) {
  const bool deterministic = direction == Direction::kBackward && call.backward.deterministic;
  const AttentionPart whole{call.shape.batch, call.shape.kv_heads};
  return {call.shape,        deterministic ? PartOfBackward(call.shape, call.backward) : whole,
          call.query_rows,   call.key_rows,
          call.shape.causal, direction,
          deterministic,     deterministic && call.backward.score_bytes == 0};
}

void CheckStatus(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("{} failed: {}", what, cudnnGetErrorString(status)));
}

/// Only the thread that issues kernels uses it.
cudnnHandle_t Handle() {
  static const cudnnHandle_t handle = [] {
    cudnnHandle_t made = nullptr;
    CheckStatus(cudnnCreate(&made), "cudnnCreate");
    return made;
  }();
  return handle;
}

/// The library has no kernel for a graph.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void CheckGraph(fe::error_t error, const char* step) {
  if (!error.is_good()) throw Refused(fmt::format("{}: {}", step, error.get_message()));
}

constexpr size_t kFirstOrdered = 92500;

/// The front end reads from the environment whether scores of deterministic backward may be stored.
void ChooseOrder(const Key& key) {
  if (key.ordered && cudnnGetVersion() < kFirstOrdered)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("run.attention_backward = \"ordered\" needs cuDNN 9.25, this is {}.{}: use \"parts\", "
                                "\"large_parts\" or \"two_streams\"",
                                cudnnGetVersion() / 10000, cudnnGetVersion() / 100 % 100));
  constexpr const char *kNoScores = "0", *kAllScores = "-1";
  setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", key.ordered ? kNoScores : kAllScores, 1);
}

/// A graph that knows the workspace of its first plan before the plan is compiled.
class Graph : public fe::graph::Graph {
 public:
  /// Tells it the GPU of its plans, if it has no handle of one. Ops that are added later know it.
  void SetGpu(const PlannedGpu& gpu) {
    const auto properties = std::make_shared<fe::DeviceProperties>();
    CheckGraph(properties->deserialize({gpu.description.begin(), gpu.description.end()}), "DeviceProperties");
    set_device_properties(properties);
    set_sm_version(gpu.capability);
  }

  /// After check_support. The front end says only whether a plan keeps to a limit, so this finds the smallest limit.
  int64_t WantedBytes() const {
    constexpr int64_t kMax = int64_t{1} << 48;
    int64_t plan = 0;
    while (!KeepsTo(kMax, plan)) ++plan;
    int64_t less = -1, enough = kMax;
    while (enough - less > 1) {
      const int64_t limit = less + (enough - less) / 2;
      (KeepsTo(limit, plan) ? enough : less) = limit;
    }
    return enough + get_fe_workspace_size_subtree();
  }

 private:
  bool KeepsTo(int64_t limit, int64_t plan) const {
    CHECK(plan < get_execution_plan_count(), "no plan of {} is supported", get_execution_plan_count());
    auto limited = plans;
    limited.set_max_workspace_allowed(limit);
    return limited.check_support_at_index(plan).is_good();
  }
};

/// Makes the graph of a key.
class Builder {
 public:
  explicit Builder(const Key& key) : key_(key), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  /// The library supports the graph, and can say what its plan wants. The plan is not compiled.
  std::shared_ptr<Graph> Build() {
    if (key_.whole.keys % 128 != 0 && cudnnGetVersion() < 91600)
      throw Refused(
          "below 9.16 it pads keys to a multiple of 128, by a copy from the host that no captured step may hold");
    ChooseOrder(key_);
    const PlannedGpu gpu = GetPlannedGpu();
    if (!gpu.description.empty()) graph_->SetGpu(gpu);
    if (key_.direction == Direction::kForward)
      AddForward();
    else
      AddBackward();
    CheckGraph(graph_->validate(), "validate");
    CheckGraph(graph_->build_operation_graph(gpu.description.empty() ? Handle() : nullptr), "build_operation_graph");
    CheckGraph(graph_->create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans");
    CheckGraph(graph_->check_support(), "check_support");
    return graph_;
  }

 private:
  using Dims = std::vector<int64_t>;

  /// [b,h,s,e] of a part of tensors that hold the rows of all heads side by side.
  Dims QueryDims() const { return {key_.part.batch, key_.Heads(), key_.whole.queries, key_.whole.head_dim}; }
  Dims KeyDims() const { return {key_.part.batch, key_.part.kv_heads, key_.whole.keys, key_.whole.head_dim}; }
  Dims ValueDims() const { return {key_.part.batch, key_.part.kv_heads, key_.whole.keys, key_.whole.ValueDim()}; }
  Dims ResultDims() const { return {key_.part.batch, key_.Heads(), key_.whole.queries, key_.whole.ValueDim()}; }
  /// Consecutive sequences of `rows` rows each. Results are dense.
  Dims QueryStrides(int64_t rows) const { return StridesOf(rows, key_.whole.QueryRow(), key_.whole.head_dim); }
  Dims KeyStrides(int64_t rows) const { return StridesOf(rows, key_.whole.KeyRow(), key_.whole.head_dim); }
  Dims ValueStrides(int64_t rows) const { return StridesOf(rows, key_.whole.ValueRow(), key_.whole.ValueDim()); }
  Dims ResultStrides(int64_t rows) const { return StridesOf(rows, key_.whole.ResultRow(), key_.whole.ValueDim()); }
  static Dims StridesOf(int64_t rows, int64_t row, int64_t features) { return {rows * row, features, row, 1}; }
  Dims LseDims() const { return {key_.part.batch, key_.Heads(), key_.whole.queries, 1}; }
  /// Dense: if heads are split, there is only one sequence.
  Dims LseStrides() const { return {key_.Heads() * key_.whole.queries, key_.whole.queries, 1, 1}; }

  TensorAttributes Input(Id id, Dims dims, Dims strides, fe::DataType_t type = fe::DataType_t::BFLOAT16) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(id)
                              .set_dim(std::move(dims))
                              .set_stride(std::move(strides))
                              .set_data_type(type));
  }
  TensorAttributes Queries(Id id) { return Input(id, QueryDims(), QueryStrides(key_.query_rows)); }
  TensorAttributes Results(Id id) { return Input(id, ResultDims(), ResultStrides(key_.query_rows)); }
  TensorAttributes Keys(Id id) { return Input(id, KeyDims(), KeyStrides(key_.key_rows)); }
  TensorAttributes Values(Id id) { return Input(id, ValueDims(), ValueStrides(key_.key_rows)); }
  static void Output(const TensorAttributes& x, Id id, Dims dims, Dims strides,
                     fe::DataType_t type = fe::DataType_t::BFLOAT16) {
    x->set_output(true).set_uid(id).set_dim(std::move(dims)).set_stride(std::move(strides)).set_data_type(type);
  }

  template <typename Options>
  void SetMask(Options& options) const {
    options.set_attn_scale(key_.whole.score_factor / std::sqrt(static_cast<float>(key_.whole.head_dim)));
    if (!key_.causal) return;
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
    options.set_diagonal_band_right_bound(0);
    // Row i sees column j iff i < j + bound.
    if (key_.whole.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key_.whole.window));
  }

  void AddForward() {
    fe::graph::SDPA_attributes options;
    options.set_generate_stats(true);
    SetMask(options);
    auto [o, lse] = graph_->sdpa(Queries(kQ), Keys(kK), Values(kV), options);
    Output(o, kO, ResultDims(), ResultStrides(key_.whole.queries));
    Output(lse, kLse, LseDims(), LseStrides(), fe::DataType_t::FLOAT);
  }

  void AddBackward() {
    fe::graph::SDPA_backward_attributes options;
    options.set_deterministic_algorithm(key_.deterministic);
    SetMask(options);
    const TensorAttributes lse = Input(kLse, LseDims(), LseStrides(), fe::DataType_t::FLOAT);
    auto [dq, dk, dv] =
        graph_->sdpa_backward(Queries(kQ), Keys(kK), Values(kV), Results(kO), Results(kDo), lse, options);
    Output(dq, kDq, QueryDims(), QueryStrides(key_.whole.queries));
    Output(dk, kDk, KeyDims(), KeyStrides(key_.whole.keys));
    Output(dv, kDv, ValueDims(), ValueStrides(key_.whole.keys));
  }

  Key key_;
  std::shared_ptr<Graph> graph_;
};

std::string ToString(const Key& key) {
  const AttentionShape& w = key.whole;
  const std::string window = w.window > 0 ? fmt::format(", window {}", w.window) : "";
  const std::string values = w.ValueDim() != w.head_dim ? fmt::format(", values of {}", w.ValueDim()) : "";
  return fmt::format("{} of [{},{},{} x {}] queries, {} keys, {} kv heads{}, {}{}",
                     key.direction == Direction::kForward ? "attention" : "attention_grad", w.batch, w.queries, w.heads,
                     w.head_dim, w.keys, w.kv_heads, values, key.causal ? "causal" : "not causal", window);
}

/// The graph of a call, cut to the part that it computes in one call; without a graph the plain kernels compute the
/// call.
struct ChosenGraph {
  Key key;
  std::shared_ptr<Graph> graph;
  int64_t needed = 0;  ///< bytes of workspace
};

ChosenGraph Choose(const Key& planned, int64_t usable) {
  ChosenGraph chosen{planned, nullptr};
  const auto ask = [&](AttentionPart part) {
    if (planned.direction == Direction::kForward && part.Size() < planned.part.Size())
      return Offer{0, fmt::format("forward is one call, which wants {} bytes of {}", chosen.needed, usable)};
    chosen.key.part = part;
    try {
      chosen.graph = Builder(chosen.key).Build();
      chosen.needed = chosen.graph->WantedBytes();
      if (chosen.needed <= usable) {
        CheckGraph(chosen.graph->build_plans(), "build_plans");
        chosen.needed = chosen.graph->get_workspace_size();  // of another plan, if the first cannot be compiled
      }
    } catch (const Refused& refused) {
      return Offer{0, refused.what()};
    }
    return Offer{chosen.needed, ""};
  };
  if (!ChoosePart(planned.whole, planned.part, usable, ask, ToString(planned))) chosen.graph = nullptr;
  return chosen;
}

/// Made once for each call, before the first step, and again if the same call has less memory elsewhere. Graphs are
/// never destroyed: when a process ends, libraries that cuDNN loaded after the first call have already ended.
const ChosenGraph& Find(const Key& planned, int64_t usable) {
  static std::mutex mutex;
  static auto& graphs = *new std::map<Key, ChosenGraph>;
  const std::lock_guard lock(mutex);
  auto it = graphs.find(planned);
  if (it == graphs.end() || (it->second.graph != nullptr && it->second.needed > usable))
    it = graphs.insert_or_assign(planned, Choose(planned, usable)).first;
  return it->second;
}

void Execute(const ChosenGraph& chosen, const FusedMemory& m, cudaStream_t stream) {
  const Key& key = chosen.key;
  std::unordered_map<int64_t, void*> tensors = {{kQ, m.q}, {kK, m.k}, {kV, m.v}, {kO, m.o}, {kLse, m.lse}};
  if (key.direction == Direction::kBackward) tensors.insert({{kDo, m.d_o}, {kDq, m.dq}, {kDk, m.dk}, {kDv, m.dv}});
  CheckStatus(cudnnSetStream(Handle(), stream), "cudnnSetStream");
  fe::error_t error = chosen.graph->execute(Handle(), tensors, AlignedWorkspace(m.workspace, m.workspace_bytes).data);
  if (!error.is_good())
    throw std::runtime_error(fmt::format("cuDNN failed in {}: {}", ToString(key), error.get_message()));
}

/// Bytes of workspace that one part of a call may use.
int64_t Usable(const FusedCall& call, Direction direction, int64_t bytes) {
  return direction == Direction::kBackward ? UsableByPart(call, bytes) : UsableBytes(bytes);
}

bool Prepare(const FusedCall& call, Direction direction, int64_t workspace_bytes) {
  if (direction == Direction::kBackward) PrepareParts(call);
  return Find(KeyOf(call, direction), Usable(call, direction, workspace_bytes)).graph != nullptr;
}

const ChosenGraph& Prepared(const FusedCall& call, Direction direction, int64_t workspace_bytes) {
  const Key key = KeyOf(call, direction);
  const ChosenGraph& chosen = Find(key, Usable(call, direction, workspace_bytes));
  CHECK(chosen.graph != nullptr, "{} is not prepared", ToString(key));
  return chosen;
}

}  // namespace

int FusedAttentionMajor() { return GetPlannedGpu().capability / 10; }

Offer AskFusedAttention(const FusedCall& call, Direction direction, AttentionPart part) {
  Key key = KeyOf(call, direction);
  key.part = part;
  try {
    return {Builder(key).Build()->WantedBytes(), ""};
  } catch (const Refused& refused) {
    return {0, refused.what()};
  }
}

bool PrepareFusedAttention(const FusedCall& call, int64_t workspace_bytes) {
  return Prepare(call, Direction::kForward, workspace_bytes);
}
bool PrepareFusedAttentionGrad(const FusedCall& call, int64_t workspace_bytes) {
  return Prepare(call, Direction::kBackward, workspace_bytes);
}

void FusedAttention(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream) {
  Execute(Prepared(call, Direction::kForward, memory.workspace_bytes), memory, stream);
}
void FusedAttentionGrad(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream) {
  const ChosenGraph& chosen = Prepared(call, Direction::kBackward, memory.workspace_bytes);
  ForEachPart(call, chosen.key.part, memory, stream,
              [&](const FusedMemory& part, cudaStream_t on) { Execute(chosen, part, on); });
}

}  // namespace espalier::cuda
