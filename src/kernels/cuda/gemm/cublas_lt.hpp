// cuBLASLt for gemm.cpp and measure_gemms.cpp: descriptors as RAII objects, and errors with file and line.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "gemm.hpp"

namespace espalier::cuda {

/// Throws std::runtime_error.
[[noreturn]] void FailCublas(const char* file, int line, const char* expression, cublasStatus_t status);

#define CUBLAS_CALL(expression)                                                                                   \
  do {                                                                                                            \
    if (const cublasStatus_t cublas_status_ = (expression); cublas_status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ::espalier::cuda::FailCublas(__FILE__, __LINE__, #expression, cublas_status_);                              \
  } while (false)

/// The process's handle; made at the first call.
cublasLtHandle_t CublasHandle();

/// A GEMM in the library's form. Its matrices are column-major, so it computes c' = b' a': its first operand is our b.
class CublasGemm {
 public:
  explicit CublasGemm(const Gemm& gemm);

  /// The library's candidates within `workspace_bytes`, in the library's order of preference.
  std::vector<cublasLtMatmulHeuristicResult_t> Candidates(int max_count, int64_t workspace_bytes) const;
  /// Bytes that an algorithm needs, or -1 if it cannot compute this GEMM here.
  int64_t WorkspaceOf(const cublasLtMatmulAlgo_t& algorithm) const;
  void Run(const cublasLtMatmulAlgo_t& algorithm, const GemmOperands& operands, cudaStream_t stream) const;

 private:
  template <auto kDestroy>
  struct Destroyer {
    template <typename T>
    void operator()(T* x) const {
      kDestroy(x);
    }
  };
  template <typename T, auto kDestroy>
  using Owned = std::unique_ptr<T, Destroyer<kDestroy>>;

  Gemm gemm_;
  float beta_;
  Owned<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy> operation_;
  Owned<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy> first_, second_, result_;
};

}  // namespace espalier::cuda
