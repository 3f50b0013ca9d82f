#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {
namespace {

std::string Files(const Manifest& manifest) {
  std::string text = fmt::format("\n{:<16} {:>14}  crc32c\n", "file", "bytes");
  for (const ManifestFile& file : manifest.files)
    text += fmt::format("{:<16} {:>14}  {:08x}\n", file.name, file.bytes, file.crc);
  return text;
}

std::string Tensors(const Manifest& manifest) {
  size_t width = std::string_view("tensor").size();
  for (const ManifestTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  std::string text = fmt::format("\n{:<{}}  {:>6}  shape\n", "tensor", width, "pieces");
  for (const ManifestTensor& tensor : manifest.tensors)
    text += fmt::format("{:<{}}  {:>6}  {}\n", tensor.name, width, tensor.pieces.size(), ToString(tensor.shape));
  return text;
}

}  // namespace

std::string Describe(const std::string& dir) {
  const Manifest manifest = ReadManifest(dir);
  const Metadata metadata = ReadMetadata(dir);
  std::string text = fmt::format("checkpoint  {}\n", dir);
  text += fmt::format("id          {}\nstep        {}\nsamples     {}\n", manifest.id, metadata.step, metadata.samples);
  if (!metadata.losses.empty()) text += fmt::format("losses      {:.9g}\n", fmt::join(metadata.losses, " "));
  if (const auto& proof = metadata.proof)
    text += fmt::format("proof       loss {:.9g} of the fixed microbatch, in {}\n", proof->loss, proof->compute);
  if (const auto& data = metadata.data)
    text += fmt::format("data        {} tokens, fingerprint {:016x}\n", data->tokens, data->fingerprint);
  text += fmt::format("ranks       {}\nmesh        {}\n", manifest.ranks, manifest.mesh);
  text += fmt::format("parameters  {}\nbytes       {} in {} files, {} tensors\n", manifest.Parameters(),
                      manifest.Bytes(), manifest.files.size(), manifest.tensors.size());
  text += fmt::format("written by  espalier {} ({})\n", metadata.version, metadata.git_hash);
  return text + Files(manifest) + Tensors(manifest) + "\ndeck\n" + metadata.deck;
}

}  // namespace espalier
