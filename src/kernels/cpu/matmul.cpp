// GEMMs of activations and weights: in bf16 on processors with AMX by the program's own kernel, else by oneDNN. Its
// matmul reads all einsum layouts in place at full speed, so nothing is reordered. A primitive is made once per shape
// and kept.
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>

#include "espalier/util/environment.hpp"
#include "kernels/cpu/gemm/bf16_method.hpp"
#include "kernels/cpu/gemm/one_dnn_gemm.hpp"
#include "kernels/cpu/gemm/scaled_gemm.hpp"
#include "kernels/cpu/gemm/tile_gemm.hpp"
#include "kernels/cpu/gemm/widened_gemm.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier {
namespace cpu {
namespace {

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type TypeOf(Dtype dtype) {
  return dtype == Dtype::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

/// Memory and types of a GEMM's operands.
struct Operands {
  void *a, *b, *c;
  Dtype input, output;
  bool accumulate;
  void* bias = nullptr;  ///< of the input's type; nullptr: none
};

/// Everything that a primitive is specialised for. oneDNN splits work by the number of threads it is made under.
struct Key {
  GemmShape shape;
  Dtype input, output;
  bool accumulate, bias;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  dnnl::memory::desc a, b, bias, c, scratch;
  dnnl::matmul matmul;
};

Primitive MakePrimitive(const Key& key) {
  const GemmShape& s = key.shape;
  const dnnl::memory::desc a({s.m, s.k}, TypeOf(key.input), dnnl::memory::dims{s.a_row, s.a_column});
  const dnnl::memory::desc b({s.k, s.n}, TypeOf(key.input), dnnl::memory::dims{s.b_row, s.b_column});
  const dnnl::memory::desc c({s.m, s.n}, TypeOf(key.output), dnnl::memory::dims{s.c_row, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::memory::desc bias({1, s.n}, TypeOf(key.input), dnnl::memory::dims{s.n, 1});
  const dnnl::matmul::desc operation = key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc description(operation, attributes, Engine());
  return {a, b, bias, c, description.scratchpad_desc(), dnnl::matmul(description)};
}

/// The primitive for a call; made at its first use.
const Primitive& FindPrimitive(const Key& key) {
  static std::mutex mutex;
  static std::map<Key, Primitive> primitives;
  const std::lock_guard lock(mutex);
  auto it = primitives.find(key);
  if (it == primitives.end()) it = primitives.emplace(key, MakePrimitive(key)).first;
  return it->second;
}

void Multiply(const GemmShape& s, const Operands& x) {
  if (omp_get_max_threads() != Threads()) omp_set_num_threads(Threads());
  const Primitive& primitive = FindPrimitive({s, x.input, x.output, x.accumulate, x.bias != nullptr, Threads()});
  std::byte* scratch = Scratch(static_cast<int64_t>(primitive.scratch.get_size()), ScratchUse::kOneDnn);
  thread_local dnnl::stream stream(Engine());
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, dnnl::memory(primitive.a, Engine(), x.a)},
      {DNNL_ARG_WEIGHTS, dnnl::memory(primitive.b, Engine(), x.b)},
      {DNNL_ARG_DST, dnnl::memory(primitive.c, Engine(), x.c)},
      {DNNL_ARG_SCRATCHPAD, dnnl::memory(primitive.scratch, Engine(), scratch)}};
  if (x.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(primitive.bias, Engine(), x.bias));
  primitive.matmul.execute(stream, arguments);
  stream.wait();
}

/// Adds up a GEMM in slices of the contracted dim. Beyond kMaxDepth elements oneDNN loses a fifth of its rate (the
/// head's dx contracts the vocabulary), below it nothing.
constexpr int64_t kMaxDepth = 16384, kSlice = 8192;

void MultiplyInSlices(const GemmShape& s, const Operands& x) {
  const int64_t slices = (s.k + kSlice - 1) / kSlice, depth = ((s.k + slices - 1) / slices + 63) / 64 * 64;
  for (int64_t p = 0; p < s.k; p += depth) {
    GemmShape slice = s;
    slice.k = std::min(depth, s.k - p);
    Operands at = x;
    at.a = static_cast<std::byte*>(x.a) + p * s.a_column * SizeOf(x.input);
    at.b = static_cast<std::byte*>(x.b) + p * s.b_row * SizeOf(x.input);
    at.accumulate = x.accumulate || p > 0;
    if (p > 0) at.bias = nullptr;
    Multiply(slice, at);
  }
}

/// As MultiplyInSlices with c in bf16: blocks of rows are summed in fp32 scratch and rounded once.
void MultiplyInSlicesAndRound(const GemmShape& s, const Operands& x) {
  constexpr int64_t kRows = 2048;
  float* sums = ScratchOf<float>(std::min(kRows, s.m) * s.n);
  for (int64_t row = 0; row < s.m; row += kRows) {
    GemmShape block = s;
    block.m = std::min(kRows, s.m - row);
    MultiplyInSlices(block, {static_cast<std::byte*>(x.a) + row * s.a_row * SizeOf(x.input), x.b, sums, x.input,
                             Dtype::kF32, false, x.bias});
    Bf16* c = static_cast<Bf16*>(x.c) + row * s.n;
    ParallelRanges(block.m * s.n, kWorthAThread, [=](int64_t begin, int64_t end) {
      ForLanes(begin, end, [=](int64_t i, auto lanes) { Store(c + i, Load(sums + i, lanes), lanes); });
    });
  }
}

/// A GEMM whose contracted dim is empty: 0, or what c holds, or the bias.
void MatmulOfDepth0(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  if (!a.gemm.accumulate) std::memset(a.c.data, 0, static_cast<size_t>(s.m * s.n * SizeOf(a.c.dtype)));
  if (a.bias) AddBias({.x = a.c, .bias = a.bias, .y = a.c, .rows = s.m, .width = s.n});
}

bool IsForced(std::string_view method) { return FromEnvironment("ESPALIER_BF16") == method; }

/// bf16 GEMMs by this program's kernel.
bool UsesTiles() {
  static const bool uses = UsesAmx() && !IsForced("onednn");
  return uses;
}

/// Linux grants the tiles' registers to a process that asks (arch_prctl(2)); all of its threads then have them.
bool AmxIsGranted() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestComponent = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestComponent, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

void MultiplyF32(const GemmShape& shape, float* a, float* b, float* c, bool accumulate) {
  Multiply(shape, {a, b, c, Dtype::kF32, Dtype::kF32, accumulate});
}

bool WidensBf16() {
  static const bool widens = IsForced("widen") || dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core_bf16;
  return widens;
}

bool UsesAmx() {
  static const bool uses =
      !WidensBf16() && dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_amx && AmxIsGranted();
  return uses;
}

// bf16 and fp8 GEMMs accumulate in fp32. A bias is added before the sums are rounded.
void Matmul(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  const bool accumulate = a.gemm.accumulate;
  if (s.m * s.n == 0) return;
  if (s.k == 0) return MatmulOfDepth0(a);
  if (a.gemm.scales != Scales::kNone) return Matmul(WidenScaled(a));
  if (a.a.dtype == Dtype::kBf16 && WidensBf16())
    return WidenedGemm(s, a.a.As<Bf16>(), a.b.As<Bf16>(), a.c, accumulate, a.bias.As<Bf16>());
  if (a.a.dtype == Dtype::kBf16 && UsesTiles())
    return TileGemm(s, a.a.As<Bf16>(), a.b.As<Bf16>(), a.c, accumulate, a.bias.As<Bf16>());
  const Operands operands{a.a.data, a.b.data, a.c.data, a.a.dtype, a.c.dtype, accumulate, a.bias.data};
  if (s.k <= kMaxDepth) return Multiply(s, operands);
  if (a.c.dtype == Dtype::kF32) return MultiplyInSlices(s, operands);
  MultiplyInSlicesAndRound(s, operands);
}

}  // namespace cpu

std::string_view CpuBf16Method() {
  if (cpu::WidensBf16()) return "widen to fp32";
  if (!cpu::UsesAmx()) return "avx512_bf16";
  return cpu::UsesTiles() ? "amx" : "amx by oneDNN";
}

}  // namespace espalier
