// GEMMs on the device, by cuBLASLt. Tests run them over its functions emulated on the host (tests/emulation).
#pragma once

#include <cuda_runtime.h>

#include "espalier/kernels/gemm.hpp"
#include "espalier/kernels/measurements.hpp"

namespace espalier::cuda {

/// GPU and library of the algorithms.
Platform GetGemmPlatform();

/// Device memory of a GEMM; the call may use `workspace` until it ends.
struct GemmOperands {
  const void *a, *b;
  const void* bias;                 ///< nullptr: none
  const void *a_scales, *b_scales;  ///< scales of fp8 operands, as MatmulArgs has them, otherwise nullptr
  void* c;
  void* workspace;
  int64_t workspace_bytes;
};

/// Chooses the algorithm: the one in the plan file, else the library's first that stays within the workspace. Throws
/// UserError (kDoesNotFit) if there is none. A GEMM that was not prepared is prepared at its first call.
void PrepareGemm(const Gemm& gemm, int64_t workspace_bytes);

/// Issues c = a b, c = a b + bias, or c += a b. No extent is 0.
void Multiply(const Gemm& gemm, const GemmOperands& memory, cudaStream_t stream);

}  // namespace espalier::cuda
