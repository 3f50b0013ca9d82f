// GEMMs of activations and weights, by gemm/gemm.hpp.
#include "matmul.hpp"

#include "gemm/gemm.hpp"
#include "kernels/read_arguments.hpp"
#include "runtime/kernels.hpp"
#include "runtime/prepare.hpp"

namespace espalier::cuda {
namespace {

bool IsEmpty(const GemmShape& s) { return s.blocks * s.m * s.n * s.k == 0; }

/// An empty GEMM: the result is 0, the old c, or the bias. Several blocks follow one another in c.
void MatmulOfDepth0(const MatmulArgs& a, const LaunchContext& context) {
  const GemmShape& s = a.gemm.shape;
  if (!a.gemm.accumulate) LaunchClear(a.c.data, s.blocks * s.m * s.n * SizeOf(a.c.dtype), context.stream);
  if (a.bias) AddBias({.x = a.c, .bias = a.bias, .y = a.c, .rows = s.m, .width = s.n}, context);
}

}  // namespace

void PrepareMatmul(const KernelCall& call) {
  const Gemm gemm = ReadArguments<MatmulArgs>(call).gemm;
  if (!IsEmpty(gemm.shape)) PrepareGemm(gemm, call.workspace_bytes);
}

// bf16 and fp8 GEMMs accumulate in fp32; fp32 GEMMs multiply in fp32. A bias is added before the sums are rounded.
void Matmul(const MatmulArgs& a, const LaunchContext& context) {
  if (IsEmpty(a.gemm.shape)) return MatmulOfDepth0(a, context);
  Multiply(a.gemm,
           {a.a.data, a.b.data, a.bias.data, a.a_scales.data, a.b_scales.data, a.c.data, context.workspace,
            context.workspace_bytes},
           context.stream);
}

}  // namespace espalier::cuda
