#include "versions.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <fmt/core.h>
#include <nccl.h>

namespace espalier::cuda {

std::string CudnnVersion() {
  const size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string Versions() {
  int cuda = 0, nccl = 0;
  cudaRuntimeGetVersion(&cuda);
  ncclGetVersion(&nccl);
  const size_t cublas = cublasLtGetVersion();
  return fmt::format("CUDA {}.{}, cuBLASLt {}.{}.{}, {}, NCCL {}.{}.{}", cuda / 1000, cuda % 1000 / 10, cublas / 10000,
                     cublas / 100 % 100, cublas % 100, CudnnVersion(), nccl / 10000, nccl / 100 % 100, nccl % 100);
}

std::vector<LibraryVersion> LoadedAndBuilt() {
  int cuda = 0, nccl = 0;
  cudaRuntimeGetVersion(&cuda);
  ncclGetVersion(&nccl);
  const auto cublas = static_cast<int>(cublasLtGetVersion()), cudnn = static_cast<int>(cudnnGetVersion());
  return {
      {"the CUDA runtime", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cuda / 1000, cuda % 1000 / 10},
      {"cuBLASLt", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, cublas / 10000, cublas / 100 % 100},
      {"cuDNN", CUDNN_MAJOR, CUDNN_MINOR, cudnn / 10000, cudnn / 100 % 100},
      {"NCCL", NCCL_MAJOR, NCCL_MINOR, nccl / 10000, nccl / 100 % 100},
  };
}

}  // namespace espalier::cuda
