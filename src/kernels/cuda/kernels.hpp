// The cuda backend's kernels: each reads a call, and issues what it needs on the call's stream.
#pragma once

#include <cuda_runtime.h>

#include "../kernel_list.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/kernels/shapes.hpp"
#include "prepare.hpp"

namespace espalier::cuda {

#define ESPALIER_DECLARE(name, function) void function(const KernelCall& call);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

inline cudaStream_t StreamOf(const KernelCall& call) { return static_cast<cudaStream_t>(call.stream); }

/// The element type of a tensor of floating-point numbers.
inline Dtype FloatTypeOf(const Tensor& x) {
  CHECK(x.dtype != Dtype::kI32, "a floating-point tensor was expected");
  return x.dtype;
}

/// The call's workspace; CHECKs that it is as large as the kernel needs.
template <typename T>
T* WorkspaceOf(const KernelCall& call, int64_t bytes) {
  CHECK(bytes <= call.workspace_bytes, "a workspace of {} bytes where {} are needed", call.workspace_bytes, bytes);
  return static_cast<T*>(call.workspace);
}

}  // namespace espalier::cuda
