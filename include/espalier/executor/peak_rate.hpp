// The most that a device computes in products: what a run's rate is counted against (model-flops utilisation, MFU).
#pragma once

#include <string>
#include <string_view>

#include "espalier/util/types.hpp"

namespace espalier {

struct PeakRate {
  double flops = 0;    ///< operations per second; 0: not known
  std::string source;  ///< where the figure is from, or why it is not known
};

/// A GPU's by its name: dense products as its data sheet states them. bf16 is the rate of the tensor cores; fp32 is
/// that of the other cores, since fp32 products never use TF32 here.
PeakRate GpuPeak(std::string_view name, Dtype compute);

/// This rank's share of the processor: the best of some large products with `threads` threads by the kernels that
/// train. It takes some 30 ms.
PeakRate MeasureCpuPeak(Dtype compute, int threads);

}  // namespace espalier
