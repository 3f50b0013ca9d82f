// Compares the CPU's kernels with the reference kernels, call by call, in any program that does not communicate.
#pragma once

#include <set>
#include <string>
#include <tuple>

#include "espalier/executor/executor.hpp"

namespace espalier {

/// The result of a call that is furthest from its reference.
struct KernelDeviation {
  std::string call;  ///< "instruction 12 (matmul, role F, microbatch 2, layer 5)"
  double share = 0;  ///< deviation as a multiple of its bound; above 1: wrong. Infinite if one of the two is not finite
  auto Fields() { return std::tie(call, share); }
};

class KernelComparison final : public Executor {
 public:
  /// All arguments must outlive it; `arena` is the host's. CHECKs that the program has a single rank.
  KernelComparison(const Program& program, const Coordinate& coordinate, Arena& arena);

  /// Runs a step. Every call is computed by the reference and by the CPU's kernel, from the same operands; the step
  /// continues with the CPU's results. An element may differ by 1e-4 of the largest magnitude in its tensor, in bf16 by
  /// 1/64, in sums also by the rounding of their terms; integers must be equal. The fault "instruction-K:nan"
  /// (util/fault.hpp) spoils a call of the CPU.
  void Begin() override;
  StepTimes End() override { return {}; }
  void TimeNextStep() override {}

  int64_t compared() const { return compared_; }
  const std::set<std::string>& kernels() const { return kernels_; }
  /// Maximum over all steps.
  const KernelDeviation& worst() const { return worst_; }

 private:
  void Fill(const Operand& place, const void* data, int64_t bytes) override;
  void Abandon() override {}
  void Compare(const Call& call, const Operands& block);

  int64_t compared_ = 0;
  std::set<std::string> kernels_;
  KernelDeviation worst_;
};

}  // namespace espalier
