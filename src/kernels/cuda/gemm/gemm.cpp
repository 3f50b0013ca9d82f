// GEMMs by cuBLASLt. An algorithm is chosen once per GEMM and kept.
#include "gemm.hpp"

#include <cstring>
#include <map>
#include <mutex>

#include "cublas_lt.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/util/error.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "kernels/cuda/runtime/workspace.hpp"

namespace espalier::cuda {
namespace {

struct Prepared {
  CublasGemm gemm;
  cublasLtMatmulAlgo_t algorithm;
};

[[noreturn]] void RefuseGemm(const Gemm& gemm, const std::string& what) {
  throw UserError(ExitStatus::kDoesNotFit, fmt::format("GEMM {}: {}", ToString(gemm), what));
}

cublasLtMatmulAlgo_t PlannedAlgorithm(const GemmPlan& plan, const CublasGemm& gemm, int64_t workspace_bytes) {
  cublasLtMatmulAlgo_t algorithm{};
  const std::vector<std::byte> bytes = FromHex(plan.algorithm);
  if (bytes.size() != sizeof algorithm)
    RefuseGemm(plan.gemm, fmt::format("the plan file has an algorithm of {} bytes; {} has {}: calibrate again",
                                      bytes.size(), GetGemmPlatform().library, sizeof algorithm));
  std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
  const int64_t needed = gemm.WorkspaceOf(algorithm), usable = UsableBytes(workspace_bytes);
  if (needed < 0 || needed > usable)
    RefuseGemm(
        plan.gemm,
        fmt::format(
            "the plan file's algorithm wants {} bytes of workspace (-1: cannot run), {} are planned: calibrate again",
            needed, usable));
  return algorithm;
}

std::string NoneWithin(int64_t workspace_bytes) {
  const Platform platform = GetGemmPlatform();
  return fmt::format("{} has no algorithm within {} bytes of workspace on {}", platform.library, workspace_bytes,
                     platform.gpu);
}

cublasLtMatmulAlgo_t FirstAlgorithm(const Gemm& key, const CublasGemm& gemm, int64_t workspace_bytes) {
  const auto candidates = gemm.Candidates(16, workspace_bytes);
  if (candidates.empty()) RefuseGemm(key, NoneWithin(workspace_bytes));
  return candidates.front().algo;
}

Prepared Prepare(const Gemm& key, int64_t workspace_bytes) {
  CublasGemm gemm(key);
  const GemmPlan* plan = GetCudaKernelOptions().gemm_plans.Find(key);
  const cublasLtMatmulAlgo_t algorithm =
      plan != nullptr ? PlannedAlgorithm(*plan, gemm, workspace_bytes) : FirstAlgorithm(key, gemm, workspace_bytes);
  return {std::move(gemm), algorithm};
}

/// The algorithm depends on the workspace, too: training and evaluation may plan different ones. Prepared GEMMs are
/// never destroyed, because their library may have ended before.
const Prepared& FindPrepared(const Gemm& gemm, int64_t workspace_bytes) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<Gemm, int64_t>, Prepared>;
  const std::lock_guard lock(mutex);
  const std::pair key(gemm, workspace_bytes);
  auto it = all.find(key);
  if (it == all.end()) it = all.emplace(key, Prepare(gemm, workspace_bytes)).first;
  return it->second;
}

}  // namespace

Platform GetGemmPlatform() {
  int device = 0;
  cudaDeviceProp properties;
  CUDA_CALL(cudaGetDevice(&device));
  CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  const size_t version = cublasLtGetVersion();
  return {properties.name, fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

void PrepareGemm(const Gemm& gemm, int64_t workspace_bytes) { FindPrepared(gemm, workspace_bytes); }

void Multiply(const Gemm& gemm, const GemmOperands& operands, cudaStream_t stream) {
  const Prepared& prepared = FindPrepared(gemm, operands.workspace_bytes);
  prepared.gemm.Run(prepared.algorithm, operands, stream);
}

}  // namespace espalier::cuda
