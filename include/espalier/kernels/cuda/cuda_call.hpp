// CUDA_CALL(expression): errors of the CUDA runtime are errors of the environment: the message has expression and
// place, and the step ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace espalier::cuda {

/// Throws std::runtime_error.
[[noreturn]] void FailCuda(const char* file, int line, const char* expression, cudaError_t code);

#define CUDA_CALL(expression)                                                                \
  do {                                                                                       \
    if (const cudaError_t cuda_code_ = (expression); cuda_code_ != cudaSuccess) [[unlikely]] \
      ::espalier::cuda::FailCuda(__FILE__, __LINE__, #expression, cuda_code_);               \
  } while (false)

/// Copies to the device, outside a step. On return all streams see the bytes. (The copy alone may return earlier, and
/// nonblocking streams do not wait for it.)
void CopyToDevice(void* to, const void* from, size_t bytes);

}  // namespace espalier::cuda
