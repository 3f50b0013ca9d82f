// The contents of the files of a checkpoint, according to its MANIFEST.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/checksum.hpp"
#include "espalier/checkpoint/manifest.hpp"

namespace espalier {

/// The stored boxes in one file.
struct Content {
  std::vector<Extent> extents;
  std::vector<std::pair<const ManifestTensor*, const ManifestPiece*>> pieces;  ///< by extent
};

/// By file, in the order of the MANIFEST.
std::vector<Content> ContentsOf(const Manifest& manifest);

/// One line for each entry of `dir` that looks like part of a checkpoint (a shard, or any HDF5 file) but is not listed.
std::vector<std::string> FindStrangers(const std::string& dir, const Manifest& manifest);

/// "WHERE: 10 bytes, the MANIFEST says 12" if the size of the file differs from the list; otherwise empty.
std::string SizeError(const File& file, const ManifestFile& listed, const std::string& where);

}  // namespace espalier
