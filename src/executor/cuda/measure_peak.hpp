// The peak matmul rate of a GPU that is not in the table of data sheets, measured by the kernels that train.
#pragma once

#include "espalier/executor/peak_rate.hpp"
#include "handles.hpp"

namespace espalier::cuda {

/// The fastest of some large matmuls on random numbers, in a fraction of a second. Takes at most a quarter of the
/// memory that is free, and gives it back. Unknown, with the reason, if that is too little or a call fails. A GPU that
/// others use at the same time seems slower.
PeakRate MeasureGpuPeak(Dtype compute, cudaStream_t stream);

}  // namespace espalier::cuda
