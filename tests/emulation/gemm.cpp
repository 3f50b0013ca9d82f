// GEMMs as a plain loop, in place of src/kernels/cuda/gemm/{gemm,measure_gemms}.cpp.
#include "kernels/cuda/gemm/gemm.hpp"

#include <vector>

#include "emulate.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/util/error.hpp"
#include "kernels/fp8.hpp"

namespace espalier::cuda {
namespace {

float Load(const void* x, Dtype dtype, int64_t i) {
  if (IsFp8(dtype)) return FromFp8(dtype, static_cast<const uint8_t*>(x)[i]);
  return dtype == Dtype::kF32 ? static_cast<const float*>(x)[i] : ToFloat(static_cast<const Bf16*>(x)[i]);
}

void Store(void* x, Dtype dtype, int64_t i, float value) {
  if (dtype == Dtype::kF32)
    static_cast<float*>(x)[i] = value;
  else
    static_cast<Bf16*>(x)[i] = ToBf16(value);
}

/// The factor of the sum for c[i,j].
float ScaleOf(const Gemm& gemm, const GemmOperands& memory, int64_t i, int64_t j) {
  if (gemm.scales == Scales::kNone) return 1;
  const bool rows = gemm.scales == Scales::kRow;
  return memory.a_scales[rows ? i : 0] * memory.b_scales[rows ? j : 0];
}

/// Tensor cores take fp8 operands that are contiguous along the contracted dim, in multiples of 16 bytes, and not two
/// of e5m2.
void CheckFp8(const Gemm& gemm) {
  if (gemm.scales == Scales::kNone) return;
  const GemmShape& s = gemm.shape;
  CHECK(s.a_column == 1 && s.b_row == 1 && s.k % 16 == 0 && s.n % 16 == 0 && s.a_row % 16 == 0 && s.b_column % 16 == 0,
        "GEMM {}: tensor cores take no such fp8 operands", ToString(gemm));
  CHECK(gemm.input == Dtype::kF8E4M3 || gemm.TypeOfB() == Dtype::kF8E4M3, "GEMM {}: both are e5m2", ToString(gemm));
}

/// Operand b as fp32 [k,n].
std::vector<float> LoadB(const Gemm& gemm, const GemmOperands& memory) {
  const GemmShape& s = gemm.shape;
  std::vector<float> b(static_cast<size_t>(s.k * s.n));
  for (int64_t p = 0; p < s.k; ++p)
    for (int64_t j = 0; j < s.n; ++j)
      b[static_cast<size_t>(p * s.n + j)] = Load(memory.b, gemm.TypeOfB(), p * s.b_row + j * s.b_column);
  return b;
}

/// The elements of a row are summed side by side, so that the loop over a row of c is vectorized.
void MultiplyRow(const Gemm& gemm, const GemmOperands& memory, const std::vector<float>& b, int64_t i) {
  const GemmShape& s = gemm.shape;
  std::vector<float> sums(static_cast<size_t>(s.n));
  for (int64_t p = 0; p < s.k; ++p) {
    const float a = Load(memory.a, gemm.input, i * s.a_row + p * s.a_column);
    for (int64_t j = 0; j < s.n; ++j) sums[static_cast<size_t>(j)] += a * b[static_cast<size_t>(p * s.n + j)];
  }
  for (int64_t j = 0; j < s.n; ++j) {
    const int64_t at = i * s.c_row + j;
    const float more = gemm.accumulate ? Load(memory.c, gemm.output, at)
                       : gemm.bias     ? Load(memory.bias, gemm.output, j)
                                       : 0.0f;
    Store(memory.c, gemm.output, at, more + sums[static_cast<size_t>(j)] * ScaleOf(gemm, memory, i, j));
  }
}

}  // namespace

GemmPlatform GetGemmPlatform() { return {"emulated", "plain loop"}; }

void PrepareGemm(const Gemm& gemm, int64_t workspace_bytes) {
  CheckFp8(gemm);
  CHECK(workspace_bytes > 0, "GEMM {}: no workspace is planned", ToString(gemm));
}

void Multiply(const Gemm& gemm, const GemmOperands& memory, cudaStream_t stream) {
  PrepareGemm(gemm, memory.workspace_bytes);
  emulation::issue(stream, [=] {
    const GemmShape& s = gemm.shape;
    std::vector<float> b;
    for (int64_t block = 0; block < s.blocks; ++block) {
      GemmOperands at = memory;
      at.b = static_cast<const std::byte*>(memory.b) + block * s.b_block * SizeOf(gemm.TypeOfB());
      if (block == 0 || s.b_block > 0) b = LoadB(gemm, at);
      at.a = static_cast<const std::byte*>(memory.a) + block * s.a_block * SizeOf(gemm.input);
      at.c = static_cast<std::byte*>(memory.c) + block * s.c_block * SizeOf(gemm.output);
      for (int64_t i = 0; i < s.m; ++i) MultiplyRow(gemm, at, b, i);
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
