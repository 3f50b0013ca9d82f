// The bare GEMMs of a training step on a GPU: every GEMM of one forward and backward pass of a Llama, as cuBLASLt calls
// and nothing else. bench/bench.py compares the rate of a whole step with this.
//
//   gpu_gemms LAYERS DIM KV_DIM FFN VOCAB TOKENS
//
// bf16 operands with random mantissas (zeros would run faster), sums in fp32, weight gradients in fp32. Prints one JSON
// line: FLOPs of a step's GEMMs, seconds (median of 5 rounds), rate.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kRounds = 5;

void Require(bool holds, const char* expression, int status) {
  if (holds) return;
  std::fprintf(stderr, "gpu_gemms: %s: status %d\n", expression, status);
  std::exit(1);
}
#define CUDA(call)                                              \
  do {                                                          \
    const auto status = (call);                                 \
    Require(static_cast<int>(status) == 0, #call, int(status)); \
  } while (false)

/// Column-major C[m,n] = op(A) op(B) with k between them.
struct Product {
  int64_t m, n, k;
  cublasOperation_t a, b;
  cudaDataType_t result;
  int64_t count;
};

/// y = x W^T, dx = dy W, dW = dy^T x for x of s rows and W of [out, in], all row-major.
void AddLinear(std::vector<Product>& products, int64_t s, int64_t out, int64_t in, int64_t count) {
  products.push_back({out, s, in, CUBLAS_OP_T, CUBLAS_OP_N, CUDA_R_16BF, count});
  products.push_back({in, s, out, CUBLAS_OP_N, CUBLAS_OP_N, CUDA_R_16BF, count});
  products.push_back({in, out, s, CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_32F, count});
}

int64_t ResultBytes(const Product& p) { return p.m * p.n * (p.result == CUDA_R_32F ? 4 : 2); }

/// Device memory of random bf16 numbers of magnitude 2^-7 to 1, of either sign.
void* Filled(size_t bytes, unsigned seed) {
  std::vector<uint16_t> pattern(size_t{1} << 24);
  std::mt19937 random(seed);
  for (uint16_t& x : pattern) {
    const unsigned bits = random();
    x = static_cast<uint16_t>((bits & 0x8000) | (0x3c00 + (bits & 0x3ff)));
  }
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, bytes));
  for (size_t at = 0; at < bytes; at += 2 * pattern.size())
    CUDA(cudaMemcpy(static_cast<char*>(memory) + at, pattern.data(), std::min(2 * pattern.size(), bytes - at),
                    cudaMemcpyHostToDevice));
  return memory;
}

/// One GEMM with the library's first choice of algorithm.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Product& p) : handle_(handle), p_(p) {
    CUDA(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUDA(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &p.a, sizeof(p.a)));
    CUDA(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &p.b, sizeof(p.b)));
    a_ = Layout(CUDA_R_16BF, p.m, p.k, p.a);
    b_ = Layout(CUDA_R_16BF, p.k, p.n, p.b);
    c_ = Layout(p.result, p.m, p.n, CUBLAS_OP_N);
    Choose();
  }

  void Run(const void* a, const void* b, void* c, void* workspace) const {
    const float one = 1, zero = 0;
    for (int64_t i = 0; i < p_.count; ++i)
      CUDA(cublasLtMatmul(handle_, operation_, &one, a, a_, b, b_, &zero, c, c_, c, c_, &chosen_.algo, workspace,
                          kWorkspaceBytes, nullptr));
  }

 private:
  static cublasLtMatrixLayout_t Layout(cudaDataType_t type, int64_t rows, int64_t columns, cublasOperation_t op) {
    if (op == CUBLAS_OP_T) std::swap(rows, columns);
    cublasLtMatrixLayout_t layout = nullptr;
    CUDA(cublasLtMatrixLayoutCreate(&layout, type, uint64_t(rows), uint64_t(columns), rows));
    return layout;
  }
  void Choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    CUDA(cublasLtMatmulPreferenceCreate(&preference));
    CUDA(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                              sizeof(kWorkspaceBytes)));
    int found = 0;
    CUDA(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a_, b_, c_, c_, preference, 1, &chosen_, &found));
    Require(found == 1, "cublasLtMatmulAlgoGetHeuristic: no algorithm", found);
    CUDA(cublasLtMatmulPreferenceDestroy(preference));
  }

  cublasLtHandle_t handle_;
  Product p_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

class Bench {
 public:
  explicit Bench(const std::vector<Product>& products) {
    CUDA(cublasLtCreate(&handle_));
    int64_t a = 0, b = 0, c = 0;
    for (const Product& p : products) {
      plans_.emplace_back(handle_, p);
      a = std::max(a, 2 * p.m * p.k);
      b = std::max(b, 2 * p.k * p.n);
      c = std::max(c, ResultBytes(p));
    }
    a_ = Filled(size_t(a), 1);
    b_ = Filled(size_t(b), 2);
    CUDA(cudaMalloc(&c_, size_t(c)));
    CUDA(cudaMalloc(&workspace_, kWorkspaceBytes));
  }

  /// Runs every GEMM once; returns seconds.
  double Round() const {
    cudaEvent_t begin = nullptr, end = nullptr;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventRecord(begin));
    for (const Plan& plan : plans_) plan.Run(a_, b_, c_, workspace_);
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return 1e-3 * double(ms);
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::vector<Plan> plans_;
  void *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *workspace_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: gpu_gemms LAYERS DIM KV_DIM FFN VOCAB TOKENS\n");
    return 2;
  }
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  const int64_t layers = number(1), dim = number(2), kv = number(3), ffn = number(4), vocab = number(5),
                tokens = number(6);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "gpu_gemms: no GPU\n");
    return 77;
  }
  std::vector<Product> products;
  AddLinear(products, tokens, dim, dim, 2 * layers);
  AddLinear(products, tokens, kv, dim, 2 * layers);
  AddLinear(products, tokens, ffn, dim, 2 * layers);
  AddLinear(products, tokens, dim, ffn, layers);
  AddLinear(products, tokens, vocab, dim, 1);
  double flops = 0;
  for (const Product& p : products) flops += 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.count);
  const Bench bench(products);
  bench.Round();
  std::vector<double> seconds(kRounds);
  for (double& s : seconds) s = bench.Round();
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[kRounds / 2];
  std::printf("{\"flops\": %.6e, \"seconds\": %.6f, \"tflops\": %.2f}\n", flops, median, flops / median / 1e12);
}
