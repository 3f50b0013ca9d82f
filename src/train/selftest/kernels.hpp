// Compares this rank's CPU kernels with the reference.
#pragma once

#include <string>
#include <tuple>

#include "espalier/executor/kernel_comparison.hpp"

namespace espalier {

/// The results of one rank.
struct KernelsOfRank {
  std::string host, level;
  int64_t calls = 0, kernels = 0;
  KernelDeviation worst = {};
  std::string deck = {};  ///< deck of the worst kernel
  auto Fields() { return std::tie(host, level, calls, kernels, worst, deck); }
};

/// Runs two steps each of a Llama in fp32, one in bf16 and a GPT-2, with `threads` threads.
KernelsOfRank CompareKernels(int threads);

}  // namespace espalier
