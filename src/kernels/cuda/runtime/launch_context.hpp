// Where a kernel is issued, and its planned scratch memory. Included by nvcc.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

/// Reports a broken invariant if `condition` is false; for .cu files, which cannot include CHECK's headers.
void Require(bool condition, const char* what);

struct LaunchContext {
  cudaStream_t stream;
  void* workspace;
  int64_t workspace_bytes;

  /// The workspace as an array of T. `bytes`: the size that the kernel needs, which must have been planned.
  template <typename T>
  T* Workspace(int64_t bytes) const {
    Require(bytes <= workspace_bytes, "the planned workspace is smaller than what the kernel needs");
    return static_cast<T*>(workspace);
  }
};

}  // namespace espalier::cuda
