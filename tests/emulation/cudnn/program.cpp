#include "program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "espalier/util/types.hpp"

namespace espalier::emulation::cudnn {
namespace {

constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t Volume(const Dims& dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }
Dims Packed(const Dims& dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

bool IsNarrow(cudnnDataType_t type) { return type == CUDNN_DATA_BFLOAT16; }
float Rounded(cudnnDataType_t type, float x) { return IsNarrow(type) ? ToFloat(ToBf16(x)) : x; }

float Read(const void* data, cudnnDataType_t type, int64_t at) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return ToFloat(static_cast<const Bf16*>(data)[at]);
    case CUDNN_DATA_INT32:
      return static_cast<float>(static_cast<const int32_t*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

/// The elements of a tensor in memory, which has another type than the tensor if that is virtual.
struct View {
  std::shared_ptr<float[]> owned;  ///< memory of virtual tensors outside the workspace
  void* data;
  cudnnDataType_t stored, type;
  Dims dims, strides;

  int64_t Offset(int64_t b, int64_t h, int64_t i) const { return b * strides[0] + h * strides[1] + i * strides[2]; }

  float At(int64_t offset) const { return Rounded(type, Read(data, stored, offset)); }

  /// True if rows are what steps compute with.
  bool IsPlain() const { return stored == CUDNN_DATA_FLOAT && !IsNarrow(type) && strides[3] == 1; }

  /// Row i of a result with dims `of`, whose rows have of[3] elements: in place if it can be, otherwise in `buffer`.
  const float* Row(const Dims& of, int64_t b, int64_t h, int64_t i, float* buffer) const {
    const int64_t at = Offset(b * dims[0] / of[0], h * dims[1] / of[1], i * dims[2] / of[2]);
    if (dims[3] == of[3] && IsPlain()) return static_cast<const float*>(data) + at;
    if (dims[3] == 1)
      std::fill_n(buffer, of[3], At(at));
    else
      for (int64_t j = 0; j < of[3]; ++j) buffer[j] = At(at + j * strides[3]);
    return buffer;
  }

  /// Where row i of a result is computed: in its place, or in `buffer`, from which Store takes it.
  float* Place(int64_t b, int64_t h, int64_t i, float* buffer) const {
    return IsPlain() ? static_cast<float*>(data) + Offset(b, h, i) : buffer;
  }
  void Store(int64_t b, int64_t h, int64_t i, const float* row) const {
    const int64_t at = Offset(b, h, i);
    if (IsPlain() && row == static_cast<const float*>(data) + at) return;
    for (int64_t j = 0; j < dims[3]; ++j) {
      if (IsNarrow(stored))
        static_cast<Bf16*>(data)[at + j * strides[3]] = ToBf16(row[j]);
      else
        static_cast<float*>(data)[at + j * strides[3]] = Rounded(type, row[j]);
    }
  }
};

template <typename F>
void ForEachRow(const Dims& dims, F f) {
  for (int64_t b = 0; b < dims[0]; ++b)
    for (int64_t h = 0; h < dims[1]; ++h)
      for (int64_t i = 0; i < dims[2]; ++i) f(b, h, i);
}

template <typename F>
void Map(int64_t n, const float* x, float* y, F f) {
  for (int64_t j = 0; j < n; ++j) y[j] = f(x[j]);
}
template <typename F>
void Map(int64_t n, const float* a, const float* b, float* y, F f) {
  for (int64_t j = 0; j < n; ++j) y[j] = f(a[j], b[j]);
}

/// A row of up to three operands.
void Pointwise(cudnnPointwiseMode_t mode, int64_t n, const std::array<const float*, 3>& x, float* y) {
  switch (mode) {
    case CUDNN_POINTWISE_IDENTITY:
      return Map(n, x[0], y, [](float a) { return a; });
    case CUDNN_POINTWISE_EXP:
      return Map(n, x[0], y, [](float a) { return std::exp(a); });
    case CUDNN_POINTWISE_LOG:
      return Map(n, x[0], y, [](float a) { return std::log(a); });
    case CUDNN_POINTWISE_ADD:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a + b; });
    case CUDNN_POINTWISE_SUB:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a - b; });
    case CUDNN_POINTWISE_MUL:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a * b; });
    case CUDNN_POINTWISE_DIV:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a / b; });
    case CUDNN_POINTWISE_CMP_GT:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a > b ? 1.0f : 0.0f; });
    case CUDNN_POINTWISE_CMP_GE:
      return Map(n, x[0], x[1], y, [](float a, float b) { return a >= b ? 1.0f : 0.0f; });
    default:  // CUDNN_POINTWISE_BINARY_SELECT
      for (int64_t j = 0; j < n; ++j) y[j] = x[2][j] != 0 ? x[0][j] : x[1][j];
  }
}

