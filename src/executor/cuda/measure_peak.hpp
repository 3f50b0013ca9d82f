// The peak matmul rate of a GPU that is not in the table of datasheets, measured with the kernels that train.
#pragma once

#include "espalier/executor/peak_rate.hpp"
#include "handles.hpp"

namespace espalier::cuda {

/// The fastest of some large matmuls on random numbers, in a fraction of a second. Takes at most a quarter of the free
/// memory, and frees it. Unknown, with the reason, if that is too little or a call fails. The rate is too low if others
/// use the GPU at the same time.
PeakRate MeasureGpuPeak(Dtype compute, cudaStream_t stream);

}  // namespace espalier::cuda
