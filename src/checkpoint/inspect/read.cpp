// Reads the MANIFEST and the deck of a checkpoint.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/directory/files.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

/// A directory with the name of a step must contain the checkpoint of that step; any other name may contain any.
void CheckName(const std::string& dir, int64_t step) {
  const std::string name = std::filesystem::path(dir + "/.").lexically_normal().parent_path().filename().string();
  const bool named = name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == name.npos;
  if (named && name != StepName(step))
    throw UserError(ExitStatus::kData, fmt::format("{}/{}: step {}, which belongs in a directory {}", dir,
                                                   kManifestName, step, StepName(step)));
}

/// Reads a file of a checkpoint against its checksum.
std::string ReadListed(const std::string& dir, const ManifestFile& listed, int64_t most) {
  std::string text = Directory(dir).ReadText(listed.name, most);
  const uint32_t crc = Crc32c(text.data(), text.size());
  if (std::ssize(text) != listed.bytes || crc != listed.crc)
    throw UserError(ExitStatus::kData,
                    fmt::format("{}/{}: {} bytes with checksum {:08x}, the MANIFEST says {} and {:08x}", dir,
                                listed.name, text.size(), crc, listed.bytes, listed.crc));
  return text;
}

}  // namespace

Manifest ReadManifest(const std::string& dir) {
  Manifest manifest =
      ParseManifest(Directory(dir).ReadText(kManifestName, kMaxManifestBytes), dir + "/" + kManifestName);
  CheckName(dir, manifest.metadata.step);
  return manifest;
}

Metadata ReadMetadata(const std::string& dir) {
  Manifest manifest = ReadManifest(dir);
  manifest.metadata.deck = ReadListed(dir, *manifest.FindFile(kDeckName), kMaxDeckBytes);
  return manifest.metadata;
}

std::shared_ptr<const Tokenizer> ReadTokenizer(const std::string& dir) {
  const Manifest manifest = ReadManifest(dir);
  const auto tokenizer = std::ranges::find_if(manifest.files, IsTokenizerFile, &ManifestFile::name);
  if (tokenizer == manifest.files.end()) return nullptr;
  std::vector<TokenizerCompanion> companions;
  for (const ManifestFile& file : manifest.files)
    if (IsTokenizerCompanion(file.name)) companions.push_back({file.name, ReadListed(dir, file, kMaxCompanionBytes)});
  return Tokenizer::FromBytes(dir + "/" + tokenizer->name, ReadListed(dir, *tokenizer, kMaxTokenizerBytes),
                              std::move(companions));
}

}  // namespace espalier
