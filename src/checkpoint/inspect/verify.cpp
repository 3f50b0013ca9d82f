#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "checkpoint/format/contents.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Reads one file; appends damage and returns the bytes read.
int64_t VerifyFile(const Directory& dir, const ManifestFile& listed, const Content& content,
                   std::vector<std::string>& damage) {
  const File file = dir.Open(listed.name);
  if (std::string error = SizeError(file, listed, listed.name); !error.empty()) {
    damage.push_back(std::move(error));
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
  for (std::string& stranger : FindStrangers(dir_path, manifest)) report.damage.push_back(std::move(stranger));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace espalier
