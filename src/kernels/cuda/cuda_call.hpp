// CUDA_CALL(expression): the CUDA runtime's errors are the environment's: they say expression and place, and end the step.
#pragma once

#include <cuda_runtime.h>

namespace espalier::cuda {

/// Throws std::runtime_error.
[[noreturn]] void FailCuda(const char* file, int line, const char* expression, cudaError_t code);

#define CUDA_CALL(expression)                                                                             \
  do {                                                                                                    \
    if (const cudaError_t cuda_code_ = (expression); cuda_code_ != cudaSuccess) [[unlikely]]              \
      ::espalier::cuda::FailCuda(__FILE__, __LINE__, #expression, cuda_code_);                            \
  } while (false)

/// Copies from the host, and returns when the bytes are on the device. (cudaMemcpy alone may return when it has read pageable memory,
/// and streams that do not wait for the default one could then read what was there before.)
void CopyToDevice(void* to, const void* from, size_t bytes);

}  // namespace espalier::cuda
