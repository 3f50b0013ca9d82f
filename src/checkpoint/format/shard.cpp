#include "checkpoint/format/shard.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "checkpoint/format/checksum.hpp"
#include "checkpoint/format/hdf5.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kShardStages = {"shard-data", "shard-open", "shard-layout", "shard-fsync", "shard-check"};

constexpr int64_t kSyncBytes = 32 << 20;  // bytes that are written before the disk starts to sync them

/// Creates a dataset with space in the file but without data. Returns the byte offset of the space.
int64_t CreatePiece(hid_t file, const ShardPiece& piece, const std::string& name) {
  MakeGroups(file, name);
  Hdf5Handle properties = DatasetProperties();
  HDF5_CALL(H5Pset_layout(properties, H5D_CONTIGUOUS));
  HDF5_CALL(H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY));
  HDF5_CALL(H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER));
  const Hdf5Handle space = Dataspace(ExtentsOf(piece.box)), type = ElementType(piece.dtype);
  Hdf5Handle dataset(HDF5_CALL(H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT)),
                     H5Dclose);
  Shape start;
  for (const Range& r : piece.box) start.push_back(r.begin);
  WriteAttribute(dataset, "start", start);
  WriteAttribute(dataset, "global_shape", piece.shape);
  const haddr_t offset = H5Dget_offset(dataset);
  CHECK(offset != HADDR_UNDEF, "{} got no space in its shard", name);
  dataset.Close();
  return static_cast<int64_t>(offset);
}

/// Creates the file and its layout. HDF5 closes the file before the first byte of a tensor is written. So its lock is
/// held briefly, disk errors are the system's own, and HDF5 never has a partly written file open.
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

/// Writes a box and reads it back, in chunks that stay in the processor's cache. Returns the checksum, computed from
/// memory.
uint32_t WriteData(const File& file, const ShardPiece& piece, int64_t offset, std::vector<char>& buffer) {
  constexpr int64_t kElement = sizeof(float);
  CHECK(!piece.read || piece.dtype == Dtype::kF32, "{} is read as f32", piece.tensor);
  std::vector<float> elements(piece.read ? static_cast<size_t>(kChunkBytes / kElement) : 0);
  uint32_t crc = 0;
  for (int64_t at = 0; at < piece.Bytes(); at += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, piece.Bytes() - at);
    if (piece.read) piece.read(at / kElement, bytes / kElement, elements.data());
    const char* data =
        piece.read ? reinterpret_cast<const char*>(elements.data()) : static_cast<const char*>(piece.data) + at;
    const uint32_t before = crc;
    crc = Crc32c(data, static_cast<size_t>(bytes), before);
    file.Write(data, bytes, offset + at);
    file.Read(buffer.data(), bytes, offset + at);
    if (Crc32c(buffer.data(), static_cast<size_t>(bytes), before) != crc)
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: {} reads back otherwise than it was written", file.path(), piece.tensor));
  }
  if (piece.crc && *piece.crc != crc)
    throw UserError(ExitStatus::kData,
                    fmt::format("{}: {} has checksum {:08x} and had {:08x} when the weights were proved: this rank's "
                                "memory changed in between",
                                file.path(), piece.tensor, crc, *piece.crc));
  return crc;
}

/// Writes the data of all boxes in the order of their offsets, and returns their checksums. The disk syncs while the
/// rest is written.
std::vector<uint32_t> WriteAll(const File& file, const std::vector<ShardPiece>& pieces,
                               const std::vector<int64_t>& offsets) {
  std::vector<char> buffer(static_cast<size_t>(kChunkBytes));
  std::vector<uint32_t> crcs;
  int64_t begun = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    FaultPoint("shard-data", file.path());
    crcs.push_back(WriteData(file, pieces[p], offsets[p], buffer));
    const int64_t end = offsets[p] + pieces[p].Bytes();
    if (end - begun < kSyncBytes) continue;
    file.BeginSync(begun, end - begun);
    begun = end;
  }
  return crcs;
}

}  // namespace

std::string ShardName(int rank) { return fmt::format("shard-{:05}.h5", rank); }

std::optional<int> ShardRank(std::string_view name) {
  constexpr std::string_view kPrefix = "shard-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  return error == std::errc{} && end != name.data() ? std::optional(rank) : std::nullopt;
}

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
  const std::vector<uint32_t> crcs = WriteAll(file, pieces, offsets);
  FaultPoint("shard-fsync", path);
  file.Sync();
  FaultPoint("shard-check", path);
  std::vector<Extent> extents;
  for (size_t p = 0; p < pieces.size(); ++p) {
    report.pieces.push_back({offsets[p], crcs[p]});
    extents.push_back({offsets[p], pieces[p].Bytes()});
  }
  report.crc = ChecksumAround(file, extents, crcs);
  return report;
}

}  // namespace espalier
