// The cuda backend's kernels: each reads a call, and issues what it needs on the call's stream.
#pragma once

#include <cuda_runtime.h>

#include "../kernel_list.hpp"
#include "../shapes.hpp"
#include "cuda_call.hpp"

namespace espalier {

/// The kernel of an op, or nullptr. In the module only.
Kernel FindCudaKernel(std::string_view op);

}  // namespace espalier

namespace espalier::cuda {

#define ESPALIER_DECLARE(name, function) void function(const KernelCall& call);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

inline cudaStream_t StreamOf(const KernelCall& call) { return static_cast<cudaStream_t>(call.stream); }

}  // namespace espalier::cuda
