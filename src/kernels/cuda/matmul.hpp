// Launcher for GEMMs whose contracted dim is empty, which no library supports.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

/// Sets `bytes` bytes, an even number of them, to 0.
void LaunchClear(void* data, int64_t bytes, cudaStream_t stream);

}  // namespace espalier::cuda
