// Checksums of a file and of parts of it, in one pass.
#pragma once

#include <vector>

#include "checkpoint/directory/files.hpp"

namespace espalier {

/// A range of bytes in a file.
struct Extent {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Checksums {
  uint32_t whole = 0;             ///< CRC-32C of the file
  std::vector<uint32_t> extents;  ///< by extent, in the given order
};

/// Reads `file` once. Extents are within the file and do not overlap.
Checksums ChecksumFile(const File& file, const std::vector<Extent>& extents);

/// CRC-32C of the whole file, given the checksums `crcs` of `extents`: reads only the bytes outside of them.
uint32_t ChecksumAround(const File& file, const std::vector<Extent>& extents, const std::vector<uint32_t>& crcs);

/// CRC-32C of one extent.
uint32_t ChecksumExtent(const File& file, const Extent& extent);

}  // namespace espalier
