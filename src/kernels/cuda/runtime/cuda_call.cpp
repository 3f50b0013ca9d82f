#include "espalier/kernels/cuda/cuda_call.hpp"

#include <fmt/core.h>

#include <stdexcept>

namespace espalier::cuda {

void FailCuda(const char* file, int line, const char* expression, cudaError_t code) {
  throw std::runtime_error(fmt::format("{}:{}: {} failed: {} ({})", file, line, expression, cudaGetErrorString(code),
                                       cudaGetErrorName(code)));
}

void CopyToDevice(void* to, const void* from, size_t bytes) {
  CUDA_CALL(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  CUDA_CALL(cudaStreamSynchronize(nullptr));
}

}  // namespace espalier::cuda
