#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "cublas_lt.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fill_with_numbers.hpp"
#include "espalier/kernels/cuda/stopwatch.hpp"
#include "espalier/ops/block_scales.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/median.hpp"
#include "gemm.hpp"
#include "kernels/cuda/runtime/prepare.hpp"

namespace espalier::cuda {
namespace {

constexpr int kCandidates = 16, kRounds = 5, kMaxRepetitions = 200;
constexpr double kRoundMicroseconds = 5000, kWorthChanging = 0.99;

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;

DeviceMemory Allocate(int64_t bytes) {
  void* data = nullptr;
  CUDA_CALL(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return DeviceMemory(data);
}

/// Operands of one GEMM in separate memory.
struct Operands {
  explicit Operands(const GemmDemand& demand)
      : a(Allocate(Bytes(demand.gemm, ElementsOfA(demand.gemm.shape)))),
        b(Allocate(ElementsOfB(demand.gemm.shape) * SizeOf(demand.gemm.TypeOfB()))),
        bias(demand.gemm.bias ? Allocate(demand.gemm.shape.n * SizeOf(demand.gemm.output)) : nullptr),
        scales(demand.gemm.scales == Scales::kNone ? nullptr : Allocate(ScaleBytes(demand.gemm))),
        c(Allocate(ElementsOfC(demand.gemm.shape) * 4)),
        workspace(Allocate(demand.workspace_bytes)),
        workspace_bytes(demand.workspace_bytes) {
    FillWithNumbers(a.get(), Bytes(demand.gemm, ElementsOfA(demand.gemm.shape)), demand.gemm.input);
    FillWithNumbers(b.get(), ElementsOfB(demand.gemm.shape) * SizeOf(demand.gemm.TypeOfB()), demand.gemm.TypeOfB());
    if (bias) FillWithNumbers(bias.get(), demand.gemm.shape.n * SizeOf(demand.gemm.output), demand.gemm.output);
    if (scales)
      FillWithNumbers(scales.get(), ScaleBytes(demand.gemm),
                      demand.gemm.scales == Scales::kMx ? Dtype::kF8E8M0 : Dtype::kF32);
    CUDA_CALL(cudaMemset(c.get(), 0, static_cast<size_t>(ElementsOfC(demand.gemm.shape) * 4)));
  }
  static int64_t ElementsOfA(const GemmShape& s) { return (s.blocks - 1) * s.a_block + s.m * s.k; }
  static int64_t ElementsOfB(const GemmShape& s) { return (s.blocks - 1) * s.b_block + s.k * s.n; }
  static int64_t ElementsOfC(const GemmShape& s) { return (s.blocks - 1) * s.c_block + s.m * s.n; }
  /// Enough for either operand; the values do not matter.
  static int64_t ScaleBytes(const Gemm& gemm) {
    const int64_t lines = std::max(gemm.shape.m, gemm.shape.n);
    return gemm.scales == Scales::kMx ? BlockScaleBytes(lines, gemm.shape.k) : lines * SizeOf(Dtype::kF32);
  }
  static int64_t Bytes(const Gemm& gemm, int64_t elements) { return elements * SizeOf(gemm.input); }

  GemmOperands Memory() const {
    return {a.get(), b.get(), bias.get(), scales.get(), scales.get(), c.get(), workspace.get(), workspace_bytes};
  }

  DeviceMemory a, b, bias, scales, c, workspace;
  int64_t workspace_bytes;
};

/// Median time of every candidate.
std::vector<double> TimesOf(const CublasGemm& gemm, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                            const Operands& x) {
  const Stopwatch watch(nullptr);
  std::vector<std::vector<double>> times(candidates.size());
  const auto time = [&](size_t i, int repetitions) {
    return watch.Microseconds(repetitions, [&] { gemm.Run(candidates[i].algo, x.Memory(), nullptr); });
  };
  for (size_t i = 0; i < candidates.size(); ++i) time(i, 2);
  const int repetitions =
      static_cast<int>(std::clamp(kRoundMicroseconds / std::max(time(0, 2), 1.0), 1.0, double{kMaxRepetitions}));
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i) times[i].push_back(time(i, repetitions));
  std::vector<double> medians;
  for (std::vector<double>& of_one : times) medians.push_back(MedianOf(std::move(of_one)));
  return medians;
}

GemmPlan Measure(const GemmDemand& demand) {
  const CublasGemm gemm(demand.gemm);
  const auto candidates = gemm.Candidates(kCandidates, demand.workspace_bytes);
  if (candidates.empty())
    throw UserError(ExitStatus::kDoesNotFit, fmt::format("GEMM {}: no algorithm within {} bytes", ToString(demand.gemm),
                                                         demand.workspace_bytes));
  const std::vector<double> times = TimesOf(gemm, candidates, Operands(demand));
  const auto fastest = std::ranges::min_element(times);
  const size_t chosen = *fastest < kWorthChanging * times[0] ? static_cast<size_t>(fastest - times.begin()) : 0;
  return {demand.gemm, ToHex(std::as_bytes(std::span(&candidates[chosen].algo, 1))),
          static_cast<int64_t>(candidates[chosen].workspaceSize), times[chosen], times[0]};
}

}  // namespace

GemmPlans MeasureGemms(std::span<const GemmDemand> demands, const std::function<void(const GemmPlan&)>& measured) {
  GemmPlans plans{GetGemmPlatform(), {}};
  for (const GemmDemand& demand : demands) {
    plans.entries.push_back(Measure(demand));
    measured(plans.entries.back());
  }
  return plans;
}

}  // namespace espalier::cuda
