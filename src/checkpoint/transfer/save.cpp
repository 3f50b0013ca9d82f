// The protocol (doc/checkpoint.md): everything is written into tmp-STEP-ID and synced to disk; the MANIFEST is written
// last; one rename commits. Until then no earlier checkpoint is touched.
#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <tuple>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/checksum.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/transfer/pieces.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kSaveStages = {"reported", "begin", "make-dir", "gather", "manifest", "fsync-dir", "deck", "master"};

namespace fs = std::filesystem;

/// One save: every rank writes its shard, and rank 0 commits.
class CollectiveSave {
 public:
  CollectiveSave(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                 const std::vector<LocalTensor>& local, const Mesh& mesh, World& world)
      : checkpoints_dir_(checkpoints_dir),
        metadata_(metadata),
        tensors_(tensors),
        mesh_(mesh),
        world_(world),
        pieces_(PlanPieces(tensors, mesh)) {
    CHECK(mesh.Ranks() == world.Size(), "a mesh of {} ranks in a world of {}", mesh.Ranks(), world.Size());
    for (const LocalTensor& piece : local) local_[piece.tensor->name] = &piece;
  }

  SaveResult Run(int64_t keep) {
    CHECK(keep >= 1, "keep {} checkpoints", keep);
    try {
      return Steps(keep);
    } catch (const AgreedError& error) {
      std::vector<std::string> messages = error.messages();
      messages.insert(messages.begin(), fmt::format("{}/{} is not saved; older checkpoints are untouched",
                                                    checkpoints_dir_, StepName(metadata_.step)));
      throw AgreedError(ExitStatus::kFault, std::move(messages));
    }
  }

 private:
  /// Figures of a commit, for the report.
  struct Committed {
    int64_t bytes = 0;  ///< size of all files
    std::vector<std::string> warnings;

    auto Fields() { return std::tie(bytes, warnings); }
  };

  SaveResult Steps(int64_t keep) {
    const auto start = std::chrono::steady_clock::now();
    const FailureRules rules = AnyFailureIs(ExitStatus::kFault);
    id_ = OnRankZero(
        world_, [this] { return Begin(); }, rules);
    const auto reports = GatherAttempts(
        world_, [this] { return Pack(WriteOwn()); }, ExitStatus::kFault);
    FaultPoint("reported", checkpoints_dir_);
    Committed committed = Unpack<Committed>(OnRankZero(
        world_, [&] { return Pack(Finish(reports)); }, rules));
    SaveResult result{
        checkpoints_dir_ + "/" + StepName(metadata_.step), id_, committed.bytes, 0, MillisecondsSince(start), settled_};
    for (std::string& warning : committed.warnings) result.warnings.push_back(std::move(warning));
    if (world_.Rank() == 0)
      for (std::string& warning : Prune(Directory(checkpoints_dir_), id_, keep))
        result.warnings.push_back(std::move(warning));
    result.blocked_ms = MillisecondsSince(start);
    return result;
  }

  std::string TemporaryPath() const { return checkpoints_dir_ + "/" + TemporaryName(metadata_.step, id_); }

  /// Rank 0: makes the temporary directory; returns the id.
  std::string Begin() {
    FaultPoint("begin", checkpoints_dir_);
    fs::create_directories(checkpoints_dir_);
    const Directory checkpoints(checkpoints_dir_);
    settled_ = Settle(checkpoints);
    int64_t bytes = static_cast<int64_t>(metadata_.deck.size());
    for (const auto& [name, text] : TokenizerFiles()) bytes += std::ssize(*text);
    for (const StateTensor& tensor : tensors_) bytes += Volume(tensor.type.shape) * SizeOf(tensor.type.dtype);
    RequireSpace(checkpoints_dir_, bytes);
    const std::string id = DrawId();
    fs::create_directory(checkpoints_dir_ + "/" + TemporaryName(metadata_.step, id));
    FaultPoint("make-dir", checkpoints_dir_);
    checkpoints.Sync();
    return id;
  }

  /// Every rank: writes its shard file. A rank without shards writes none, and its report is empty.
  ShardReport WriteOwn() const {
    std::vector<ShardPiece> own;
    for (const StatePiece& piece : pieces_)
      if (piece.writer == world_.Rank()) own.push_back(Fill(piece));
    return own.empty() ? ShardReport{} : WriteShard(Directory(TemporaryPath()), ShardName(world_.Rank()), own);
  }

  ShardPiece Fill(const StatePiece& piece) const {
    const StateTensor& tensor = tensors_[static_cast<size_t>(piece.tensor)];
    const auto data = local_.find(tensor.name);
    CHECK(data != local_.end() && (data->second->data != nullptr || data->second->read),
          "rank {} holds {} but did not pass it", world_.Rank(), tensor.name);
    return {tensor.StoredName(), tensor.StoredShape(), piece.box,        data->second->data,
            data->second->read,  tensor.type.dtype,    data->second->crc};
  }

