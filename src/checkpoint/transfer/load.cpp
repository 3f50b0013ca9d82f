// Every rank reads the stored boxes that overlap its own shards and keeps the part that it needs. It reads each box
// whole, to check its checksum, and in chunks, to save memory. One rank each checks the bytes around the boxes and the
// files without boxes. Together the ranks check every byte of the checkpoint.
#include "checkpoint/transfer/load.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/contents.hpp"
#include "checkpoint/transfer/destination.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/checkpoint/runs.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/hint.hpp"

namespace espalier {
namespace {

const FaultStages kLoadStages = {"load"};

constexpr int64_t kAhead = 64 << 20;  // bytes of the next box that are read ahead while this one is checked

/// The differences between the tensors of the run and of the checkpoint.
std::vector<std::string> Differences(const std::vector<StateTensor>& tensors, const Manifest& manifest,
                                     Coverage coverage) {
  std::vector<std::string> messages;
  std::map<std::string_view, const ManifestTensor*> stored;
  std::set<std::string_view> wanted;
  for (const ManifestTensor& tensor : manifest.tensors) stored[tensor.name] = &tensor;
  for (const StateTensor& tensor : tensors) {
    if (!wanted.insert(tensor.StoredName()).second)
      continue;  // another part of a stored tensor that was compared before
    const auto found = stored.find(tensor.StoredName());
    if (found == stored.end())
      messages.push_back(fmt::format("{}: the deck asks for it, the checkpoint has none", tensor.StoredName()));
    else if (tensor.StoredShape() != found->second->shape)  // types are converted
      messages.push_back(fmt::format("{}: {}{} by the deck, {}{} in the checkpoint", tensor.StoredName(),
                                     Name(tensor.type.dtype), ToString(tensor.StoredShape()),
                                     Name(found->second->dtype), ToString(found->second->shape)));
  }
  if (coverage == Coverage::kAll)
    for (const ManifestTensor& tensor : manifest.tensors)
      if (!wanted.contains(tensor.name))
        messages.push_back(fmt::format("{}: in the checkpoint, unknown to the deck", tensor.name));
  return messages;
}

void RefuseDifferences(const std::string& dir, const std::vector<StateTensor>& tensors, const Manifest& manifest,
                       Coverage coverage) {
  std::vector<std::string> differences = Differences(tensors, manifest, coverage);
  if (differences.empty()) return;
  for (std::string& difference : differences) difference = Hint(difference);
  differences.insert(differences.begin(), fmt::format("{} does not fit the deck", dir));
  throw RefusedForGood(ExitStatus::kData, Shorten(std::move(differences)));
}

/// At step 0 the optimizer's states are zero, and an import stores none.
bool HasWeightsOnly(const Manifest& manifest) {
  return manifest.metadata.step == 0 && std::ranges::none_of(manifest.tensors, [](const ManifestTensor& t) {
           return t.name.starts_with(kMomentPrefix);
         });
}

std::vector<StateTensor> WeightsOf(std::vector<StateTensor> tensors) {
  std::erase_if(tensors, [](const StateTensor& tensor) { return tensor.name.starts_with(kMomentPrefix); });
  return tensors;
}

/// Writes zeros to the optimizer's states, and removes them from the list.
void ClearOptimizer(std::vector<LocalTensor>& local, const Mesh& mesh, const Coordinate& coordinate) {
  const std::vector<char> zeros(static_cast<size_t>(kChunkBytes), 0);
  for (const LocalTensor& own : local) {
    if (!own.tensor->name.starts_with(kMomentPrefix)) continue;
    const Type& type = own.tensor->type;
    const int64_t bytes = Volume(ExtentsOf(LocalBox(type, mesh, coordinate))) * SizeOf(type.dtype);
    Destination out(own);
    for (int64_t at = 0; at < bytes; at += kChunkBytes) out.Put(at, zeros.data(), std::min(kChunkBytes, bytes - at));
    out.Flush();
  }
  std::erase_if(local, [](const LocalTensor& own) { return own.tensor->name.starts_with(kMomentPrefix); });
}

/// A stored box and the local tensor that needs part of it.
struct Need {
  const ManifestTensor* tensor;
  const ManifestPiece* piece;
  Box box;  ///< box of the local tensor, in indices of the stored tensor
  const LocalTensor* own;

