// Attention by src/kernels/cuda/attention over emulated cuDNN: values against fp64, the workspace that the real library
// wants, lifetimes of plans, and what the library refuses. (The tests of kernels compare many more extents.)
#include <cudnn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/types.hpp"
#include "kernels/cuda/attention/fused_attention.hpp"
#include "kernels/cuda/runtime/workspace.hpp"

namespace espalier::cuda {
namespace {

using Direction = AttentionDirection;

/// An environment variable, for a while.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

/// [rows of all sequences, features] in bf16, with values that depend on nothing but `seed`.
struct Matrix {
  int64_t features;
  std::vector<Bf16> values;

  Matrix(int64_t rows, int64_t features, unsigned seed)
      : features(features), values(static_cast<size_t>(rows * features)) {
    std::mt19937 random(seed);
    for (Bf16& x : values) x = ToBf16(static_cast<float>(random() % 256) / 128 - 1);
  }
  double At(int64_t row, int64_t feature) const {
    return ToFloat(values[static_cast<size_t>(row * features + feature)]);
  }
};

/// Sums of the gradients in fp64, like a Matrix.
struct Sums {
  int64_t features;
  std::vector<double> values;

  explicit Sums(const Matrix& like) : features(like.features), values(like.values.size()) {}
  double& At(int64_t row, int64_t feature) { return values[static_cast<size_t>(row * features + feature)]; }
};

/// The largest deviation, in units of the largest element.
double Deviation(const Matrix& made, const Sums& expected) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double deviation = std::abs(ToFloat(made.values[i]) - expected.values[i]);
    if (std::isnan(deviation)) return std::numeric_limits<double>::infinity();
    most = std::max(most, deviation);
    largest = std::max(largest, std::abs(expected.values[i]));
  }
  return most / largest;
}

/// Operands and results of one call. Sequences of operands follow each other with `gap` rows between them.
struct Attention {
  AttentionShape shape;
  int64_t query_rows, key_rows;
  BackwardMethod method;
  Matrix q, k, v, o, spread_o, d_o, dq, dk, dv;
  std::vector<float> lse;
  Sums of_o, of_dq, of_dk, of_dv;
  std::vector<double> of_lse;
  std::vector<std::byte> workspace;

  Attention(const AttentionShape& x, int64_t gap, BackwardMethod way)
      : shape(x),
        query_rows(x.queries + gap),
        key_rows(x.keys + gap),
        method(way),
        q(x.batch * query_rows, x.QueryRow(), 1),
        k(x.batch * key_rows, x.KeyRow(), 2),
        v(x.batch * key_rows, x.ValueRow(), 3),
        o(x.batch * x.queries, x.ResultRow(), 4),
        spread_o(x.batch * query_rows, x.ResultRow(), 4),
        d_o(x.batch * query_rows, x.ResultRow(), 5),
        dq(x.batch * x.queries, x.QueryRow(), 6),
        dk(x.batch * x.keys, x.KeyRow(), 7),
        dv(x.batch * x.keys, x.ValueRow(), 8),
        lse(static_cast<size_t>(x.batch * x.heads * x.queries)),
        of_o(o),
        of_dq(dq),
        of_dk(dk),
        of_dv(dv),
        of_lse(lse.size()) {}

  FusedCall Call() const { return {shape, query_rows, key_rows, method}; }

