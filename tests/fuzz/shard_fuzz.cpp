// A shard file, tested twice: in a checkpoint with other checksums, where it is refused; and with corrected checksums
// and sizes, where the bytes at the tensors' offsets are loaded, whatever HDF5's own structures contain. An input
// leaves out the megabyte of zeros that HDF5 keeps between its own structures and the tensors.
#include "small_checkpoint.hpp"

namespace espalier::fuzz {
namespace {

constexpr const char* kShard = "shard-00000.h5";
constexpr size_t kGapBegin = 1 << 13, kGapEnd = (1 << 20) - (1 << 12);

/// The file that an input describes.
std::string Unpack(const std::string& input) {
  if (input.size() <= kGapBegin) return input;
  return input.substr(0, kGapBegin) + std::string(kGapEnd - kGapBegin, '\0') + input.substr(kGapBegin);
}

struct Base {
  SmallCheckpoint checkpoint;
  const std::string shard = checkpoint.Read(kShard);
  const Manifest manifest = ReadManifest(checkpoint.dir());
};

/// The MANIFEST that fits these bytes; empty if a tensor would exceed them.
std::string Fit(Manifest manifest, const std::string& bytes) {
  const auto file = static_cast<int>(manifest.FindFile(kShard) - manifest.files.data());
  manifest.files[static_cast<size_t>(file)].bytes = static_cast<int64_t>(bytes.size());
  manifest.files[static_cast<size_t>(file)].crc = ChecksumOf(bytes);
  for (ManifestTensor& tensor : manifest.tensors)
    for (ManifestPiece& piece : tensor.pieces) {
      if (piece.file != file) continue;
      const int64_t size = tensor.BytesOf(piece);
      if (piece.offset + size > static_cast<int64_t>(bytes.size())) return "";
      piece.crc =
          ChecksumOf(std::string_view(bytes).substr(static_cast<size_t>(piece.offset), static_cast<size_t>(size)));
    }
  return Print(manifest);
}

/// Checks that every tensor in memory equals the bytes at the offsets of its boxes in the files.
void RequireLoaded(Base& base, const std::string& bytes) {
  for (const LocalTensor& local : base.checkpoint.local()) {
    const StateTensor& tensor = *local.tensor;
    if (tensor.part) continue;
    const ManifestTensor& stored = *base.manifest.Find(tensor.name);
    for (const ManifestPiece& piece : stored.pieces) {
      // A tensor with one dim, or cut only on dim 0, is contiguous: enough to check the offsets.
      const int64_t row = Volume(tensor.type.shape) / tensor.type.shape[0] * SizeOf(tensor.type.dtype);
      const int64_t size = stored.BytesOf(piece);
      if (base.manifest.files[static_cast<size_t>(piece.file)].name != kShard || size % row != 0 ||
          size != (piece.box[0].end - piece.box[0].begin) * row)
        continue;
      Require(std::memcmp(static_cast<const char*>(local.data) + piece.box[0].begin * row, bytes.data() + piece.offset,
                          static_cast<size_t>(size)) == 0,
              tensor.name + " is not what the file holds");
    }
  }
}

void TryShard(const std::string& bytes) {
  static Base base;
  base.checkpoint.Write(kShard, bytes);
  base.checkpoint.Write("MANIFEST", base.checkpoint.manifest());
  const bool same = bytes == base.shard;
  Within(LoadAllowance(base.checkpoint.manifest().size()), [&] {
    Require(base.checkpoint.Loads() == same, same ? "an undamaged shard is refused" : "a damaged shard was loaded");
    Require(base.checkpoint.Verifies() == same,
            same ? "an undamaged shard is called damaged" : "a damaged shard was verified");
  });
  const std::string fitting = Fit(base.manifest, bytes);
  if (fitting.empty()) return;
  ++tally.accepted;
  base.checkpoint.Write("MANIFEST", fitting);
  Within(LoadAllowance(base.checkpoint.manifest().size()), [&] {
    Require(base.checkpoint.Loads() && base.checkpoint.Verifies(), "bytes that fit their checksums are refused");
  });
  RequireLoaded(base, bytes);
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryShard(espalier::fuzz::Unpack(std::string(reinterpret_cast<const char*>(data), size)));
  return 0;
}