/// One run of a program.
class Runner {
 public:
  Runner(const Program& program, const Pointers& pointers, const std::map<Uid, float>& values, std::byte* workspace)
      : program_(program), pointers_(pointers), values_(values), workspace_(workspace) {}

  void Run() {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      Run(program_.steps[i]);
      for (const Uid uid : program_.steps[i].inputs)
        if (!IsReadAfter(i, uid)) made_.erase(uid);
    }
  }

 private:
  void Run(const Step& step) {
    switch (step.kind) {
      case StepKind::kMatmul:
        return Multiply(Operand(step.inputs[0]), Operand(step.inputs[1]), Result(step.output));
      case StepKind::kPointwise:
        return step.mode == CUDNN_POINTWISE_GEN_INDEX ? Count(step.axis, Result(step.output)) : Pointwise(step);
      case StepKind::kReduction:
        return Reduce(step.mode, Operand(step.inputs[0]), Result(step.output));
      case StepKind::kTranspose:
        return Transpose(step);
    }
  }

  bool IsReadAfter(size_t step, Uid uid) const {
    const auto reads = [uid](const Step& later) { return std::ranges::count(later.inputs, uid) > 0; };
    return std::any_of(program_.steps.begin() + static_cast<std::ptrdiff_t>(step) + 1, program_.steps.end(), reads);
  }

  View Operand(Uid uid) {
    const Tensor& tensor = program_.Find(uid);
    if (tensor.is_virtual) return made_.at(uid);
    if (tensor.by_value)
      return {nullptr, const_cast<float*>(&values_.at(uid)), CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {}};
    return {nullptr, pointers_.at(uid), tensor.type, tensor.type, tensor.dims, tensor.strides};
  }

  View Result(Uid uid) {
    const Tensor& tensor = program_.Find(uid);
    if (!tensor.is_virtual) return Operand(uid);
    if (const auto kept = program_.kept.find(uid); kept != program_.kept.end())
      return made_[uid] = {nullptr,
                           workspace_ + kept->second.offset,
                           CUDNN_DATA_BFLOAT16,
                           CUDNN_DATA_BFLOAT16,
                           tensor.dims,
                           kept->second.strides};
    auto memory = std::make_shared_for_overwrite<float[]>(static_cast<size_t>(Volume(tensor.dims)));
    float* const data = memory.get();
    return made_[uid] = {std::move(memory), data, CUDNN_DATA_FLOAT, tensor.type, tensor.dims, Packed(tensor.dims)};
  }

  /// [k,n] of one head of the second operand, in the order of rows.
  static void LoadSecond(const View& b, const Dims& of, int64_t batch, int64_t head, bool round,
                         std::vector<float>& loaded) {
    const int64_t first = b.Offset(batch * b.dims[0] / of[0], head * b.dims[1] / of[1], 0);
    loaded.resize(static_cast<size_t>(b.dims[2] * b.dims[3]));
    for (int64_t q = 0; q < b.dims[2]; ++q)
      for (int64_t j = 0; j < b.dims[3]; ++j) {
        const float x = b.At(first + q * b.strides[2] + j * b.strides[3]);
        loaded[static_cast<size_t>(q * b.dims[3] + j)] = round ? Rounded(CUDNN_DATA_BFLOAT16, x) : x;
      }
  }

  /// Skips what is multiplied by 0, as kernels skip tiles outside the mask.
  static void Multiply(const View& a, const View& b, const View& c) {
    const bool round = IsNarrow(a.type) || IsNarrow(b.type);
    const int64_t k = a.dims[3], n = b.dims[3];
    const Dims of_a = {c.dims[0], c.dims[1], c.dims[2], k};
    std::vector<float> second, buffer(static_cast<size_t>(k)), place(static_cast<size_t>(n));
    ForEachRow(c.dims, [&](int64_t batch, int64_t head, int64_t i) {
      if (i == 0) LoadSecond(b, c.dims, batch, head, round, second);
      const float* const row = a.Row(of_a, batch, head, i, buffer.data());
      float* const sums = c.Place(batch, head, i, place.data());
      std::fill_n(sums, n, 0.0f);
      for (int64_t q = 0; q < k; ++q) {
        const float x = round ? Rounded(CUDNN_DATA_BFLOAT16, row[q]) : row[q];
        if (x == 0) continue;
        const float* const of_q = second.data() + q * n;
        for (int64_t j = 0; j < n; ++j) sums[j] += x * of_q[j];
      }
      c.Store(batch, head, i, sums);
    });
  }

  static void Count(int64_t axis, const View& y) {
    std::vector<float> buffer(static_cast<size_t>(y.dims[3]));
    ForEachRow(y.dims, [&](int64_t b, int64_t h, int64_t i) {
      const int64_t indices[] = {b, h, i};
      float* const row = y.Place(b, h, i, buffer.data());
      for (int64_t j = 0; j < y.dims[3]; ++j) row[j] = static_cast<float>(axis == 3 ? j : indices[axis]);
      y.Store(b, h, i, row);
    });
  }

  void Pointwise(const Step& step) {
    std::vector<View> operands;
    for (const Uid uid : step.inputs) operands.push_back(Operand(uid));
    const View y = Result(step.output);
    const auto n = static_cast<size_t>(y.dims[3]);
    std::vector<float> buffers(4 * n);
    ForEachRow(y.dims, [&](int64_t b, int64_t h, int64_t i) {
      std::array<const float*, 3> rows = {};
      for (size_t x = 0; x < operands.size(); ++x) rows[x] = operands[x].Row(y.dims, b, h, i, buffers.data() + x * n);
      float* const made = y.Place(b, h, i, buffers.data() + 3 * n);
      cudnn::Pointwise(static_cast<cudnnPointwiseMode_t>(step.mode), y.dims[3], rows, made);
      y.Store(b, h, i, made);
    });
  }

  /// Rows of the operand are taken in their order.
  static void Reduce(int mode, const View& x, const View& y) {
    const bool max = mode == CUDNN_REDUCE_TENSOR_MAX;
    const auto add = [max](float& to, float what) { to = max ? std::max(to, what) : to + what; };
    const auto n = static_cast<size_t>(y.dims[3]);
    std::vector<float> buffer(static_cast<size_t>(x.dims[3]));
    std::vector<float> sums(static_cast<size_t>(Volume(y.dims)), max ? -std::numeric_limits<float>::infinity() : 0.0f);
    const auto sums_of = [&](int64_t b, int64_t h, int64_t i) {
      return sums.data() + ((b * y.dims[1] + h) * y.dims[2] + i) * y.dims[3];
    };
    ForEachRow(x.dims, [&](int64_t b, int64_t h, int64_t i) {
      float* const to = sums_of(b * y.dims[0] / x.dims[0], h * y.dims[1] / x.dims[1], i * y.dims[2] / x.dims[2]);
      const float* const row = x.Row(x.dims, b, h, i, buffer.data());
      for (size_t j = 0; j < buffer.size(); ++j) add(to[n == 1 ? 0 : j], row[j]);
    });
    ForEachRow(y.dims, [&](int64_t b, int64_t h, int64_t i) { y.Store(b, h, i, sums_of(b, h, i)); });
  }

  void Transpose(const Step& step) {
    View view = Operand(step.inputs[0]);
    std::swap(view.dims[2], view.dims[3]);
    std::swap(view.strides[2], view.strides[3]);
    if (!IsNarrow(view.type)) view.type = program_.Find(step.output).type;
    made_[step.output] = view;
  }

  const Program& program_;
  const Pointers& pointers_;
  const std::map<Uid, float>& values_;
  std::byte* const workspace_;
  std::map<Uid, View> made_;  ///< virtual tensors that are still needed
};