  /// The workspace begins as far before a multiple of the library's alignment as a buffer can, and holds zeros.
  FusedMemory Memory(int64_t bytes, Direction direction = Direction::kBackward) {
    workspace.assign(static_cast<size_t>(bytes + 2 * kWorkspaceAlignment), std::byte{});
    const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace.data()) % kWorkspaceAlignment);
    return {.q = q.values.data(),
            .k = k.values.data(),
            .v = v.values.data(),
            .o = (direction == Direction::kForward ? o : spread_o).values.data(),
            .lse = lse.data(),
            .d_o = d_o.values.data(),
            .dq = dq.values.data(),
            .dk = dk.values.data(),
            .dv = dv.values.data(),
            .workspace = workspace.data() + kWorkspaceAlignment - at + kBufferAlignment,
            .workspace_bytes = bytes};
  }

  void Run() {
    Compute();
    const int64_t forward = kWorkspaceSlack + FusedAttentionBytes(shape),
                  backward = kWorkspaceSlack + FusedAttentionGradBytes(shape, method);
    ASSERT_TRUE(PrepareFusedAttention(Call(), forward));
    FusedAttention(Call(), Memory(forward, Direction::kForward), nullptr);
    CUDA_CALL(cudaStreamSynchronize(nullptr));
    EXPECT_LT(Deviation(o, of_o), 0.01);
    for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], of_lse[i], 1e-5);
    Spread();
    ASSERT_TRUE(PrepareFusedAttentionGrad(Call(), backward));
    FusedAttentionGrad(Call(), Memory(backward), nullptr);
    CUDA_CALL(cudaStreamSynchronize(nullptr));
    EXPECT_LT(Deviation(dq, of_dq), 0.01);
    EXPECT_LT(Deviation(dk, of_dk), 0.01);
    EXPECT_LT(Deviation(dv, of_dv), 0.01);
  }

 private:
  /// Backward reads o with the rows of the queries.
  void Spread() {
    for (int64_t b = 0; b < shape.batch; ++b)
      std::copy_n(o.values.begin() + b * shape.queries * o.features, shape.queries * o.features,
                  spread_o.values.begin() + b * query_rows * o.features);
  }

  bool Sees(int64_t i, int64_t j) const {
    return !shape.causal || (j <= i && (shape.window == 0 || i < j + shape.window));
  }

  void Compute() {
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t i = 0; i < shape.queries; ++i) ComputeRow(b, h, i);
  }

  void ComputeRow(int64_t b, int64_t h, int64_t i) {
    const int64_t e = shape.head_dim, d = shape.ValueDim(), g = shape.KvHeadOf(h), row = b * query_rows + i,
                  dense = b * shape.queries + i;
    const double scale = shape.score_factor / std::sqrt(static_cast<double>(e));
    std::vector<double> p(static_cast<size_t>(shape.keys));
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < shape.keys; ++j) {
      double score = 0;
      for (int64_t c = 0; c < e; ++c) score += q.At(row, h * e + c) * k.At(b * key_rows + j, g * e + c);
      sum += p[static_cast<size_t>(j)] = Sees(i, j) ? std::exp(scale * score) : 0;
    }
    of_lse[static_cast<size_t>((b * shape.heads + h) * shape.queries + i)] = std::log(sum);
    for (int64_t j = 0; j < shape.keys; ++j)
      for (int64_t c = 0; c < d; ++c)
        of_o.At(dense, h * d + c) += p[static_cast<size_t>(j)] / sum * v.At(b * key_rows + j, g * d + c);
    for (int64_t c = 0; c < d; ++c) mean += of_o.At(dense, h * d + c) * d_o.At(row, h * d + c);
    for (int64_t j = 0; j < shape.keys; ++j) {
      double dp = 0;
      const double weight = p[static_cast<size_t>(j)] / sum;
      for (int64_t c = 0; c < d; ++c) {
        dp += d_o.At(row, h * d + c) * v.At(b * key_rows + j, g * d + c);
        of_dv.At(b * shape.keys + j, g * d + c) += weight * d_o.At(row, h * d + c);
      }
      const double ds = scale * weight * (dp - mean);
      for (int64_t c = 0; c < e; ++c) {
        of_dq.At(dense, h * e + c) += ds * k.At(b * key_rows + j, g * e + c);
        of_dk.At(b * shape.keys + j, g * e + c) += ds * q.At(row, h * e + c);
      }
    }
  }
};

constexpr AttentionShape Shape(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads,
                               int64_t head_dim, bool causal, int64_t window = 0, int64_t value_dim = 0) {
  return {.batch = batch,
          .queries = queries,
          .keys = keys,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .causal = causal,
          .window = window,
          .value_dim = value_dim};
}

TEST(EmulatedCudnn, ComputesAttention) {
  const Setting newer("ESPALIER_EMULATED_VERSIONS", "cuDNN=9.25");
  for (const AttentionShape& x :
       {Shape(2, 17, 17, 6, 2, 16, true), Shape(1, 65, 65, 2, 2, 24, true, 7), Shape(2, 13, 37, 4, 1, 8, false),
        Shape(1, 37, 13, 3, 3, 8, false), Shape(1, 19, 19, 4, 2, 24, true, 0, 16), Shape(1, 5, 5, 1, 1, 8, true, 2)})
    for (int64_t gap : {0, 3})
      for (const char* way : {"parts", "ordered", "unordered"}) {
        SCOPED_TRACE(std::string(way) + ", " + std::to_string(x.queries) + " queries, gap " + std::to_string(gap));
        Attention(x, gap, BackwardMethodOf(way)).Run();
      }
}