  /// Rank 0: writes the MANIFEST and commits. Removes everything if a rank failed.
  Committed Finish(const std::vector<std::string>& reports) const {
    try {
      FaultPoint("gather", TemporaryPath());
      const Manifest manifest = Assemble(ResultsOf(reports, ExitStatus::kFault));
      const Directory temporary(TemporaryPath());
      const std::string text = Print(manifest);
      ParseManifest(text, kManifestName);  // checks that the text to be committed can be read
      FaultPoint("manifest", TemporaryPath());
      temporary.WriteText(kManifestName, text);
      FaultPoint("fsync-dir", TemporaryPath());
      temporary.Sync();
      return {manifest.Bytes() + static_cast<int64_t>(text.size()),
              Commit(Directory(checkpoints_dir_), metadata_.step, id_)};
    } catch (...) {
      RemoveTemporary();
      throw;
    }
  }

  /// Removes what this save has written, as far as that is possible.
  void RemoveTemporary() const {
    try {
      RemoveCheckpointFiles(TemporaryPath());
    } catch (const std::exception&) {
      // The next save removes the rest.
    }
    std::error_code ignored;
    fs::remove(checkpoints_dir_ + "/latest-" + id_, ignored);
  }

  /// Merges the reports of all ranks, writes deck and master, and lists everything.
  Manifest Assemble(const std::vector<std::string>& reports) const {
    Manifest manifest{id_, metadata_, mesh_.Ranks(), mesh_.ToString(), {}, {}};
    for (std::string* text : {&manifest.metadata.version, &manifest.metadata.git_hash})
      if (text->empty()) *text = "unknown";
    std::vector<size_t> stored;  // by tensor: its index in the manifest, which the parts of one stored tensor share
    std::map<std::string_view, size_t> places;
    for (const StateTensor& tensor : tensors_) {
      const auto [place, fresh] = places.emplace(tensor.StoredName(), manifest.tensors.size());
      if (fresh) manifest.tensors.push_back({tensor.StoredName(), tensor.StoredShape(), {}, tensor.type.dtype});
      stored.push_back(place->second);
    }
    AddShards(reports, stored, manifest);
    const Directory temporary(TemporaryPath());
    FaultPoint("deck", TemporaryPath());
    temporary.WriteText(kDeckName, metadata_.deck);
    FaultPoint("master", TemporaryPath());
    WriteMaster(temporary, manifest, metadata_.deck);
    std::vector<std::string> names = {"master.h5", kDeckName};
    for (const auto& [name, text] : TokenizerFiles()) {
      names.push_back(name);
      temporary.WriteText(name, *text);
    }
    for (const std::string& name : names) {
      const File file = temporary.Open(name);
      manifest.files.push_back({name, file.Bytes(), ChecksumFile(file, {}).whole});
    }
    return manifest;
  }

  /// Names and bytes.
  std::vector<std::pair<std::string, const std::string*>> TokenizerFiles() const {
    if (!metadata_.tokenizer) return {};
    std::vector<std::pair<std::string, const std::string*>> files = {
        {metadata_.tokenizer->file_name(), &metadata_.tokenizer->bytes()}};
    for (const TokenizerCompanion& companion : metadata_.tokenizer->companions())
      files.emplace_back(companion.name, &companion.bytes);
    return files;
  }

  void AddShards(const std::vector<std::string>& packed, const std::vector<size_t>& stored, Manifest& manifest) const {
    std::vector<ShardReport> reports;
    std::vector<int> file_of_rank(packed.size(), -1);
    std::vector<size_t> next(packed.size(), 0);  // by rank: its next shard
    for (size_t rank = 0; rank < packed.size(); ++rank) {
      const ShardReport& report = reports.emplace_back(Unpack<ShardReport>(packed[rank]));
      if (report.pieces.empty()) continue;
      file_of_rank[rank] = static_cast<int>(manifest.files.size());
      manifest.files.push_back({ShardName(static_cast<int>(rank)), report.bytes, report.crc});
    }
    for (const StatePiece& piece : pieces_) {
      const auto writer = static_cast<size_t>(piece.writer);
      CHECK(next[writer] < reports[writer].pieces.size(), "rank {} did not report {}", writer,
            tensors_[static_cast<size_t>(piece.tensor)].name);
      const ShardReport::Place& place = reports[writer].pieces[next[writer]++];
      manifest.tensors[stored[static_cast<size_t>(piece.tensor)]].pieces.push_back(
          {file_of_rank[writer], piece.box, place.offset, place.crc});
    }
  }

  const std::string& checkpoints_dir_;
  const Metadata& metadata_;
  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  World& world_;
  std::vector<StatePiece> pieces_;
  std::map<std::string, const LocalTensor*> local_;
  std::string id_;
  std::vector<std::string> settled_;  ///< rank 0: the warnings of Settle
};

}  // namespace

SaveResult Save(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                const std::vector<LocalTensor>& local, const Mesh& mesh, World& world, int64_t keep) {
  return CollectiveSave(checkpoints_dir, metadata, tensors, local, mesh, world).Run(keep);
}

}  // namespace espalier
