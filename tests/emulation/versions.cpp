#include "executor/cuda/versions.hpp"

#include <cstdio>
#include <cstdlib>

namespace espalier::cuda {

std::string Versions() { return "CUDA, GEMMs and NCCL emulated on the host, no cuDNN"; }

/// ESPALIER_EMULATED_NCCL=MAJOR.MINOR is the loaded version; the headers have 2.28.
std::vector<LibraryVersion> LoadedAndBuilt() {
  LibraryVersion nccl{"NCCL", 2, 28, 2, 28};
  if (const char* version = std::getenv("ESPALIER_EMULATED_NCCL"))
    std::sscanf(version, "%d.%d", &nccl.loaded_major, &nccl.loaded_minor);
  return {nccl};
}

}  // namespace espalier::cuda
