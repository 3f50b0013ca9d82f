#include "graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>
#include <utility>

namespace espalier::emulation::cudnn {
namespace {

[[noreturn]] void Refuse(cudnnStatus_t status, std::string why) { throw Refusal{status, std::move(why)}; }

Tensor TensorOf(const Descriptor& descriptor) {
  const auto type = descriptor.Get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  const auto dims = descriptor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = descriptor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  const auto is = [&](cudnnBackendAttributeName_t name) { return descriptor.Has(name) && descriptor.Get<bool>(name); };
  Tensor tensor{descriptor.Get<Uid>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                type,
                {1, 1, 1, 1},
                {},
                is(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                is(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
  const bool is_type = type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_INT32 ||
                       (tensor.is_virtual && type == CUDNN_DATA_BOOLEAN);
  if (!is_type)
    Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, fmt::format("a tensor of type {}", static_cast<int>(type)));
  if (dims.size() > tensor.dims.size() || strides.size() != dims.size())
    Refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, fmt::format("a tensor with {} dims", dims.size()));
  if (descriptor.Has(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC))
    Refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a ragged tensor");
  std::ranges::copy_backward(dims, tensor.dims.end());
  std::ranges::copy_backward(strides, tensor.strides.end());
  return tensor;
}

/// Refuses what an operation may have and the emulation does not compute.
void RefuseAny(const Descriptor& operation, std::initializer_list<cudnnBackendAttributeName_t> names) {
  for (const cudnnBackendAttributeName_t name : names)
    if (operation.Has(name))
      Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, fmt::format("attribute {}", static_cast<int>(name)));
}

bool IsComputed(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GT:
    case CUDNN_POINTWISE_CMP_GE:
    case CUDNN_POINTWISE_GEN_INDEX:
    case CUDNN_POINTWISE_BINARY_SELECT:
      return true;
    default:
      return false;
  }
}

bool Divides(const Dims& of, const Dims& dims) {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] < 1 || of[i] % dims[i] != 0) return false;
  return true;
}

Dims Transposed(Dims dims) {
  std::swap(dims[2], dims[3]);
  return dims;
}

