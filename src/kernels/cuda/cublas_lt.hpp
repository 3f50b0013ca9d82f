// cuBLASLt, as products.cpp and measure_products.cpp see it: descriptors that end with their owners, and errors that
// say where.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "espalier/kernels/product.hpp"

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

/// A product as the library wants it. Its matrices are column-major, so it is told c' = b' a': its first operand is our
/// b.
class CublasProduct {
 public:
  explicit CublasProduct(const Product& product);

  /// The library's candidates within `workspace_bytes`, the one it deems best first.
  std::vector<cublasLtMatmulHeuristicResult_t> Candidates(int most, int64_t workspace_bytes) const;
  /// Bytes that an algorithm needs, or -1 if it cannot do this product here.
  int64_t WorkspaceOf(const cublasLtMatmulAlgo_t& algorithm) const;
  /// `bias` is nullptr for a product without.
  void Run(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b, const void* bias, void* c,
           void* workspace, int64_t workspace_bytes, cudaStream_t stream) const;

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

  float beta_;
  Owned<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy> operation_;
  Owned<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy> first_, second_, result_;
};

}  // namespace espalier::cuda