/// Bytes that cuDNN 9.19 said for an H200; the test cudnn_plans asks it.
TEST(EmulatedCudnn, WantsTheWorkspaceOfTheRealOne) {
  const auto ask = [](const AttentionShape& x, Direction direction, const char* way) {
    const BackwardMethod method = BackwardMethodOf(way);
    return AskFusedAttention({x, x.queries, x.keys, method}, direction, PartOfBackward(x, method)).bytes;
  };
  const AttentionShape llama = Shape(4, 4096, 4096, 32, 8, 128, true), gpt = Shape(32, 1024, 1024, 12, 12, 64, true),
                       odd = Shape(2, 17, 17, 4, 2, 16, true), wide = Shape(2, 128, 128, 4, 2, 40, true);
  EXPECT_EQ(ask(llama, Direction::kForward, "parts"), 256);
  EXPECT_EQ(ask(llama, Direction::kBackward, "parts"), 285344000);
  EXPECT_EQ(ask(llama, Direction::kBackward, "large_parts"), 1141375232);
  EXPECT_EQ(ask(llama, Direction::kBackward, "unordered"), 538968320);
  EXPECT_EQ(ask(gpt, Direction::kBackward, "parts"), 201720064);
  EXPECT_EQ(ask(gpt, Direction::kBackward, "unordered"), 102236416);
  EXPECT_EQ(ask(odd, Direction::kBackward, "parts"), 140576);
  EXPECT_EQ(ask(odd, Direction::kBackward, "unordered"), 18208);
  EXPECT_EQ(ask(wide, Direction::kBackward, "unordered"), 332032);
}

TEST(EmulatedCudnn, TheWholeWorkspaceIsOverwrittenAndNoMore) {
  Attention attention(Shape(1, 9, 9, 2, 1, 16, true), 0, {});
  const FusedCall call = attention.Call();
  const int64_t bytes = AskFusedAttention(call, Direction::kBackward, {1, 1}).bytes;
  ASSERT_TRUE(PrepareFusedAttentionGrad(call, kWorkspaceSlack + bytes));
  const FusedMemory memory = attention.Memory(kWorkspaceSlack + bytes);
  FusedAttentionGrad(call, memory, nullptr);
  CUDA_CALL(cudaStreamSynchronize(nullptr));
  const auto* begin = static_cast<const std::byte*>(AlignedWorkspace(memory.workspace, memory.workspace_bytes).data);
  EXPECT_GT(std::count(begin, begin + bytes, std::byte{0xff}), bytes / 2) << "NaN";
  EXPECT_NE(begin[bytes - 1], std::byte{});
  EXPECT_EQ(begin[bytes], std::byte{});
  EXPECT_FALSE(PrepareFusedAttentionGrad(call, kWorkspaceSlack + bytes - 1));
  EXPECT_EQ(TakeFallbacks().size(), 1U);
}

TEST(EmulatedCudnn, AnOlderLibraryHasNoOrderedBackward) {
  const AttentionShape x = Shape(1, 8, 8, 1, 1, 8, true);
  EXPECT_THROW(PrepareFusedAttentionGrad({x, 8, 8, BackwardMethodOf("ordered")}, 1 << 20), UserError);
}

TEST(EmulatedCudnn, WithoutAnEngineThereIsNoKernel) {
  const Setting none("ESPALIER_EMULATED_CUDNN", "none");
  const AttentionShape x = Shape(1, 24, 24, 1, 1, 8, true);
  EXPECT_NE(AskFusedAttention({x, 24, 24}, Direction::kForward, {1, 1}).refusal.find("no engine"), std::string::npos);
  EXPECT_FALSE(PrepareFusedAttention({x, 24, 24}, 1 << 20));
  EXPECT_EQ(TakeFallbacks().size(), 1U);
}