  int64_t Bytes() const { return tensor->BytesOf(*piece); }
  /// The local shard is the same box of the same type in host memory.
  bool IsInPlace() const { return piece->box == box && own->OnHost() && own->tensor->type.dtype == tensor->dtype; }
};

/// A tensor that is not loaded would start from arbitrary memory.
void CheckNoneForgotten(const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
                        const Mesh& mesh, const Coordinate& coordinate) {
  std::set<std::string_view> passed;
  for (const LocalTensor& own : local) passed.insert(own.tensor->name);
  for (const StateTensor& tensor : tensors)
    CHECK(passed.contains(tensor.name) || tensor.stage != coordinate[static_cast<size_t>(Axis::kPp)] ||
              IsEmpty(LocalBox(tensor.type, mesh, coordinate)),
          "{} has no memory to load it into", tensor.name);
}

/// Sorted by file and offset.
std::vector<Need> NeedsOf(const Manifest& manifest, const std::vector<LocalTensor>& local, const Mesh& mesh,
                          const Coordinate& coordinate) {
  std::map<std::string_view, const ManifestTensor*> stored;
  for (const ManifestTensor& tensor : manifest.tensors) stored[tensor.name] = &tensor;
  std::vector<Need> needs;
  for (const LocalTensor& own : local) {
    const Box box = own.tensor->StoredBox(mesh, coordinate);
    const auto found = stored.find(own.tensor->StoredName());
    if (found == stored.end()) continue;  // refused before anything is read
    const ManifestTensor* tensor = found->second;
    for (const ManifestPiece& piece : tensor->pieces)
      if (!IsEmpty(Intersect(piece.box, box))) needs.push_back({tensor, &piece, box, &own});
  }
  std::stable_sort(needs.begin(), needs.end(), [](const Need& a, const Need& b) {
    return std::tie(a.piece->file, a.piece->offset) < std::tie(b.piece->file, b.piece->offset);
  });
  return needs;
}

/// Reads a stored box directly into host memory if the local shard is the same box.
uint32_t ReadInPlace(const File& file, const Need& need) {
  char* const data = static_cast<char*>(need.own->data);
  uint32_t crc = 0;
  for (int64_t at = 0; at < need.Bytes(); at += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, need.Bytes() - at);
    file.Read(data + at, bytes, need.piece->offset + at);
    crc = Crc32c(data + at, static_cast<size_t>(bytes), crc);
  }
  return crc;
}

/// Elements of a stored type as bytes of another; `memory` holds them if the types differ.
const char* Converted(const char* from, Dtype stored, Dtype wanted, int64_t count, std::vector<char>& memory) {
  if (stored == wanted) return from;
  memory.resize(static_cast<size_t>(count * SizeOf(wanted)));
  if (wanted == Dtype::kF32)
    std::transform(reinterpret_cast<const Bf16*>(from), reinterpret_cast<const Bf16*>(from) + count,
                   reinterpret_cast<float*>(memory.data()), ToFloat);
  else
    std::transform(reinterpret_cast<const float*>(from), reinterpret_cast<const float*>(from) + count,
                   reinterpret_cast<Bf16*>(memory.data()), ToBf16);
  return memory.data();
}

/// Copies the runs' elements in [first, first + count) of the stored box, which are in `chunk`; leaves `runs` at the
/// first run that extends beyond them.
void CopyRuns(const Need& need, const char* chunk, int64_t first, int64_t count, Destination& out, Runs& runs) {
  const Dtype stored = need.tensor->dtype, wanted = need.own->tensor->type.dtype;
  std::vector<char> memory;
  for (; !runs.Done(); runs.Next()) {
    const int64_t begin = std::max(runs.From(), first), end = std::min(runs.From() + runs.Count(), first + count);
    if (begin < end) {
      const char* from = chunk + (begin - first) * SizeOf(stored);
      out.Put((runs.To() + (begin - runs.From())) * SizeOf(wanted),
              Converted(from, stored, wanted, end - begin, memory), (end - begin) * SizeOf(wanted));
    }
    if (runs.From() + runs.Count() > first + count) return;
  }
}

uint32_t ReadThrough(const File& file, const Need& need, std::vector<char>& buffer) {
  buffer.resize(static_cast<size_t>(std::min(kChunkBytes, need.Bytes())));
  const int64_t element = SizeOf(need.tensor->dtype);
  uint32_t crc = 0;
  Runs runs(need.piece->box, need.box);
  Destination out(*need.own);
  for (int64_t at = 0; at < need.Bytes(); at += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, need.Bytes() - at);
    file.Read(buffer.data(), bytes, need.piece->offset + at);
    crc = Crc32c(buffer.data(), static_cast<size_t>(bytes), crc);
    CopyRuns(need, buffer.data(), at / element, bytes / element, out, runs);
  }
  out.Flush();
  return crc;
}

/// Reads what this rank needs from one file; returns the errors.
std::vector<std::string> ReadFile(const Directory& dir, const ManifestFile& listed, std::span<const Need> needs,
                                  std::vector<char>& buffer) {
  const File file = dir.Open(listed.name);
  FaultPoint("load", file.path());
  if (std::string error = SizeError(file, listed, file.path()); !error.empty()) return {std::move(error)};
  std::vector<std::string> errors;
  for (size_t n = 0; n < needs.size(); ++n) {
    const Need& need = needs[n];
    if (n + 1 < needs.size()) file.BeginRead(needs[n + 1].piece->offset, std::min(kAhead, needs[n + 1].Bytes()));
    const uint32_t crc = need.IsInPlace() ? ReadInPlace(file, need) : ReadThrough(file, need, buffer);
    if (crc != need.piece->crc)
      errors.push_back(
          fmt::format("{}: {} {}: checksum {:08x}, the MANIFEST says {:08x}: damaged, or of another checkpoint",
                      file.path(), need.tensor->name, ToString(need.piece->box), crc, need.piece->crc));
  }
  return errors;
}

