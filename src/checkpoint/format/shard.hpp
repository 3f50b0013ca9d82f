// The HDF5 files of a checkpoint. Free of HDF5's own header.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/directory/files.hpp"
#include "espalier/checkpoint/manifest.hpp"

namespace espalier {

/// One piece to be written.
struct ShardPiece {
  std::string tensor;
  Shape shape;  ///< of the whole tensor
  Box box;      ///< global indices
  const void* data = nullptr;

  int64_t Bytes() const { return Volume(ExtentsOf(box)) * SizeOf(Dtype::kF32); }
};

/// What became of a shard: its size and checksum, and by piece its place and checksum.
struct ShardReport {
  struct Place {
    int64_t offset = 0;
    uint32_t crc = 0;
  };
  int64_t bytes = 0;
  uint32_t crc = 0;
  std::vector<Place> pieces;
};

/// "shard-00003.h5".
std::string ShardName(int rank);

/// Dataset of a tensor's n-th piece (from 0) in one shard: its name, then "name.2", "name.3", ... A shard has several
/// where parts of a stored tensor are sharded apart.
std::string DatasetName(const std::string& tensor, int n);

/// Makes `dir`/`name` with one contiguous dataset per piece, brings it to the disk, and reads it back against the
/// checksums taken from memory. Throws UserError.
ShardReport WriteShard(const Directory& dir, const std::string& name, const std::vector<ShardPiece>& pieces);

/// Makes `dir`/master.h5: every tensor whole, as a virtual dataset over the shards (fill value NaN: a missing shard
/// shows), and what `manifest` and `deck` say. Brings it to the disk.
void WriteMaster(const Directory& dir, const Manifest& manifest, const std::string& deck);

}  // namespace espalier
