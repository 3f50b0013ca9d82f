#include "executor/cuda/versions.hpp"

namespace espalier::cuda {

std::string Versions() { return "CUDA, GEMMs and NCCL emulated on the host, no cuDNN"; }

}  // namespace espalier::cuda
