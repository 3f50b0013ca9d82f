// The protocol (doc/checkpoint.md): every rank writes its shard into the memory of its node and sends it to its keeper
// on another node; the MANIFEST is written when all shards and their second copies are there; then every node commits
// by one rename; only then the generation before is removed.
#include <fmt/core.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/checksum.hpp"
#include "checkpoint/transfer/shards.hpp"
#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kMemoryStages = {"memory-begin",    "memory-data",   "memory-send",
                                   "memory-manifest", "memory-rename", "memory-committed"};

namespace fs = std::filesystem;

constexpr int64_t kBoxAlignment = 64;  // boxes begin at whole lines, as in the staging buffer

/// Writes the boxes one after the other into a file of their size. Checksums are of the bytes in memory.
ShardReport WriteBoxes(const File& file, const std::vector<ShardPiece>& boxes) {
  ShardReport report;
  std::vector<Extent> extents;
  std::vector<uint32_t> crcs;
  for (const ShardPiece& box : boxes) {
    FaultPoint("memory-data", file.path());
    CHECK(box.data != nullptr, "{} is not in the host's memory", box.tensor);
    const int64_t offset = report.bytes;
    const auto* data = static_cast<const char*>(box.data);
    uint32_t crc = 0;
    for (int64_t at = 0; at < box.Bytes(); at += kChunkBytes) {
      const int64_t bytes = std::min(kChunkBytes, box.Bytes() - at);
      crc = Crc32c(data + at, static_cast<size_t>(bytes), crc);
      file.Write(data + at, bytes, offset + at);
    }
    if (box.crc && *box.crc != crc)
      throw UserError(
          ExitStatus::kData,
          fmt::format("{} has checksum {:08x} and had {:08x} when the weights were proved: this rank's memory "
                      "changed in between",
                      box.tensor, crc, *box.crc));
    report.pieces.push_back({offset, crc});
    extents.push_back({offset, box.Bytes()});
    crcs.push_back(crc);
    report.bytes = (offset + box.Bytes() + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment;
  }
  report.crc = ChecksumAround(file, extents, crcs);
  return report;
}

class CollectiveCopy {
 public:
  CollectiveCopy(const MemoryNodes& nodes, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                 const std::vector<LocalTensor>& local, const Mesh& mesh, World& world)
      : nodes_(nodes),
        metadata_(metadata),
        world_(world),
        shards_(metadata, tensors, local, mesh, world),
        planned_(StagingBytes(tensors, mesh)) {}

  SaveResult Run() {
    try {
      return Steps();
    } catch (const AgreedError& error) {
      RemoveTemporary();
      std::vector<std::string> messages = error.messages();
      messages.insert(messages.begin(),
                      fmt::format("step {} is not copied in memory; the copies before are untouched", metadata_.step));
      throw AgreedError(ExitStatus::kFault, std::move(messages));
    }
  }

 private:
  SaveResult Steps() {
    const auto start = std::chrono::steady_clock::now();
    const FailureRules rules = AnyFailureIs(ExitStatus::kFault);
    id_ = OnRankZero(world_, DrawId);
    OnAllRanks(
        world_, [&] { Begin(); }, rules);
    const auto reports = GatherAttempts(
        world_, [&] { return Pack(WriteOwn()); }, ExitStatus::kFault);
    const std::string text = OnRankZero(
        world_, [&] { return Print(Assemble(ResultsOf(reports, ExitStatus::kFault))); }, rules);
    const Manifest manifest = ParseManifest(text, kManifestName);
    Send();
    OnAllRanks(
        world_, [&] { Finish(manifest, text); }, rules);
    OnAllRanks(
        world_, [&] { Commit(); }, rules);
    FaultPoint("memory-committed", TemporaryPath());
    nodes_.RemoveAllBut(metadata_.step, world_);
    const double ms = MillisecondsSince(start);
    return {CommittedPath(), id_, manifest.Bytes() + std::ssize(text), ms, ms, {}};
  }

  std::string TemporaryPath() const { return nodes_.dir() + "/" + TemporaryName(metadata_.step, id_); }
  std::string CommittedPath() const { return nodes_.dir() + "/" + StepName(metadata_.step); }
  int64_t BytesOf(int writer) const { return planned_[static_cast<size_t>(writer)]; }

  /// The ranks of this node make the directory; the first one asks whether all of their files have room.
  void Begin() const {
    FaultPoint("memory-begin", nodes_.dir());
    if (!nodes_.Leads()) return;
    Settle(Directory(nodes_.dir()));
    fs::create_directory(TemporaryPath());
    int64_t need = std::ssize(metadata_.deck);
    for (int writer = 0; writer < world_.Size(); ++writer)
      if (nodes_.Keeps(writer)) need += BytesOf(writer);
    struct statvfs status {};
    if (::statvfs(nodes_.dir().c_str(), &status) != 0) return;  // unknown; taking the room will fail if there is none
    const auto free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
    if (free < need)
      throw UserError(ExitStatus::kFault,
                      fmt::format("{}: {} bytes are needed for the copies in memory of this node's ranks, {} are free",
                                  nodes_.dir(), need, free));
  }

  File NewFile(int writer) const {
    File file = Directory(TemporaryPath()).Create(ShardName(writer));
    file.Reserve(BytesOf(writer));
    return file;
  }

  /// Its own shard, and room for those that it keeps for others. A rank without shards reports none.
  ShardReport WriteOwn() {
    for (int writer = 0; writer < world_.Size(); ++writer)
      if (nodes_.KeeperOf(writer) == world_.Rank() && BytesOf(writer) > 0)
        kept_.push_back({writer, NewFile(writer).Map(Access::kWrite)});
    const std::vector<ShardPiece> own = shards_.Own();
    if (own.empty()) return {};
    const File file = NewFile(world_.Rank());
    ShardReport report = WriteBoxes(file, own);
    CHECK(report.bytes == BytesOf(world_.Rank()), "a shard of {} bytes, {} are planned", report.bytes,
          BytesOf(world_.Rank()));
    return report;
  }

  /// Rank 0.
  Manifest Assemble(const std::vector<std::string>& reports) const {
    Manifest manifest = shards_.Assemble(id_, reports);
    manifest.in_memory = true;
    const std::string& deck = metadata_.deck;
    manifest.files.push_back({kDeckName, std::ssize(deck), Crc32c(deck.data(), deck.size())});
    return manifest;
  }

  void Send() {
    FaultPoint("memory-send", TemporaryPath());
    std::vector<Parcel> sends, receives;
    std::optional<Mapping> own;
    if (const int keeper = nodes_.KeeperOf(world_.Rank()); keeper >= 0 && BytesOf(world_.Rank()) > 0) {
      own.emplace(Directory(TemporaryPath()).Open(ShardName(world_.Rank())).Map(Access::kRead));
      sends.push_back({keeper, own->data(), own->bytes()});
    }
    for (const Kept& kept : kept_) receives.push_back({kept.writer, kept.file.data(), kept.file.bytes()});
    world_.Exchange(sends, receives);
  }

  /// This rank's files must hold the bytes that were written. The MANIFEST, on every node, says that all is there once
  /// it is committed.
  void Finish(const Manifest& manifest, const std::string& text) const {
    for (const Kept& kept : kept_) {
      const ManifestFile* listed = manifest.FindFile(ShardName(kept.writer));
      CHECK(listed != nullptr, "rank {} is kept and not listed", kept.writer);
      if (Crc32c(kept.file.data(), static_cast<size_t>(kept.file.bytes())) != listed->crc)
        throw UserError(ExitStatus::kData, fmt::format("rank {} has received other bytes than rank {} has sent",
                                                       world_.Rank(), kept.writer));
    }
    FaultPoint("memory-manifest", TemporaryPath());
    if (!nodes_.Leads()) return;
    const Directory temporary(TemporaryPath());
    temporary.WriteText(kDeckName, metadata_.deck);
    temporary.WriteText(kManifestName, text);
  }

  void Commit() const {
    FaultPoint("memory-rename", TemporaryPath());
    if (!nodes_.Leads()) return;
    if (fs::exists(CommittedPath())) RemoveCheckpointFiles(CommittedPath());
    fs::rename(TemporaryPath(), CommittedPath());
  }

  void RemoveTemporary() const {
    world_.Barrier();  // no rank writes any more
    if (nodes_.Leads()) try {
        if (fs::exists(TemporaryPath())) RemoveCheckpointFiles(TemporaryPath());
      } catch (const std::exception&) {
        // The next copy removes the rest.
      }
  }

  /// A second copy of another rank's shard.
  struct Kept {
    int writer;
    Mapping file;
  };

  const MemoryNodes& nodes_;
  const Metadata& metadata_;
  World& world_;
  const Shards shards_;
  const std::vector<int64_t> planned_;  ///< by rank: bytes of its shard
  std::vector<Kept> kept_;
  std::string id_;
};

}  // namespace

SaveResult SaveInMemory(const MemoryNodes& nodes, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                        const std::vector<LocalTensor>& local, const Mesh& mesh, World& world) {
  return CollectiveCopy(nodes, metadata, tensors, local, mesh, world).Run();
}

}  // namespace espalier
