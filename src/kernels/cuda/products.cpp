// Products by cuBLASLt. An algorithm is chosen once per product and kept.
#include "products.hpp"

#include <cstring>
#include <map>
#include <mutex>

#include "cublas_lt.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/util/error.hpp"
#include "prepare.hpp"

namespace espalier::cuda {
namespace {

struct Prepared {
  CublasProduct product;
  cublasLtMatmulAlgo_t algorithm;
};

[[noreturn]] void RefuseProduct(const Product& product, const std::string& what) {
  throw UserError(ExitStatus::kDoesNotFit, fmt::format("product {}: {}", ToString(product), what));
}

cublasLtMatmulAlgo_t PlannedAlgorithm(const ProductPlan& plan, const CublasProduct& product, int64_t workspace_bytes) {
  cublasLtMatmulAlgo_t algorithm{};
  const std::vector<std::byte> bytes = FromHex(plan.algorithm);
  if (bytes.size() != sizeof algorithm)
    RefuseProduct(plan.product, fmt::format("the plan file has an algorithm of {} bytes; {} has {}: calibrate again",
                                            bytes.size(), GetProductPlatform().library, sizeof algorithm));
  std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
  const int64_t needed = product.WorkspaceOf(algorithm), usable = UsableBytes(workspace_bytes);
  if (needed < 0 || needed > usable)
    RefuseProduct(
        plan.product,
        fmt::format(
            "the plan file's algorithm wants {} bytes of workspace (-1: cannot run), {} are planned: calibrate again",
            needed, usable));
  return algorithm;
}

std::string NoneWithin(int64_t workspace_bytes) {
  const ProductPlatform platform = GetProductPlatform();
  return fmt::format("{} has no algorithm within {} bytes of workspace on {}", platform.library, workspace_bytes,
                     platform.gpu);
}

cublasLtMatmulAlgo_t FirstAlgorithm(const Product& key, const CublasProduct& product, int64_t workspace_bytes) {
  const auto candidates = product.Candidates(16, workspace_bytes);
  if (candidates.empty()) RefuseProduct(key, NoneWithin(workspace_bytes));
  return candidates.front().algo;
}

Prepared Prepare(const Product& key, int64_t workspace_bytes) {
  CublasProduct product(key);
  const ProductPlan* plan = GetCudaKernelOptions().product_plans.Find(key);
  const cublasLtMatmulAlgo_t algorithm = plan != nullptr ? PlannedAlgorithm(*plan, product, workspace_bytes)
                                                         : FirstAlgorithm(key, product, workspace_bytes);
  return {std::move(product), algorithm};
}

/// The algorithm depends on the workspace, too: training and evaluation may plan different ones. What was prepared is
/// never destroyed: its library may have ended before.
const Prepared& FindPrepared(const Product& product, int64_t workspace_bytes) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<Product, int64_t>, Prepared>;
  const std::lock_guard lock(mutex);
  const std::pair key(product, workspace_bytes);
  auto it = all.find(key);
  if (it == all.end()) it = all.emplace(key, Prepare(product, workspace_bytes)).first;
  return it->second;
}

}  // namespace

ProductPlatform GetProductPlatform() {
  int device = 0;
  cudaDeviceProp properties;
  CUDA_CALL(cudaGetDevice(&device));
  CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  const size_t version = cublasLtGetVersion();
  return {properties.name, fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

void PrepareProduct(const Product& product, int64_t workspace_bytes) { FindPrepared(product, workspace_bytes); }

void Multiply(const Product& product, const ProductMemory& m, cudaStream_t stream) {
  const Prepared& prepared = FindPrepared(product, m.workspace_bytes);
  prepared.product.Run(prepared.algorithm, m.a, m.b, m.bias, m.c, m.workspace, m.workspace_bytes, stream);
}

}  // namespace espalier::cuda