/// Checks the bytes of one file outside of the stored boxes; returns the errors.
std::vector<std::string> CheckAround(const Directory& dir, const ManifestFile& listed, const Content& content) {
  const File file = dir.Open(listed.name);
  if (std::string error = SizeError(file, listed, file.path()); !error.empty()) return {std::move(error)};
  std::vector<uint32_t> crcs;
  for (const auto& [tensor, piece] : content.pieces) crcs.push_back(piece->crc);
  const uint32_t crc = ChecksumAround(file, content.extents, crcs);
  if (crc == listed.crc) return {};
  return {
      fmt::format("{}: checksum {:08x}, the MANIFEST says {:08x}: damaged around its tensors, or of another checkpoint",
                  file.path(), crc, listed.crc)};
}

/// Appends the error that `check` returns or throws.
template <typename Check>
void Collect(std::vector<std::string>& errors, const Check& check) {
  try {
    for (std::string& found : check()) errors.push_back(std::move(found));
  } catch (const UserError& error) {
    errors.insert(errors.end(), error.messages().begin(), error.messages().end());
  }
}

/// Loads the tensors of this rank; appends errors.
void ReadOwn(const Directory& dir, const Manifest& manifest, const std::vector<Need>& needs,
             std::vector<std::string>& errors) {
  std::vector<char> buffer;
  for (size_t begin = 0, end = 0; begin < needs.size(); begin = end) {
    const int index = needs[begin].piece->file;
    while (end < needs.size() && needs[end].piece->file == index) ++end;
    Collect(errors, [&] {
      return ReadFile(dir, manifest.files[static_cast<size_t>(index)], std::span(needs).subspan(begin, end - begin),
                      buffer);
    });
  }
}

/// Checks this rank's share of all bytes outside of the stored boxes.
void CheckOthers(const Directory& dir, const Manifest& manifest, const World& world, std::vector<std::string>& errors) {
  const std::vector<Content> contents = ContentsOf(manifest);
  for (size_t f = static_cast<size_t>(world.Rank()); f < contents.size(); f += static_cast<size_t>(world.Size()))
    Collect(errors, [&] { return CheckAround(dir, manifest.files[f], contents[f]); });
  if (world.Rank() == 0)
    for (const std::string& stranger : FindStrangers(dir.path(), manifest))
      errors.push_back(dir.path() + "/" + stranger);
}

}  // namespace

std::set<int> FilesToRead(const Manifest& manifest, const std::vector<LocalTensor>& local, const Mesh& mesh,
                          const World& world) {
  std::set<int> files;
  for (const Need& need : NeedsOf(manifest, local, mesh, mesh.CoordinateOf(world.Rank())))
    files.insert(need.piece->file);
  for (int f = world.Rank(); f < static_cast<int>(manifest.files.size()); f += world.Size()) files.insert(f);
  return files;
}

void RequireFit(const std::string& dir, const std::vector<StateTensor>& tensors, Coverage coverage) {
  RefuseDifferences(dir, tensors, ReadManifest(dir), coverage);
}

Metadata Load(const std::string& dir, const std::vector<StateTensor>& all, const std::vector<LocalTensor>& shards,
              const Mesh& mesh, World& world, Coverage coverage) {
  CHECK(mesh.Ranks() == world.Size(), "a mesh of {} ranks in a world of {}", mesh.Ranks(), world.Size());
  const FailureRules rules = AnyFailureIs(ExitStatus::kData);
  const std::string deck = OnRankZero(
      world, [&] { return ReadMetadata(dir).deck; }, rules);
  const std::string text = OnRankZero(
      world, [&] { return Print(ReadManifest(dir)); }, rules);
  Manifest manifest = ParseManifest(text, dir + "/" + kManifestName);
  const bool weights_only = HasWeightsOnly(manifest);
  const std::vector<StateTensor> tensors = weights_only ? WeightsOf(all) : all;
  std::vector<LocalTensor> local = shards;
  if (weights_only) ClearOptimizer(local, mesh, mesh.CoordinateOf(world.Rank()));
  // Every rank finds the same differences, so all ranks throw here or none does.
  RefuseDifferences(dir, tensors, manifest, coverage);
  const auto read = [&] {
    const Coordinate coordinate = mesh.CoordinateOf(world.Rank());
    CheckNoneForgotten(tensors, local, mesh, coordinate);
    const Directory directory(dir);
    std::vector<std::string> errors;
    ReadOwn(directory, manifest, NeedsOf(manifest, local, mesh, coordinate), errors);
    CheckOthers(directory, manifest, world, errors);
    if (!errors.empty()) throw UserError(ExitStatus::kData, std::move(errors));
  };
  OnAllRanks(world, read, rules);
  manifest.metadata.deck = deck;
  return manifest.metadata;
}

}  // namespace espalier
