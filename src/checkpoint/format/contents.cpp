#include "checkpoint/format/contents.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace espalier {

std::vector<Content> ContentsOf(const Manifest& manifest) {
  std::vector<Content> contents(manifest.files.size());
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces) {
      Content& content = contents[static_cast<size_t>(piece.file)];
      content.extents.push_back({piece.offset, tensor.BytesOf(piece)});
      content.pieces.emplace_back(&tensor, &piece);
    }
  return contents;
}

std::vector<std::string> FindStrangers(const std::string& dir, const Manifest& manifest) {
  std::vector<std::string> strangers;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(dir, error); !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if ((name.starts_with("shard-") || name.ends_with(".h5")) && manifest.FindFile(name) == nullptr)
      strangers.push_back(fmt::format("{}: not part of this checkpoint", name));
  }
  std::sort(strangers.begin(), strangers.end());
  return strangers;
}

std::string SizeError(const File& file, const ManifestFile& listed, const std::string& where) {
  const int64_t bytes = file.Bytes();
  return bytes == listed.bytes ? "" : fmt::format("{}: {} bytes, the MANIFEST says {}", where, bytes, listed.bytes);
}

}  // namespace espalier
