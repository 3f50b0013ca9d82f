#pragma once

#include <string>
#include <vector>

#include "espalier/executor/library_versions.hpp"

namespace espalier::cuda {

/// "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9": versions of the loaded libraries.
std::string Versions();

/// "cuDNN 9.19.0".
std::string CudnnVersion();

/// Versions of the loaded libraries, and of the headers.
std::vector<LibraryVersion> LoadedAndBuilt();

}  // namespace espalier::cuda
