#include <fmt/format.h>

#include "checkpoint/files.hpp"
#include "checkpoint/store.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {
constexpr int64_t kMostManifestBytes = int64_t{1} << 30;
constexpr int64_t kMostDeckBytes = int64_t{1} << 24;
}  // namespace

Manifest ReadManifest(const std::string& dir) {
  return ParseManifest(Directory(dir).ReadText(kManifestName, kMostManifestBytes), dir + "/" + kManifestName);
}

Metadata ReadMetadata(const std::string& dir) {
  Manifest manifest = ReadManifest(dir);
  const ManifestFile& listed = *manifest.FindFile(kDeckName);
  std::string deck = Directory(dir).ReadText(kDeckName, kMostDeckBytes);
  const uint32_t crc = Crc32c(deck.data(), deck.size());
  if (static_cast<int64_t>(deck.size()) != listed.bytes || crc != listed.crc)
    throw UserError(ExitStatus::kData,
                    fmt::format("{}/{}: {} bytes with checksum {:08x}, the MANIFEST says {} and {:08x}", dir, kDeckName,
                                deck.size(), crc, listed.bytes, listed.crc));
  manifest.metadata.deck = std::move(deck);
  return manifest.metadata;
}

}  // namespace espalier
