#include "cuda_call.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace espalier::cuda {

void FailCuda(const char* file, int line, const char* expression, cudaError_t code) {
  throw std::runtime_error(fmt::format("{}:{}: {} failed: {} ({})", file, line, expression, cudaGetErrorString(code), cudaGetErrorName(code)));
}

}  // namespace espalier::cuda
