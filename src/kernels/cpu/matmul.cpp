// Products of activations and weights by oneDNN. Its matmul reads all three letterings in place at full speed, so
// nothing is reordered. A primitive is made once per shape and kept.
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <mutex>

#include "bf16_method.hpp"
#include "espalier/util/environment.hpp"
#include "kernels.hpp"
#include "one_dnn_product.hpp"
#include "scratch.hpp"
#include "widened_product.hpp"

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

/// Where a product's operands lie.
struct Operands {
  void *a, *b, *c;
  Dtype input, output;
  bool accumulate;
  void* bias = nullptr;  ///< of the input's type, unless there is none
};

/// All that a primitive is specialised for. oneDNN splits work by the number of threads it is made under.
struct Key {
  ProductShape shape;
  Dtype input, output;
  bool accumulate, bias;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Product {
  dnnl::memory::desc a, b, bias, c, scratch;
  dnnl::matmul primitive;
};

Product MakeProduct(const Key& key) {
  const ProductShape& s = key.shape;
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
const Product& FindProduct(const Key& key) {
  static std::mutex mutex;
  static std::map<Key, Product> products;
  const std::lock_guard lock(mutex);
  auto it = products.find(key);
  if (it == products.end()) it = products.emplace(key, MakeProduct(key)).first;
  return it->second;
}

void Multiply(const ProductShape& s, const Operands& x) {
  if (omp_get_max_threads() != Threads()) omp_set_num_threads(Threads());
  const Product& product = FindProduct({s, x.input, x.output, x.accumulate, x.bias != nullptr, Threads()});
  std::byte* scratch = Scratch(static_cast<int64_t>(product.scratch.get_size()), ScratchUse::kOneDnn);
  thread_local dnnl::stream stream(Engine());
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, dnnl::memory(product.a, Engine(), x.a)},
      {DNNL_ARG_WEIGHTS, dnnl::memory(product.b, Engine(), x.b)},
      {DNNL_ARG_DST, dnnl::memory(product.c, Engine(), x.c)},
      {DNNL_ARG_SCRATCHPAD, dnnl::memory(product.scratch, Engine(), scratch)}};
  if (x.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(product.bias, Engine(), x.bias));
  product.primitive.execute(stream, arguments);
  stream.wait();
}

/// Adds up a product in slices of the contracted dim. Beyond kDeep elements oneDNN loses a fifth of its rate (the
/// head's dx contracts the vocabulary), below it nothing.
constexpr int64_t kDeep = 16384, kSlice = 8192;

void MultiplyInSlices(const ProductShape& s, const Operands& x) {
  const int64_t slices = (s.k + kSlice - 1) / kSlice, depth = ((s.k + slices - 1) / slices + 63) / 64 * 64;
  for (int64_t p = 0; p < s.k; p += depth) {
    ProductShape slice = s;
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
void MultiplyInSlicesAndRound(const ProductShape& s, const Operands& x) {
  constexpr int64_t kRows = 2048;
  float* sums = ScratchOf<float>(std::min(kRows, s.m) * s.n);
  for (int64_t row = 0; row < s.m; row += kRows) {
    ProductShape block = s;
    block.m = std::min(kRows, s.m - row);
    MultiplyInSlices(block, {static_cast<std::byte*>(x.a) + row * s.a_row * SizeOf(x.input), x.b, sums, x.input,
                             Dtype::kF32, false, x.bias});
    Bf16* c = static_cast<Bf16*>(x.c) + row * s.n;
    ParallelRanges(block.m * s.n, kWorthAThread, [=](int64_t begin, int64_t end) {
      ForLanes(begin, end, [=](int64_t i, auto lanes) { Store(c + i, Load(sums + i, lanes), lanes); });
    });
  }
}

/// A sum of nothing and a bias.
void BiasAlone(const KernelCall& call) {
  if (call.inputs.size() < 3) return;
  const Tensor inputs[] = {call.outputs[0], call.inputs[2]};
  AddBias({.inputs = inputs, .outputs = call.outputs});
}

bool WidenIsForced() { return FromEnvironment("ESPALIER_BF16") == "widen"; }

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

void MultiplyF32(const ProductShape& shape, float* a, float* b, float* c, bool accumulate) {
  Multiply(shape, {a, b, c, Dtype::kF32, Dtype::kF32, accumulate});
}

bool WidensBf16() {
  static const bool widens = WidenIsForced() || dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core_bf16;
  return widens;
}

bool UsesAmx() {
  static const bool uses =
      !WidensBf16() && dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_amx && AmxIsGranted();
  return uses;
}

// a, b -> c, lettered by `spec`; bf16 products accumulate in fp32. With a bias: plus it, rounded once
void Matmul(const KernelCall& call) {
  const ProductShape s = ProductOf(call).shape;
  const Tensor &a = call.inputs[0], &b = call.inputs[1], &c = call.outputs[0];
  if (s.m * s.n == 0) return;
  if (s.k == 0) {
    if (!call.accumulate) std::memset(c.data, 0, static_cast<size_t>(s.m * s.n * SizeOf(c.dtype)));
    return BiasAlone(call);
  }
  if (a.dtype == Dtype::kBf16 && WidensBf16()) {
    return WidenedProduct(s, a.As<Bf16>(), b.As<Bf16>(), c, call.accumulate, DataOrNull<Bf16>(call.inputs, 2));
  }
  const Operands operands{a.data, b.data, c.data, a.dtype, c.dtype, call.accumulate, DataOrNull<void>(call.inputs, 2)};
  if (s.k <= kDeep) return Multiply(s, operands);
  if (c.dtype == Dtype::kF32) return MultiplyInSlices(s, operands);
  MultiplyInSlicesAndRound(s, operands);
}

}  // namespace cpu

std::string_view CpuBf16Method() {
  if (cpu::WidensBf16()) return "widen to fp32";
  return cpu::UsesAmx() ? "amx" : "avx512_bf16";
}

}  // namespace espalier
