#include "espalier/checkpoint/manifest.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/graph/provenance.hpp"
#include "espalier/util/crc32c.hpp"

namespace espalier {
namespace {

std::string_view IdOrNone(std::string_view id) { return id.empty() ? "none" : id; }

}  // namespace

const ManifestTensor* Manifest::Find(std::string_view tensor) const {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(), [&](const ManifestTensor& t) { return t.name == tensor; });
  return it == tensors.end() ? nullptr : &*it;
}

const ManifestFile* Manifest::FindFile(std::string_view file) const {
  const auto it = std::find_if(files.begin(), files.end(), [&](const ManifestFile& f) { return f.name == file; });
  return it == files.end() ? nullptr : &*it;
}

int64_t Manifest::Bytes() const {
  int64_t bytes = 0;
  for (const ManifestFile& file : files) bytes += file.bytes;
  return bytes;
}

int64_t Manifest::Parameters() const {
  int64_t elements = 0;
  for (const ManifestTensor& tensor : tensors)
    if (tensor.name.starts_with(kParameterPrefix)) elements += Volume(tensor.shape);
  return elements;
}

int Manifest::Format() const {
  if (std::ranges::any_of(tensors, [](const ManifestTensor& t) { return t.dtype != Dtype::kF32; })) return 4;
  if (!metadata.window.empty()) return 3;
  return metadata.lineage ? 2 : 1;
}

std::string ToString(const Box& box) {
  std::string text;
  for (const Range& r : box) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", r.begin, r.end);
  return "[" + text + "]";
}

std::string Print(const Manifest& m) {
  const auto& lineage = m.metadata.lineage;
  std::string text = fmt::format("espalier-{} {}\nid {}\n", m.in_memory ? "memory" : "checkpoint", m.Format(), m.id);
  if (lineage) text += fmt::format("parent {}\nbranch {}\n", IdOrNone(lineage->parent), IdOrNone(lineage->branch));
  text += fmt::format("step {}\nsamples {}\nranks {}\nmesh {}\n", m.metadata.step, m.metadata.samples, m.ranks, m.mesh);
  text += fmt::format("version {}\ngit {}\nlosses", m.metadata.version, m.metadata.git_hash);
  for (double loss : m.metadata.losses) text += fmt::format(" {:.9g}", loss);
  text += "\n";
  if (!m.metadata.window.empty()) text += "window";
  for (const StepSeen& step : m.metadata.window) text += fmt::format(" {:.9g} {:.9g}", step.loss, step.norm);
  if (!m.metadata.window.empty()) text += "\n";
  if (const auto& proof = m.metadata.proof)
    text += fmt::format("proof {:.9g} {} {:08x}\n", proof->loss, proof->compute, proof->conditions);
  if (const auto& data = m.metadata.data) text += fmt::format("data {} {:016x}\n", data->tokens, data->fingerprint);
  for (const ManifestFile& f : m.files) text += fmt::format("file {} {} {:08x}\n", f.name, f.bytes, f.crc);
  for (const ManifestTensor& t : m.tensors) {
    text += fmt::format("tensor {} {} {}\n", t.name, Name(t.dtype), ToString(t.shape));
    for (const ManifestPiece& p : t.pieces)
      text += fmt::format("piece {} {} {} {:08x}\n", m.files[static_cast<size_t>(p.file)].name, ToString(p.box),
                          p.offset, p.crc);
  }
  return text + fmt::format("end {:08x}\n", Crc32c(text.data(), text.size()));
}

}  // namespace espalier
