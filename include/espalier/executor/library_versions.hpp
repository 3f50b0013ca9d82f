// Compares the versions of libraries that are loaded at run time with the headers that the program was built with.
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

}  // namespace espalier
