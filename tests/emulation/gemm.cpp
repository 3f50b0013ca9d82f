// GEMMs as a plain loop, in place of src/kernels/cuda/gemm/{gemm,measure_gemms}.cpp.
#include "kernels/cuda/gemm/gemm.hpp"

#include <vector>

#include "emulate.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/util/error.hpp"

namespace espalier::cuda {
namespace {

float Load(const void* x, Dtype dtype, int64_t i) {
  return dtype == Dtype::kF32 ? static_cast<const float*>(x)[i] : ToFloat(static_cast<const Bf16*>(x)[i]);
}

void Store(void* x, Dtype dtype, int64_t i, float value) {
  if (dtype == Dtype::kF32)
    static_cast<float*>(x)[i] = value;
  else
    static_cast<Bf16*>(x)[i] = ToBf16(value);
}

/// Rows are summed side by side, so that the loop over a row of c is a vector's.
void MultiplyRow(const Gemm& gemm, const GemmOperands& memory, int64_t i) {
  const GemmShape& s = gemm.shape;
  std::vector<float> sums(static_cast<size_t>(s.n));
  for (int64_t p = 0; p < s.k; ++p) {
    const float a = Load(memory.a, gemm.input, i * s.a_row + p * s.a_column);
    for (int64_t j = 0; j < s.n; ++j)
      sums[static_cast<size_t>(j)] += a * Load(memory.b, gemm.input, p * s.b_row + j * s.b_column);
  }
  for (int64_t j = 0; j < s.n; ++j) {
    const int64_t at = i * s.c_row + j;
    const float more = gemm.accumulate ? Load(memory.c, gemm.output, at)
                       : gemm.bias     ? Load(memory.bias, gemm.output, j)
                                       : 0.0f;
    Store(memory.c, gemm.output, at, more + sums[static_cast<size_t>(j)]);
  }
}

}  // namespace

GemmPlatform GetGemmPlatform() { return {"emulated", "plain loop"}; }

void PrepareGemm(const Gemm& gemm, int64_t workspace_bytes) {
  CHECK(workspace_bytes > 0, "GEMM {}: no workspace is planned", ToString(gemm));
}

void Multiply(const Gemm& gemm, const GemmOperands& memory, cudaStream_t stream) {
  PrepareGemm(gemm, memory.workspace_bytes);
  emulation::issue(stream, [=] {
    const GemmShape& s = gemm.shape;
    for (int64_t block = 0; block < s.blocks; ++block) {
      GemmOperands at = memory;
      at.a = static_cast<const std::byte*>(memory.a) + block * s.a_block * SizeOf(gemm.input);
      at.c = static_cast<std::byte*>(memory.c) + block * s.c_block * SizeOf(gemm.output);
      for (int64_t i = 0; i < s.m; ++i) MultiplyRow(gemm, at, i);
    }
  });
}

/// There is one algorithm, and nothing to time.
GemmPlans MeasureGemms(std::span<const GemmDemand> demands, const std::function<void(const GemmPlan&)>& measured) {
  const GemmPlatform platform = GetGemmPlatform();
  GemmPlans plans{platform.gpu, platform.library, {}};
  for (const GemmDemand& demand : demands) {
    plans.plans.push_back({demand.gemm, "00", 0, 1, 1});
    measured(plans.plans.back());
  }
  return plans;
}

}  // namespace espalier::cuda