const Step* StepThatMakes(const Program& program, Uid uid) {
  const auto found = std::ranges::find(program.steps, uid, &Step::output);
  return found == program.steps.end() ? nullptr : &*found;
}

bool IsKeptForTwo(const Program& program, const Tensor& tensor) {
  int64_t readers = 0;
  bool narrow_matmul = false;
  for (const Step& step : program.steps) {
    if (std::ranges::count(step.inputs, tensor.uid) == 0) continue;
    ++readers;
    narrow_matmul = narrow_matmul || (step.kind == StepKind::kMatmul && IsNarrow(program.Find(step.output).type));
  }
  return readers > 1 && narrow_matmul;
}

/// Strides of a matrix in whole tiles.
Dims InTiles(const Dims& dims) {
  constexpr int64_t kTileRows = 64, kTileColumns = 128;
  return Packed({dims[0], dims[1], RoundUp(dims[2], kTileRows), RoundUp(dims[3], kTileColumns)});
}

}  // namespace

void PlaceInWorkspace(Program& program) {
  constexpr int64_t kOwnBytes = 256;
  program.workspace_bytes = kOwnBytes;
  for (const auto& [uid, tensor] : program.tensors) {
    const Step* const made = StepThatMakes(program, uid);
    if (!tensor.is_virtual || made == nullptr) continue;
    const bool sum = made->kind == StepKind::kMatmul && IsNarrow(tensor.type);
    if (!sum && !IsKeptForTwo(program, tensor)) continue;
    const Dims strides = sum ? Packed(tensor.dims) : InTiles(tensor.dims);
    program.kept[uid] = {program.workspace_bytes, strides};
    program.workspace_bytes += tensor.dims[0] * strides[0] * static_cast<int64_t>(sizeof(Bf16));
  }
}

