// The protocol (doc/checkpoint.md): everything is written into tmp-STEP-ID and synced to disk; the MANIFEST is written
// last; one rename commits. Until then no earlier checkpoint is touched.
#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <tuple>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/checksum.hpp"
#include "checkpoint/transfer/shards.hpp"
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
        world_(world),
        shards_(metadata, tensors, local, mesh, world) {}

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
    Committed committed = OnRankZero(
        world_, [&] { return Finish(reports); }, rules);
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
    const std::vector<ShardPiece> own = shards_.Own();
    return own.empty() ? ShardReport{} : WriteShard(Directory(TemporaryPath()), ShardName(world_.Rank()), own);
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
    Manifest manifest = shards_.Assemble(id_, reports);
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

  const std::string& checkpoints_dir_;
  const Metadata& metadata_;
  const std::vector<StateTensor>& tensors_;
  World& world_;
  const Shards shards_;
  std::string id_;
  std::vector<std::string> settled_;  ///< rank 0: the warnings of Settle
};

}  // namespace

SaveResult Save(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                const std::vector<LocalTensor>& local, const Mesh& mesh, World& world, int64_t keep) {
  return CollectiveSave(checkpoints_dir, metadata, tensors, local, mesh, world).Run(keep);
}

}  // namespace espalier