class Builder {
 public:
  void AddAll(const Descriptor& graph) {
    for (const auto& operation : graph.Find(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors) Add(*operation);
  }

  Program Finish() {
    Sort();
    PlaceInWorkspace(program_);
    return std::move(program_);
  }

 private:
  void Add(const Descriptor& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return AddMatmul(operation);
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return AddPointwise(operation);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return AddReduction(operation);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return AddReshape(operation);
      case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
        return AddAttention(operation);
#if CUDNN_VERSION >= 92100
      case CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR:
        return AddMask(operation);
      case CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR:
        return AddSoftmax(operation);
#endif
      default:
        Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
               fmt::format("an operation of type {}", static_cast<int>(operation.type)));
    }
  }

  Uid Add(const Tensor& tensor) {
    program_.tensors.insert({tensor.uid, tensor});
    return tensor.uid;
  }
  Uid AddLink(const Descriptor& operation, cudnnBackendAttributeName_t name) {
    return Add(TensorOf(operation.Link(name)));
  }
  std::optional<Uid> AddIfLinked(const Descriptor& operation, cudnnBackendAttributeName_t name) {
    return operation.Has(name) ? std::optional(AddLink(operation, name)) : std::nullopt;
  }
  const Tensor& Find(Uid uid) const { return program_.Find(uid); }

  /// A tensor that the graph does not name. Names of the front end are not negative.
  Uid AddVirtual(const Dims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Add({--last_own_, type, dims, {}, true, false});
  }

  void AddStep(Step step) {
    const Dims& result = Find(step.output).dims;
    if (step.kind == StepKind::kPointwise)
      for (const Uid uid : step.inputs)
        if (!Divides(result, Find(uid).dims)) Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a pointwise operand");
    if (step.kind == StepKind::kReduction && !Divides(Find(step.inputs[0]).dims, result))
      Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the result of a reduction");
    program_.steps.push_back(std::move(step));
  }
  Uid AddPointwise(cudnnPointwiseMode_t mode, std::vector<Uid> inputs, Uid output) {
    AddStep({StepKind::kPointwise, mode, 0, std::move(inputs), output});
    return output;
  }
  Uid AddPointwise(cudnnPointwiseMode_t mode, const std::vector<Uid>& inputs) {
    return AddPointwise(mode, inputs, AddVirtual(Find(inputs[0]).dims));
  }

  void AddMatmul(Uid a, Uid b, Uid c) {
    const Dims &of_a = Find(a).dims, &of_b = Find(b).dims, &of_c = Find(c).dims;
    if (of_a[2] != of_c[2] || of_a[3] != of_b[2] || of_b[3] != of_c[3] ||
        !Divides(of_c, {of_a[0], of_a[1], of_c[2], of_c[3]}) || !Divides(of_c, {of_b[0], of_b[1], of_c[2], of_c[3]}))
      Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a matmul");
    AddStep({StepKind::kMatmul, 0, 0, {a, b}, c});
  }
  void AddMatmul(const Descriptor& operation) {
    RefuseAny(operation,
              {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
               CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC});
    AddMatmul(AddLink(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
              AddLink(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
              AddLink(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  }

  void AddPointwise(const Descriptor& operation) {
    const Descriptor& how = operation.Link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.Get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    if (!IsComputed(mode))
      Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, fmt::format("pointwise mode {}", static_cast<int>(mode)));
    Step step{StepKind::kPointwise, mode, 0, {}, AddLink(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)};
    for (const auto name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                            CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
      if (operation.Has(name)) step.inputs.push_back(AddLink(operation, name));
    if (mode == CUDNN_POINTWISE_GEN_INDEX) step.axis = how.Get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
    AddStep(std::move(step));
  }

  void AddReduction(cudnnReduceTensorOp_t mode, Uid x, Uid y) { AddStep({StepKind::kReduction, mode, 0, {x}, y}); }
  void AddReduction(const Descriptor& operation) {
    const auto mode =
        operation.Link(CUDNN_ATTR_OPERATION_REDUCTION_DESC).Get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
    if (mode != CUDNN_REDUCE_TENSOR_ADD && mode != CUDNN_REDUCE_TENSOR_MAX)
      Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, fmt::format("reduction {}", static_cast<int>(mode)));
    AddReduction(mode, AddLink(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                 AddLink(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  }

  /// A reshape gives the same memory other dims and strides. The only one that is computed is a transposition.
  void AddReshape(const Descriptor& operation) {
    const Uid x = AddLink(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
              y = AddLink(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    if (Find(y).dims != Transposed(Find(x).dims) || Find(y).strides != Transposed(Find(x).strides))
      Refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a reshape that is no transposition");
    AddStep({StepKind::kTranspose, 0, 0, {x}, y});
  }

  /// lse is the statistic.
  void AddSoftmax(Uid x, Uid y, std::optional<Uid> lse) {
    const Dims& dims = Find(x).dims;
    const Dims rows = {dims[0], dims[1], dims[2], 1};
    const Uid max = AddVirtual(rows), sum = AddVirtual(rows);
    AddReduction(CUDNN_REDUCE_TENSOR_MAX, x, max);
    const Uid exp = AddPointwise(CUDNN_POINTWISE_EXP, {AddPointwise(CUDNN_POINTWISE_SUB, {x, max})});
    AddReduction(CUDNN_REDUCE_TENSOR_ADD, exp, sum);
    if (lse) AddPointwise(CUDNN_POINTWISE_ADD, {max, AddPointwise(CUDNN_POINTWISE_LOG, {sum})}, *lse);
    AddPointwise(CUDNN_POINTWISE_DIV, {exp, sum}, y);
  }

  /// Attention as one operation.
  void AddAttention(const Descriptor& operation) {
    const Uid q = AddLink(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
              k = AddLink(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
              v = AddLink(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC),
              o = AddLink(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC);
    const Dims of_q = Find(q).dims, of_k = Find(k).dims;
    const Uid transposed = AddVirtual(Transposed(of_k), Find(k).type);
    AddStep({StepKind::kTranspose, 0, 0, {k}, transposed});
    Uid scores = AddVirtual({of_q[0], of_q[1], of_q[2], of_k[2]});
    AddMatmul(q, transposed, scores);
    if (const std::optional<Uid> scale = AddIfLinked(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC))
      scores = AddPointwise(CUDNN_POINTWISE_MUL, {scores, *scale});
    std::optional<Uid> lse = AddIfLinked(operation, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC);
#if CUDNN_VERSION >= 92100
    if (operation.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH)) scores = AddSubgraph(operation, scores);
    if (operation.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC))
      lse = AddIfLinked(operation.Link(CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC),
                        CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC);
#endif
    const Uid p = AddVirtual(Find(scores).dims, Find(q).type);
    AddSoftmax(scores, p, lse);
    AddMatmul(p, v, o);
  }

#if CUDNN_VERSION >= 92100
  /// The operations on scores before the softmax.
  Uid AddSubgraph(const Descriptor& operation, Uid scores) {
    AddAll(operation.Link(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH));
    AddPointwise(CUDNN_POINTWISE_IDENTITY, {scores},
                 operation.Get<Uid>(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID));
    return operation.Get<Uid>(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID);
  }

  void AddSoftmax(const Descriptor& operation) {
    RefuseAny(operation, {CUDNN_ATTR_OPERATION_SOFTMAX_SINK_DESC, CUDNN_ATTR_OPERATION_SOFTMAX_MAX_DESC,
                          CUDNN_ATTR_OPERATION_SOFTMAX_SUM_EXP_DESC});
    AddSoftmax(AddLink(operation, CUDNN_ATTR_OPERATION_SOFTMAX_XDESC),
               AddLink(operation, CUDNN_ATTR_OPERATION_SOFTMAX_YDESC),
               AddIfLinked(operation, CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC));
  }

  Uid AddIndex(const Dims& dims, int64_t axis) {
    const Uid index = AddVirtual(dims, CUDNN_DATA_INT32);
    AddStep({StepKind::kPointwise, CUDNN_POINTWISE_GEN_INDEX, axis, {}, index});
    return index;
  }

  /// Keeps what column + left bound > row or row + shift >= column, by the comparison.
  void AddMask(const Descriptor& operation) {
    RefuseAny(operation, {CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC,
                          CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC});
    const Uid x = AddLink(operation, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC),
              otherwise = AddLink(operation, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC),
              y = AddLink(operation, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC);
    const bool left = operation.Has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    Uid greater = AddIndex(Find(x).dims, left ? 3 : 2);
    for (const auto name : {CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC,
                            CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC})
      if (const std::optional<Uid> bound = AddIfLinked(operation, name))
        greater = AddPointwise(CUDNN_POINTWISE_ADD, {greater, *bound});
    const auto comparison =
        operation.Get<cudnnPointwiseMode_t>(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE);
    const Uid inside = AddPointwise(comparison, {greater, AddIndex(Find(x).dims, left ? 2 : 3)});
    AddPointwise(CUDNN_POINTWISE_BINARY_SELECT, {x, otherwise, inside}, y);
  }
#endif

  /// Every step after those that make its operands.
  void Sort() {
    std::vector<Step> left = std::exchange(program_.steps, {});
    std::set<Uid> missing;
    for (const Step& step : left) missing.insert(step.output);
    while (!left.empty()) {
      const auto next = std::ranges::find_if(left, [&](const Step& step) {
        return std::ranges::none_of(step.inputs, [&](Uid uid) { return missing.contains(uid); });
      });
      if (next == left.end()) Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a graph with a cycle");
      missing.erase(next->output);
      program_.steps.push_back(std::move(*next));
      left.erase(next);
    }
  }

  Program program_;
  Uid last_own_ = 0;
};

}  // namespace

Program ProgramOf(const Descriptor& graph) {
  Builder builder;
  builder.AddAll(graph);
  return builder.Finish();
}

}  // namespace espalier::emulation::cudnn
