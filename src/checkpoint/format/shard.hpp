// The HDF5 files of a checkpoint; this header does not include HDF5's own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "checkpoint/directory/files.hpp"
#include "espalier/checkpoint/manifest.hpp"

namespace espalier {

/// One box to write.
struct ShardPiece {
  std::string tensor;
  Shape shape;  ///< shape of the whole tensor
  Box box;      ///< global indices
  const void* data = nullptr;
  /// In place of `data`: elements [first, first + count).
  std::function<void(int64_t first, int64_t count, float* out)> read = {};
  Dtype dtype = Dtype::kF32;                   ///< type of `data`; f32 with `read`
  std::optional<uint32_t> crc = std::nullopt;  ///< CRC-32C that the data must have; not set: any

  int64_t Bytes() const { return Volume(ExtentsOf(box)) * SizeOf(dtype); }
};

/// A shard file that was written: its size and checksum, and the offset and checksum of each box.
struct ShardReport {
  struct Place {
    int64_t offset = 0;
    uint32_t crc = 0;

    auto Fields() { return std::tie(offset, crc); }
  };
  int64_t bytes = 0;
  uint32_t crc = 0;
  std::vector<Place> pieces;

  auto Fields() { return std::tie(bytes, crc, pieces); }
};

/// "shard-00003.h5".
std::string ShardName(int rank);
/// The rank of such a name; nothing for any other.
std::optional<int> ShardRank(std::string_view name);

/// Dataset of a tensor's n-th box (from 0) in one shard file: its name, then "name.2", "name.3", ... A file has several
/// boxes of a tensor if the parts of a stored tensor are sharded separately.
std::string DatasetName(const std::string& tensor, int n);

/// Creates `dir`/`name` with one contiguous dataset per box, syncs it to disk, reads it back and compares it with the
/// checksums of memory. Throws UserError, also if a box's checksum differs from the required one.
ShardReport WriteShard(const Directory& dir, const std::string& name, const std::vector<ShardPiece>& pieces);

/// Creates `dir`/master.h5 and syncs it to disk: every tensor whole, as a virtual dataset over the shards (fill value
/// NaN, so that a missing shard shows), and the contents of `manifest` and `deck` as attributes.
void WriteMaster(const Directory& dir, const Manifest& manifest, const std::string& deck);

}  // namespace espalier
