// The peak matmul rate of a device: the denominator of model-flops utilisation (MFU).
#pragma once

#include <string>
#include <string_view>

#include "espalier/util/types.hpp"

namespace espalier {

struct PeakRate {
  double flops = 0;    ///< operations per second; 0: not known
  std::string source;  ///< origin of the number, or why it is unknown
};

/// Dense datasheet rates of a GPU, found by its name. bf16 is the rate of the tensor cores; fp32 is the rate of the
/// other cores, since fp32 matmuls never use TF32 here.
PeakRate GpuPeak(std::string_view name, Dtype compute);

/// Peak of this rank's share of the CPU: the best of a few large matmuls with `threads` threads, with the kernels that
/// train. Takes about 30 ms.
PeakRate MeasureCpuPeak(Dtype compute, int threads);

}  // namespace espalier
