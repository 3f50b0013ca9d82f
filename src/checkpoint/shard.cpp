#include "checkpoint/shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/checksum.hpp"
#include "checkpoint/hdf5.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

constexpr int64_t kChunk = 1 << 20;  // stays in cache between checksum and write

/// A dataset with its room in the file but without its data. Returns the byte offset of that room.
int64_t CreatePiece(hid_t file, const ShardPiece& piece, const std::string& name) {
  MakeGroups(file, name);
  Hdf5Handle properties = DatasetProperties();
  HDF5_CALL(H5Pset_layout(properties, H5D_CONTIGUOUS));
  HDF5_CALL(H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY));
  HDF5_CALL(H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER));
  const Hdf5Handle space = Dataspace(ExtentsOf(piece.box));
  Hdf5Handle dataset(
      HDF5_CALL(H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT)),
      H5Dclose);
  Shape start;
  for (const Range& r : piece.box) start.push_back(r.begin);
  WriteAttribute(dataset, "start", start);
  WriteAttribute(dataset, "global_shape", piece.shape);
  const haddr_t offset = H5Dget_offset(dataset);
  CHECK(offset != HADDR_UNDEF, "{} got no room in its shard", name);
  dataset.Close();
  return static_cast<int64_t>(offset);
}

/// Lays the file out. HDF5 is done with it before the first byte of a tensor is written: so its lock is short, errors
/// of the disk are the system's own, and it never holds a half-written file.
std::vector<int64_t> CreateLayout(const std::string& path, const std::vector<ShardPiece>& pieces) {
  const auto lock = LockHdf5();
  Hdf5Handle file = CreateHdf5File(path);
  std::vector<int64_t> offsets;
  std::map<std::string_view, int> count;
  for (const ShardPiece& piece : pieces)
    offsets.push_back(CreatePiece(file, piece, DatasetName(piece.tensor, count[piece.tensor]++)));
  file.Close();
  return offsets;
}

uint32_t WriteData(const File& file, const ShardPiece& piece, int64_t offset) {
  const auto* data = static_cast<const char*>(piece.data);
  uint32_t crc = 0;
  for (int64_t at = 0; at < piece.Bytes(); at += kChunk) {
    const int64_t bytes = std::min(kChunk, piece.Bytes() - at);
    crc = Crc32c(data + at, static_cast<size_t>(bytes), crc);
    file.Write(data + at, bytes, offset + at);
  }
  return crc;
}

}  // namespace

std::string ShardName(int rank) { return fmt::format("shard-{:05}.h5", rank); }

std::string DatasetName(const std::string& tensor, int n) {
  return n == 0 ? tensor : fmt::format("{}.{}", tensor, n + 1);
}

ShardReport WriteShard(const Directory& dir, const std::string& name, const std::vector<ShardPiece>& pieces) {
  const std::string path = dir.path() + "/" + name;
  FaultPoint("shard-open", path);
  const std::vector<int64_t> offsets = CreateLayout(path, pieces);
  FaultPoint("shard-layout", path);
  const File file = dir.OpenToWrite(name);
  ShardReport report;
  report.bytes = file.Bytes();
  file.Reserve(report.bytes);
  std::vector<Extent> extents;
  for (size_t p = 0; p < pieces.size(); ++p) {
    FaultPoint("shard-data", path);
    report.pieces.push_back({offsets[p], WriteData(file, pieces[p], offsets[p])});
    extents.push_back({offsets[p], pieces[p].Bytes()});
  }
  FaultPoint("shard-fsync", path);
  file.Sync();
  FaultPoint("shard-check", path);
  const Checksums found = ChecksumFile(file, extents);
  for (size_t p = 0; p < pieces.size(); ++p)
    if (found.extents[p] != report.pieces[p].crc)
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: {} reads back otherwise than it was written", file.path(), pieces[p].tensor));
  report.crc = found.whole;
  return report;
}

}  // namespace espalier
