// What lies in the files of a checkpoint, by its MANIFEST.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/checksum.hpp"
#include "espalier/checkpoint/manifest.hpp"

namespace espalier {

/// The pieces that lie in one file.
struct Content {
  std::vector<Extent> extents;
  std::vector<std::pair<const ManifestTensor*, const ManifestPiece*>> pieces;  ///< by extent
};

/// By file, as the MANIFEST lists them.
std::vector<Content> ContentsOf(const Manifest& manifest);

/// One line for each entry of `dir` that claims to belong to a checkpoint (a shard, or any HDF5 file) and is not
/// listed.
std::vector<std::string> FindStrangers(const std::string& dir, const Manifest& manifest);

/// "WHERE: 10 bytes, the MANIFEST says 12" if the file has another size than is listed; else empty.
std::string SizeMistake(const File& file, const ManifestFile& listed, const std::string& where);

}  // namespace espalier
