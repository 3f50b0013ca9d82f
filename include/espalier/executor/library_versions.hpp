// Compares what the program was built with and what a host has: versions of libraries, and the GPU.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace espalier {

struct LibraryVersion {
  std::string name;
  int built_major, built_minor;    ///< version of the headers
  int loaded_major, loaded_minor;  ///< version of the library
};

/// Messages about libraries that are older than their headers; newer ones of the same major version are compatible.
/// Throws UserError (kFault) if the major versions of a library differ.
std::vector<std::string> CheckVersions(std::span<const LibraryVersion> libraries);

/// Compares a GPU of this compute capability (90 is 9.0) with the capabilities that kernels are built for, which are in
/// increasing order. Machine code runs on later capabilities of the same major version. The last of `built` is there as
/// PTX, too, which the driver compiles for all later GPUs: then a message says so, else it is empty. Throws UserError
/// (kFault) if the GPU is older than all.
std::string CheckArchitecture(std::span<const int> built, int capability);

}  // namespace espalier
