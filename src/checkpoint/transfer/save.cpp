#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/checksum.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/transfer/agree.hpp"
#include "checkpoint/transfer/pieces.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"

// The protocol (doc/checkpoint.md): everything is written into tmp-STEP-ID and brought to the disk; the MANIFEST is
// written last; one rename commits. Until then nothing that was committed before is touched.
namespace espalier {
namespace {

const FaultStages kFaultStages = {"reported", "begin", "make-dir", "gather", "manifest", "fsync-dir", "deck", "master"};

namespace fs = std::filesystem;

class Saver {
 public:
  Saver(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
        const std::vector<LocalTensor>& local, const Mesh& mesh, World& world)
      : checkpoints_dir_(checkpoints_dir),
        metadata_(metadata),
        tensors_(tensors),
        mesh_(mesh),
        world_(world),
        pieces_(PlanPieces(tensors, mesh)) {
    CHECK(mesh.Ranks() == world.Size(), "a mesh of {} ranks in a world of {}", mesh.Ranks(), world.Size());
    for (const LocalTensor& piece : local) local_[piece.tensor->name] = piece.data;
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
  SaveResult Steps(int64_t keep) {
    const auto start = std::chrono::steady_clock::now();
    id_ = FromRankZero(world_, ExitStatus::kFault, [this] { return Begin(); });
    const std::vector<std::string> reports = world_.Gather(Attempt([this] { return WriteOwn(); }));
    FaultPoint("reported", checkpoints_dir_);
    std::istringstream outcome(FromRankZero(world_, ExitStatus::kFault, [&] { return Finish(reports); }));
    SaveResult result{checkpoints_dir_ + "/" + StepName(metadata_.step), id_, 0, 0, MillisecondsSince(start), settled_};
    outcome >> result.bytes >> std::ws;
    for (std::string warning; std::getline(outcome, warning);) result.warnings.push_back(warning);
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
    for (const StateTensor& tensor : tensors_) bytes += Volume(tensor.type.shape) * SizeOf(Dtype::kF32);
    RequireSpace(checkpoints_dir_, bytes);
    const std::string id = DrawId();
    fs::create_directory(checkpoints_dir_ + "/" + TemporaryName(metadata_.step, id));
    FaultPoint("make-dir", checkpoints_dir_);
    checkpoints.Sync();
    return id;
  }

  /// Every rank: writes its shard; returns "bytes crc" and "offset crc" of each of its pieces, or "" without pieces.
  std::string WriteOwn() const {
    std::vector<ShardPiece> own;
    for (const Piece& piece : pieces_)
      if (piece.writer == world_.Rank()) own.push_back(Fill(piece));
    if (own.empty()) return "";
    const ShardReport report = WriteShard(Directory(TemporaryPath()), ShardName(world_.Rank()), own);
    std::string text = fmt::format("{} {}", report.bytes, report.crc);
    for (const ShardReport::Place& place : report.pieces) text += fmt::format(" {} {}", place.offset, place.crc);
    return text;
  }

  ShardPiece Fill(const Piece& piece) const {
    const StateTensor& tensor = tensors_[static_cast<size_t>(piece.tensor)];
    const auto data = local_.find(tensor.name);
    CHECK(data != local_.end() && data->second != nullptr, "rank {} holds {} but passed none", world_.Rank(),
          tensor.name);
    return {tensor.StoredName(), tensor.StoredShape(), piece.box, data->second};
  }

  /// Rank 0: MANIFEST and commit; returns bytes, then a warning a line. Removes everything if a rank failed.
  std::string Finish(const std::vector<std::string>& reports) const {
    try {
      FaultPoint("gather", TemporaryPath());
      const Manifest manifest = Assemble(Results(reports, ExitStatus::kFault));
      const Directory temporary(TemporaryPath());
      const std::string text = Print(manifest);
      ParseManifest(text, kManifestName);  // what we commit, we can read
      FaultPoint("manifest", TemporaryPath());
      temporary.WriteText(kManifestName, text);
      FaultPoint("fsync-dir", TemporaryPath());
      temporary.Sync();
      std::string outcome = fmt::format("{}\n", manifest.Bytes() + static_cast<int64_t>(text.size()));
      for (const std::string& warning : Commit(Directory(checkpoints_dir_), metadata_.step, id_))
        outcome += warning + "\n";
      return outcome;
    } catch (...) {
      std::error_code ignored;
      Attempt([&] { return RemoveCheckpointFiles(TemporaryPath()), ""; });
      fs::remove(checkpoints_dir_ + "/latest-" + id_, ignored);
      throw;
    }
  }

  /// Joins the ranks' reports, writes deck and master, and lists everything.
  Manifest Assemble(const std::vector<std::string>& reports) const {
    Manifest manifest{id_, metadata_, mesh_.Ranks(), mesh_.ToString(), {}, {}};
    for (std::string* text : {&manifest.metadata.version, &manifest.metadata.git_hash})
      if (text->empty()) *text = "unknown";
    std::vector<size_t> stored;  // by tensor: its place in the manifest, shared by the parts of one
    std::map<std::string_view, size_t> places;
    for (const StateTensor& tensor : tensors_) {
      const auto [place, fresh] = places.emplace(tensor.StoredName(), manifest.tensors.size());
      if (fresh) manifest.tensors.push_back({tensor.StoredName(), tensor.StoredShape(), {}});
      stored.push_back(place->second);
    }
    AddShards(reports, stored, manifest);
    const Directory temporary(TemporaryPath());
    FaultPoint("deck", TemporaryPath());
    temporary.WriteText(kDeckName, metadata_.deck);
    FaultPoint("master", TemporaryPath());
    WriteMaster(temporary, manifest, metadata_.deck);
    for (const char* name : {"master.h5", kDeckName}) {
      const File file = temporary.Open(name);
      manifest.files.push_back({name, file.Bytes(), ChecksumFile(file, {}).whole});
    }
    return manifest;
  }

  void AddShards(const std::vector<std::string>& reports, const std::vector<size_t>& stored, Manifest& manifest) const {
    std::vector<std::istringstream> by_rank;
    std::vector<int> file_of_rank(reports.size(), -1);
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      std::istringstream& report = by_rank.emplace_back(reports[rank]);
      if (reports[rank].empty()) continue;
      ManifestFile file{ShardName(static_cast<int>(rank)), 0, 0};
      report >> file.bytes >> file.crc;
      file_of_rank[rank] = static_cast<int>(manifest.files.size());
      manifest.files.push_back(std::move(file));
    }
    for (const Piece& piece : pieces_) {
      const auto writer = static_cast<size_t>(piece.writer);
      ManifestPiece entry{file_of_rank[writer], piece.box, 0, 0};
      CHECK(entry.file >= 0 && (by_rank[writer] >> entry.offset >> entry.crc), "rank {} did not report {}", writer,
            tensors_[static_cast<size_t>(piece.tensor)].name);
      manifest.tensors[stored[static_cast<size_t>(piece.tensor)]].pieces.push_back(std::move(entry));
    }
  }

  const std::string& checkpoints_dir_;
  const Metadata& metadata_;
  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  World& world_;
  std::vector<Piece> pieces_;
  std::map<std::string, void*> local_;
  std::string id_;
  std::vector<std::string> settled_;  ///< rank 0: what Settle warned of
};

}  // namespace

SaveResult Save(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                const std::vector<LocalTensor>& local, const Mesh& mesh, World& world, int64_t keep) {
  return Saver(checkpoints_dir, metadata, tensors, local, mesh, world).Run(keep);
}

}  // namespace espalier
