// Products of activations and weights by oneDNN. Its matmul reads all three letterings in place at full speed, so nothing
// is reordered. A primitive is made once per shape and kept.
#include <dnnl.hpp>

#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "bf16_method.hpp"
#include "kernels.hpp"
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

/// All that a primitive is specialised for. oneDNN splits work by the number of threads it is made under.
struct Key {
  int64_t m, n, k, a_row, b_row;
  Dtype input, output;
  bool accumulate;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Product {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul primitive;
};

Product MakeProduct(const Key& key, const ProductShape& s) {
  const dnnl::memory::desc a({s.m, s.k}, TypeOf(key.input), dnnl::memory::dims{s.a_row, s.a_column});
  const dnnl::memory::desc b({s.k, s.n}, TypeOf(key.input), dnnl::memory::dims{s.b_row, s.b_column});
  const dnnl::memory::desc c({s.m, s.n}, TypeOf(key.output), dnnl::memory::dims{s.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, Engine());
  return {a, b, c, description.scratchpad_desc(), dnnl::matmul(description)};
}

/// The primitive for a call; made at its first use.
const Product& FindProduct(const Key& key, const ProductShape& s) {
  static std::mutex mutex;
  static std::map<Key, Product> products;
  const std::lock_guard lock(mutex);
  auto it = products.find(key);
  if (it == products.end()) it = products.emplace(key, MakeProduct(key, s)).first;
  return it->second;
}

void Execute(const KernelCall& call, const ProductShape& s) {
  const Tensor &a = call.inputs[0], &b = call.inputs[1], &c = call.outputs[0];
  if (omp_get_max_threads() != Threads()) omp_set_num_threads(Threads());
  const Key key{s.m, s.n, s.k, s.a_row, s.b_row, a.dtype, c.dtype, call.accumulate, Threads()};
  const Product& product = FindProduct(key, s);
  thread_local dnnl::stream stream(Engine());
  product.primitive.execute(
      stream, {{DNNL_ARG_SRC, dnnl::memory(product.a, Engine(), a.data)},
               {DNNL_ARG_WEIGHTS, dnnl::memory(product.b, Engine(), b.data)},
               {DNNL_ARG_DST, dnnl::memory(product.c, Engine(), c.data)},
               {DNNL_ARG_SCRATCHPAD, dnnl::memory(product.scratch, Engine(),
                                                  Scratch(static_cast<int64_t>(product.scratch.get_size())))}});
  stream.wait();
}

bool WidenIsForced() {
  const char* method = std::getenv("ESPALIER_BF16");
  return method != nullptr && std::string_view(method) == "widen";
}

bool HasAmx() { return dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_amx; }

}  // namespace

bool WidensBf16() {
  static const bool widens = WidenIsForced() || dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core_bf16;
  return widens;
}

// a, b -> c, lettered by `spec`; bf16 products accumulate in fp32
void Matmul(const KernelCall& call) {
  const ProductShape s = ProductOf(call);
  const Tensor &a = call.inputs[0], &b = call.inputs[1], &c = call.outputs[0];
  CHECK(a.dtype == b.dtype && (a.dtype == c.dtype || c.dtype == Dtype::kF32), "matmul: {} by {} into {}", Name(a.dtype),
        Name(b.dtype), Name(c.dtype));
  if (s.m * s.n == 0) return;
  if (s.k == 0) {
    if (!call.accumulate) std::memset(c.data, 0, static_cast<size_t>(s.m * s.n * SizeOf(c.dtype)));
    return;
  }
  if (a.dtype == Dtype::kBf16 && WidensBf16()) {
    WidenedProduct(s, a.As<Bf16>(), b.As<Bf16>(), c, call.accumulate);
  } else {
    Execute(call, s);
  }
}

}  // namespace cpu

std::string_view CpuBf16Method() {
  if (cpu::WidensBf16()) return "widen to fp32";
  return cpu::HasAmx() ? "amx" : "avx512_bf16";
}

}  // namespace espalier
