#include "harness.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::test {

double Content(int tensor, int64_t index, int member, int step) {
  uint64_t h = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(tensor) * 0xbf58476d1ce4e5b9u +
               static_cast<uint64_t>(member) * 0x94d049bb133111ebu + static_cast<uint64_t>(step) * 0xd6e8feb86659fd93u;
  h ^= h >> 31;
  h *= 0xff51afd7ed558ccdu;
  h ^= h >> 29;
  const double mantissa = static_cast<double>(h >> 40) / double(1 << 24) - 0.5;
  return std::ldexp(mantissa, static_cast<int>(h % 23) - 8);
}

namespace {

/// The value as the element type represents it.
template <typename T>
T Cast(double x);
template <>
float Cast<float>(double x) {
  return static_cast<float>(x);
}
template <>
Bf16 Cast<Bf16>(double x) {
  return ToBf16(static_cast<float>(x));
}
template <>
int32_t Cast<int32_t>(double x) {
  return static_cast<int32_t>(x * 1000);
}

float Widen(float x) { return x; }
float Widen(Bf16 x) { return ToFloat(x); }
int32_t Widen(int32_t x) { return x; }
bool Same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
bool Same(Bf16 a, Bf16 b) { return a.bits == b.bits; }
bool Same(int32_t a, int32_t b) { return a == b; }
void Narrow(float x, float& to) { to = x; }
void Narrow(float x, Bf16& to) { to = ToBf16(x); }
void Narrow(int32_t x, int32_t& to) { to = x; }

template <typename F>
void ForEachElement(const Tensor& tensor, const Shape& whole, F f) {
  ForEachGlobalRun(tensor, whole, [&](int64_t global, int64_t local, int64_t count) {
    for (int64_t i = 0; i < count; ++i) f(global + i, local + i);
  });
}

template <typename F>
void WithType(Dtype dtype, F f) {
  if (dtype == Dtype::kF32) f(float{});
  if (dtype == Dtype::kBf16) f(Bf16{});
  if (dtype == Dtype::kI32) f(int32_t{});
}

}  // namespace

void Fill(const Tensor& tensor, const Type& type, int id, int member, int step) {
  WithType(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    ForEachElement(tensor, type.shape, [&](int64_t global, int64_t local) {
      tensor.As<T>()[local] = Cast<T>(Content(id, global, member, step));
    });
  });
}

int64_t CountWrong(const Tensor& tensor, const Type& type, int id, int members, Reduce how, int step) {
  int64_t wrong = 0;
  WithType(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    ForEachElement(tensor, type.shape, [&](int64_t global, int64_t local) {
      auto sum = Widen(Cast<T>(Content(id, global, 0, step)));
      for (int m = 1; m < members; ++m) {
        const auto next = Widen(Cast<T>(Content(id, global, m, step)));
        sum = how == Reduce::kSum ? sum + next : std::max(sum, next);
      }
      T expected{};
      Narrow(sum, expected);
      wrong += Same(expected, tensor.As<T>()[local]) ? 0 : 1;
    });
  });
  return wrong;
}

ProgramBuilder::ProgramBuilder(const Mesh& mesh) : coordinate_(mesh.CoordinateOf(TheWorld().Rank())) {
  program_.mesh = mesh;
  program_.stage = coordinate_[0];
  for (int stage = 0; stage < mesh.Degree(Axis::kPp); ++stage) program_.stage_of_chunk.push_back(stage);
}

int ProgramBuilder::AddValue(const std::string& name, const std::string& type, int chunk) {
  return graph_.AddValue({name, ParseType(type), ValueKind::kState, Frequency::kStep, chunk, -1, ""});
}

void ProgramBuilder::Place(int value) {
  const Type& type = graph_.values[static_cast<size_t>(value)].type;
  const int64_t bytes = Volume(LocalShape(type, program_.mesh, coordinate_)) * SizeOf(type.dtype);
  program_.persistent.push_back({value, -1, {value, end_, bytes}, MemoryClass::kActivations});
  end_ += (bytes + 63) / 64 * 64;
}

void ProgramBuilder::Run(Op op, Lane lane) {
  const int id = graph_.AddOp(std::move(op));
  const Op& added = graph_.ops.back();
  const auto find = [&](int value) -> const PersistentBuffer* {
    const auto it = std::find_if(program_.persistent.begin(), program_.persistent.end(),
                                 [&](const PersistentBuffer& b) { return b.value == value; });
    return it == program_.persistent.end() ? nullptr : &*it;
  };
  std::vector<Operand> inputs, outputs;
  for (int v : added.inputs)
    if (find(v) != nullptr) inputs.push_back(find(v)->place);
  for (int v : added.outputs) outputs.push_back(find(v)->place);
  Operand workspace;
  if (lane != Lane::kCompute) {
    workspace = {-1, end_, CommWorkspaceBytes(graph_, added, program_.mesh, coordinate_)};
    end_ += (workspace.bytes + 63) / 64 * 64;
  }
  program_.instructions.Add({.op = id, .lane = lane, .inputs = inputs, .outputs = outputs, .workspace = workspace});
}

Program ProgramBuilder::Take() {
  program_.graph = std::make_shared<const Graph>(graph_);
  program_.arena_bytes = end_;
  PlanWaits(program_);
  return program_;
}

Op GroupOp(OpKind kind, std::vector<int> inputs, std::vector<int> outputs, AxisSet axes) {
  Op op{kind, std::move(inputs), std::move(outputs), {}, Role::kF, 1, 0};
  op.attributes.numbers["axes"] = axes.bits();
  return op;
}

Runner::Runner(Program program, Executor::KernelFinder find_kernel, MpiCommunicationOptions options)
    : program_(std::move(program)),
      arena_(program_.arena_bytes),
      communication_(
          MakeCommunication(program_.mesh, AgreeOnChannels(TheWorld(), ChannelsOf(program_)), std::move(options))),
      executor_(std::make_unique<CpuExecutor>(program_, program_.mesh.CoordinateOf(TheWorld().Rank()), arena_,
                                              communication_.get(), find_kernel)) {}

Tensor Runner::At(int value) const { return executor_->At(program_.graph->values[static_cast<size_t>(value)].name); }

std::vector<Mesh> Meshes() {
  const int n = TheWorld().Size();
  std::vector<Mesh> meshes;
  for (size_t a = 0; a < kAxisCount; ++a) {
    Coordinate degrees = {1, 1, 1, 1, 1};
    degrees[a] = n;
    meshes.emplace_back(degrees);
    for (size_t b = a + 1; n % 2 == 0 && n > 2 && b < kAxisCount; ++b) {
      degrees = {1, 1, 1, 1, 1};
      degrees[a] = 2;
      degrees[b] = n / 2;
      meshes.emplace_back(degrees);
    }
  }
  if (n == 8) meshes.push_back(Mesh({1, 2, 2, 1, 2}));
  if (n == 8) meshes.push_back(Mesh({2, 1, 2, 1, 2}));
  return meshes;
}

}  // namespace espalier::test
