// The bare products of a training step: every matrix product of one forward and backward of a Llama on one sequence, as
// plain oneDNN primitives and nothing else. What a whole step reaches is measured against this (tests/bench/step.py).
//
//   gemms_bench f32|bf16 THREADS LAYERS DIM KV_DIM FFN VOCAB SEQ
//
// Prints one JSON line: flops of a step's products, seconds (median of 3 rounds), rate, and the type of the operands.
// On a processor without instructions for bf16 that is f32 for both: Espalier's products are in fp32 there, too.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

namespace {

using dnnl::memory;

struct Product {
  int64_t m, n, k;
  enum class Kind { kForward, kInputGradient, kWeightGradient } kind;
  int64_t count;
};

/// y = x W^T, dx = dy W, dW = dy^T x for x of s rows, W of [out, in].
void AddLinear(std::vector<Product>& products, int64_t s, int64_t out, int64_t in, int64_t count) {
  products.push_back({s, out, in, Product::Kind::kForward, count});
  products.push_back({s, in, out, Product::Kind::kInputGradient, count});
  products.push_back({out, in, s, Product::Kind::kWeightGradient, count});
}

bool HasBf16Instructions() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

class Bench {
 public:
  explicit Bench(memory::data_type type) : type_(type), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  /// Seconds of `count` executions.
  double Run(const Product& p) {
    using Tag = memory::format_tag;
    const bool weight_gradient = p.kind == Product::Kind::kWeightGradient;
    const memory::desc a({p.m, p.k}, type_, weight_gradient ? Tag::ba : Tag::ab);
    const memory::desc b({p.k, p.n}, type_, p.kind == Product::Kind::kForward ? Tag::ba : Tag::ab);
    const memory::desc c({p.m, p.n}, weight_gradient ? memory::data_type::f32 : type_, Tag::ab);
    const dnnl::matmul matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine_));
    memory x = Filled(a), y = Filled(b), z(c, engine_);
    const std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, y}, {DNNL_ARG_DST, z}};
    const auto once = [&] {
      matmul.execute(stream_, arguments);
      stream_.wait();
    };
    once();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < p.count; ++i) once();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  /// Small distinct numbers, so that no product runs on zeros.
  memory Filled(const memory::desc& desc) {
    memory m(desc, engine_);
    auto* bytes = static_cast<unsigned char*>(m.get_data_handle());
    std::memset(bytes, 0, desc.get_size());
    const size_t width = type_ == memory::data_type::f32 ? 4 : 2;
    for (size_t i = 0; i * width < desc.get_size(); ++i) {
      bytes[i * width + width - 1] = 0x3e;
      bytes[i * width + width - 2] = static_cast<unsigned char>(i * 37 % 128);
    }
    return m;
  }

  memory::data_type type_;
  dnnl::engine engine_;
  dnnl::stream stream_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr, "usage: gemms_bench f32|bf16 THREADS LAYERS DIM KV_DIM FFN VOCAB SEQ\n");
    return 2;
  }
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  omp_set_num_threads(static_cast<int>(number(2)));
  const int64_t layers = number(3), dim = number(4), kv = number(5), ffn = number(6), vocab = number(7),
                seq = number(8);
  std::vector<Product> products;
  AddLinear(products, seq, dim, dim, 2 * layers);
  AddLinear(products, seq, kv, dim, 2 * layers);
  AddLinear(products, seq, ffn, dim, 2 * layers);
  AddLinear(products, seq, dim, ffn, layers);
  AddLinear(products, seq, vocab, dim, 1);
  double flops = 0;
  for (const Product& p : products) flops += 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.count);
  const bool is_bf16 = std::strcmp(argv[1], "bf16") == 0 && HasBf16Instructions();
  Bench bench(is_bf16 ? memory::data_type::bf16 : memory::data_type::f32);
  std::vector<double> rounds;
  for (int round = 0; round < 3; ++round) {
    double seconds = 0;
    for (const Product& p : products) seconds += bench.Run(p);
    rounds.push_back(seconds);
  }
  std::sort(rounds.begin(), rounds.end());
  std::printf("{\"flops\": %.6e, \"seconds\": %.4f, \"tflops\": %.4f, \"type\": \"%s\"}\n", flops, rounds[1],
              flops / rounds[1] / 1e12, is_bf16 ? "bf16" : "fp32");
}
