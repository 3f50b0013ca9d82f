#include "executor/cuda/versions.hpp"

namespace espalier::cuda {

std::string Versions() { return "CUDA, products and NCCL emulated on the host, no cuDNN"; }

}  // namespace espalier::cuda
