#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "checkpoint/checksum.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The pieces that lie in one file.
struct Content {
  std::vector<Extent> extents;
  std::vector<std::pair<const ManifestTensor*, const ManifestPiece*>> pieces;
};

std::vector<Content> ContentsOf(const Manifest& manifest) {
  std::vector<Content> contents(manifest.files.size());
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces) {
      Content& content = contents[static_cast<size_t>(piece.file)];
      content.extents.push_back({piece.offset, piece.Bytes()});
      content.pieces.emplace_back(&tensor, &piece);
    }
  return contents;
}

/// Reads one file; appends what is damaged and returns the bytes read.
int64_t VerifyFile(const Directory& dir, const ManifestFile& listed, const Content& content,
                   std::vector<std::string>& damage) {
  const File file = dir.Open(listed.name);
  if (file.Bytes() != listed.bytes) {
    damage.push_back(fmt::format("{}: {} bytes, the MANIFEST says {}", listed.name, file.Bytes(), listed.bytes));
    return 0;
  }
  const Checksums found = ChecksumFile(file, content.extents);
  const size_t before = damage.size();
  for (size_t p = 0; p < content.pieces.size(); ++p) {
    const auto& [tensor, piece] = content.pieces[p];
    if (found.extents[p] != piece->crc)
      damage.push_back(fmt::format("{}: {} {}: checksum {:08x}, the MANIFEST says {:08x}", listed.name, tensor->name,
                                   ToString(piece->box), found.extents[p], piece->crc));
  }
  if (damage.size() == before && found.whole != listed.crc)
    damage.push_back(fmt::format("{}: checksum {:08x}, the MANIFEST says {:08x}{}", listed.name, found.whole,
                                 listed.crc, content.pieces.empty() ? "" : "; its tensors are whole"));
  return listed.bytes;
}

/// Shards that the MANIFEST does not know.
void FindStrangers(const std::string& dir, const Manifest& manifest, std::vector<std::string>& damage) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("shard-") && manifest.FindFile(name) == nullptr) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) damage.push_back(fmt::format("{}: not part of this checkpoint", name));
}

}  // namespace

VerifyReport VerifyCheckpoint(const std::string& dir_path) {
  const auto start = std::chrono::steady_clock::now();
  const Manifest manifest = ReadManifest(dir_path);
  const Directory dir(dir_path);
  const std::vector<Content> contents = ContentsOf(manifest);
  VerifyReport report;
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    try {
      report.bytes += VerifyFile(dir, manifest.files[f], contents[f], report.damage);
    } catch (const UserError& error) {
      report.damage.insert(report.damage.end(), error.messages().begin(), error.messages().end());
    }
  }
  FindStrangers(dir_path, manifest, report.damage);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace espalier