/// A call of another size replaces the plan; the front end lets the CUDA graph keep the old one.
TEST(EmulatedCudnn, ACapturedPlanOutlivesItsReplacement) {
  Attention attention(Shape(2, 33, 33, 2, 1, 8, true), 0, {});
  const FusedCall call = attention.Call();
  const int64_t whole = kWorkspaceSlack + AskFusedAttention(call, Direction::kBackward, {2, 1}).bytes;
  ASSERT_TRUE(PrepareFusedAttentionGrad(call, whole));
  cudaStream_t stream = nullptr;
  CUDA_CALL(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  CUDA_CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  FusedAttentionGrad(call, attention.Memory(whole), stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CALL(cudaStreamEndCapture(stream, &graph));
  CUDA_CALL(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CALL(cudaGraphDestroy(graph));
  EXPECT_TRUE(PrepareFusedAttentionGrad(call, whole - 1)) << "one sequence after the other";
  EXPECT_EQ(TakeFallbacks().size(), 1U);
  const std::vector<Bf16> before = attention.dq.values;
  CUDA_CALL(cudaGraphLaunch(executable, stream));
  CUDA_CALL(cudaStreamSynchronize(stream));
  EXPECT_FALSE(std::ranges::equal(attention.dq.values, before, {}, &Bf16::bits, &Bf16::bits));
  CUDA_CALL(cudaGraphExecDestroy(executable));
  CUDA_CALL(cudaStreamDestroy(stream));
}

/// Descriptors of y = mode(x), over the C interface alone.
class RawGraph {
 public:
  explicit RawGraph(cudnnPointwiseMode_t mode) {
    const cudnnBackendDescriptor_t x = Tensor(1), y = Tensor(2), how = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
                                   operation = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    Finalize(how);
    Link(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    Link(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    Link(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    Finalize(operation);
    Link(graph_, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    Finalize(graph_);
    Link(engine_, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_);
    Finalize(engine_);
    Link(config_, CUDNN_ATTR_ENGINECFG_ENGINE, engine_);
  }
  ~RawGraph() {
    for (const cudnnBackendDescriptor_t descriptor : made_) cudnnBackendDestroyDescriptor(descriptor);
  }

  cudnnStatus_t FinalizeConfig() const { return cudnnBackendFinalize(config_); }
  cudnnBackendDescriptor_t Plan() {
    const cudnnBackendDescriptor_t plan = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
    Finalize(plan);
    return plan;
  }
  cudnnBackendDescriptor_t Pack(float* x, float* y, void* workspace) {
    const cudnnBackendDescriptor_t pack = Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const int64_t uids[] = {1, 2};
    float* const pointers[] = {x, y};
    Set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 2, uids);
    Set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 2, pointers);
    Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    Finalize(pack);
    return pack;
  }
  void Destroy(cudnnBackendDescriptor_t descriptor) {
    std::erase(made_, descriptor);
    cudnnBackendDestroyDescriptor(descriptor);
  }
  cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t type) {
    cudnnBackendCreateDescriptor(type, &made_.emplace_back());
    return made_.back();
  }

 private:
  static void Set(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  int64_t count, const void* values) {
    EXPECT_EQ(cudnnBackendSetAttribute(to, name, type, count, values), CUDNN_STATUS_SUCCESS) << name;
  }
  static void Link(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t what) {
    Set(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &what);
  }
  static void Finalize(cudnnBackendDescriptor_t descriptor) {
    EXPECT_EQ(cudnnBackendFinalize(descriptor), CUDNN_STATUS_SUCCESS);
  }
  cudnnBackendDescriptor_t Tensor(int64_t uid) {
    const cudnnBackendDescriptor_t tensor = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t dims[] = {1, 1, 1, 3}, strides[] = {3, 3, 3, 1};
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    Finalize(tensor);
    return tensor;
  }

  std::vector<cudnnBackendDescriptor_t> made_;
  cudnnBackendDescriptor_t graph_ = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                           engine_ = Make(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                           config_ = Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
};

std::string LastError() {
  char text[256];
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

TEST(EmulatedCudnn, RefusesWhatItDoesNotCompute) {
  EXPECT_EQ(RawGraph(CUDNN_POINTWISE_TANH_FWD).FinalizeConfig(), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
  EXPECT_EQ(LastError(), "pointwise mode 101");
}

TEST(EmulatedCudnn, WorkWaitsForItsStreamAndNeedsItsPlan) {
  const Setting late("ESPALIER_EMULATED_STREAMS", "late");
  RawGraph graph(CUDNN_POINTWISE_EXP);
  ASSERT_EQ(graph.FinalizeConfig(), CUDNN_STATUS_SUCCESS);
  float x[] = {0, 1, 2}, y[3] = {};
  std::vector<std::byte> workspace(256);
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  const cudnnBackendDescriptor_t plan = graph.Plan(), pack = graph.Pack(x, y, workspace.data());
  ASSERT_EQ(cudnnBackendExecute(handle, plan, pack), CUDNN_STATUS_SUCCESS);
  x[0] = 1;
  CUDA_CALL(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(y[0], y[1]) << "operands are read when the stream comes to the call";
  EXPECT_FLOAT_EQ(y[2], std::exp(2.0f));
  EXPECT_EQ(cudnnBackendExecute(handle, plan, graph.Pack(x, nullptr, workspace.data())),
            CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_DEATH(
      {
        cudnnBackendExecute(handle, plan, pack);
        graph.Destroy(plan);
        cudaStreamSynchronize(nullptr);
      },
      "work of a plan that has been destroyed");
}

}  // namespace
}  // namespace espalier::cuda
