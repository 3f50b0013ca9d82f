// `espalier inspect`: a checkpoint as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/printable_lines.hpp"

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
  std::string text = fmt::format("\n{:<{}}  {:>6}  type  shape\n", "tensor", width, "pieces");
  for (const ManifestTensor& tensor : manifest.tensors)
    text += fmt::format("{:<{}}  {:>6}  {:<4}  {}\n", tensor.name, width, tensor.pieces.size(), Name(tensor.dtype),
                        ToString(tensor.shape));
  return text;
}

}  // namespace

std::string Describe(const std::string& dir, const Details& details) {
  const Manifest manifest = ReadManifest(dir);
  const Metadata metadata = ReadMetadata(dir);
  std::string text = fmt::format("checkpoint  {}\n", dir);
  text += fmt::format("step        {}\nsamples     {}\n", metadata.step, metadata.samples);
  if (const auto& losses = metadata.losses; !losses.empty()) {
    const size_t shown = std::min<size_t>(losses.size(), 5);
    text += fmt::format("losses      {:.9g}\n",
                        fmt::join(losses.end() - static_cast<std::ptrdiff_t>(shown), losses.end(), " "));
  }
  if (const auto& proof = metadata.proof)
    text += fmt::format("proof       loss {:.9g} of the fixed microbatch, in {}\n", proof->loss, proof->compute);
  text += fmt::format("ranks       {}\nmesh        {}\n", manifest.ranks, manifest.mesh);
  const int64_t parameters = manifest.Parameters();
  text += fmt::format("parameters  {}\n", ExactCount(parameters));
  std::error_code unknown;
  const int64_t bytes = manifest.Bytes() + static_cast<int64_t>(std::filesystem::file_size(dir + "/MANIFEST", unknown));
  text += fmt::format("size        {} ({} bytes) in {}, {}\n", HumanBytes(bytes), bytes,
                      Counted(std::ssize(manifest.files) + 1, "file"), Counted(std::ssize(manifest.tensors), "tensor"));
  if (const auto& data = metadata.data)
    text += fmt::format("data        {}, fingerprint {:016x}\n", Counted(data->tokens, "token"), data->fingerprint);
  for (const ManifestFile& file : manifest.files)
    if (IsTokenizerFile(file.name) || IsTokenizerCompanion(file.name))
      text += fmt::format("tokenizer   {} ({})\n", file.name, HumanBytes(file.bytes));
  text +=
      fmt::format("written by  espalier {} ({})\nid          {}\n", metadata.version, metadata.git_hash, manifest.id);
  if (const auto& lineage = metadata.lineage) {
    text += fmt::format("came from   {}\n", lineage->parent.empty() ? "no checkpoint" : lineage->parent);
    if (!lineage->branch.empty()) text += fmt::format("branch of   {}\n", lineage->branch);
  }
  if (details.tensors) text += Files(manifest) + Tensors(manifest);
  if (details.deck) text += "\ndeck\n" + metadata.deck;
  return PrintableLines(text);
}

}  // namespace espalier