std::map<Uid, float> ReadValues(const Program& program, const Pointers& pointers) {
  std::map<Uid, float> values;
  for (const auto& [uid, tensor] : program.tensors)
    if (tensor.by_value) values[uid] = Read(pointers.at(uid), tensor.type, 0);
  return values;
}

void Run(const Program& program, const Pointers& pointers, const std::map<Uid, float>& values, std::byte* workspace) {
  std::memset(workspace, 0xff, static_cast<size_t>(program.workspace_bytes));
  Runner(program, pointers, values, workspace).Run();
}

std::string Describe(const Program& program, const std::map<Uid, float>& values) {
  std::vector<const Step*> matmuls;
  bool causal = false;
  std::string more;
  for (const Step& step : program.steps) {
    if (step.kind == StepKind::kMatmul) matmuls.push_back(&step);
    if (step.kind != StepKind::kPointwise) continue;
    causal = causal || step.mode == CUDNN_POINTWISE_CMP_GE;
    if (step.mode == CUDNN_POINTWISE_CMP_GT)
      more = fmt::format(", window {}", values.at(StepThatMakes(program, step.inputs[0])->inputs[1]));
  }
  if (program.sums_in_any_order) more += ", added in any order";
  const Dims& q = program.Find(matmuls.at(0)->inputs[0]).dims;
  const Dims& k = program.Find(matmuls.at(0)->inputs[1]).dims;
  return fmt::format("{} of [{},{},{} x {}] queries, {} keys, {} kv heads, {}{}",
                     matmuls.size() > 2 ? "attention_grad" : "attention", q[0], q[2], q[1], q[3], k[3], k[1],
                     causal ? "causal" : "not causal", more);
}

}  // namespace espalier::emulation::cudnn
