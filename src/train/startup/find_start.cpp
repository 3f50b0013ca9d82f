#include "train/startup/find_start.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <tuple>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/deck/epochs.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/util/error.hpp"
#include "train/startup/memory_start.hpp"
#include "train/startup/same_start.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// True if the checkpoints are the deck's own run's.
bool MeansOwn(const RunOptions& options) { return options.restart.empty() || options.restart == "latest"; }

/// The start that rank 0 finds for all ranks.
struct Found {
  int64_t step = 0;  ///< step of the first checkpoint
  int64_t refused = 0;
  std::vector<std::string> checkpoints;
  std::string branch;                 ///< as Start::branch
  std::vector<std::string> warnings;  ///< for rank 0 only

  auto Fields() { return std::tie(step, refused, checkpoints, branch); }
};

/// The latest checkpoint and its predecessors up to the point where they started from `branch`; none if the latest did
/// not.
std::vector<std::string> OfBranch(const std::string& folder, const std::string& branch) {
  std::vector<std::string> found, unreadable;
  try {
    for (const std::string& dir : FindCheckpoints(folder)) try {
        const Manifest manifest = ReadManifest(dir);
        if (!manifest.metadata.lineage || manifest.metadata.lineage->branch != branch || manifest.id == branch) break;
        found.insert(found.end(), unreadable.begin(), unreadable.end());
        found.push_back(dir);
        unreadable.clear();
      } catch (const UserError&) {
        unreadable.push_back(dir);
      }
  } catch (const UserError&) {
    // The latest cannot be determined, so the run continues from none of them.
  }
  return found;
}

class Finder {
 public:
  Finder(const RunOptions& options, World& world) : options_(options), world_(world) {}

  Start Find() {
    OnAllRanks(world_, [&] { start_.loaded = LoadDeck(options_.arguments.deck, options_.arguments.overrides); });
    AgreeOnDeck(world_, options_, start_.loaded);
    AgreeOnOrder(world_, start_.loaded.deck);
    OnAllRanks(world_, [&] {
      ResolveMesh(start_.loaded, world_.Size());
      RequirePatternsMatch(start_.loaded);
    });
    if (Sleeps()) {
      OnAllRanks(world_, [&] { RequireNoState(); });
      Take();
      return std::move(start_);
    }
    if (Adopt(OnRankZero(world_, [&] { return Look(); })); start_.beyond) return std::move(start_);
    start_.data = OpenRunData(start_.loaded, world_);
    if (CountSteps(); start_.beyond) return std::move(start_);
    const bool there = OnRankZero(world_, [&] { return fs::exists(Dir()); });
    if (there) Take();
    Adopt(OnRankZero(world_, [&] { return Warned(Search()); }));
    if (!there && !start_.beyond) Take();
    if (start_.deck().checkpoint.memory_steps > 0 && !start_.beyond) LookInMemory();
    return std::move(start_);
  }

 private:
  const std::string& Dir() const { return start_.deck().run.dir; }
  bool Sleeps() const { return start_.deck().run.device == RunDevice::kSleep; }

  /// A waiting run has no state to continue from, and must not be taken for a run that trains.
  void RequireNoState() const {
    if (!options_.restart.empty() || start_.deck().checkpoint.restart == Restart::kRequired)
      throw UserError(ExitStatus::kDeck,
                      fmt::format("{}: a run with run.device = \"sleep\" trains nothing, so it reads no checkpoint",
                                  options_.restart.empty() ? "checkpoint.restart = \"required\""
                                                           : "--restart " + options_.restart));
    std::error_code error;
    if (world_.Rank() == 0 && fs::exists(CheckpointFolder(start_.deck()), error))
      throw UserError(ExitStatus::kDeck,
                      fmt::format("run.dir = \"{}\" has the checkpoints of a run that trains: a run with run.device = "
                                  "\"sleep\" needs a directory of its own (run.dir={}-sleep)",
                                  Dir(), Dir()));
  }

  bool MayContinue() const { return start_.deck().checkpoint.restart != Restart::kNever || !options_.restart.empty(); }
  /// There must be something to continue from.
  bool MustContinue() const {
    return !options_.restart.empty() || start_.deck().checkpoint.restart == Restart::kRequired;
  }
  [[noreturn]] void RefuseToBegin() const {
    throw UserError(ExitStatus::kData,
                    fmt::format("{}: there is no checkpoint to restart from", CheckpointFolder(start_.deck())));
  }

  /// Says what is taken and why.
  void LookInMemory() {
    const Deck& deck = start_.deck();
    const std::string run_id = OnRankZero(world_, [&] { return MemoryRunId(deck); });
    start_.memory = std::make_unique<MemoryNodes>(deck.checkpoint.memory_dir, Dir(), run_id, world_);
    if (!MayContinue()) return;
    FoundInMemory found = FindInMemory(*start_.memory, world_);
    const DiskLine disk = OnRankZero(world_, [&] { return ReadDiskLine(start_.checkpoints, start_.branch); });
    const std::string why_not =
        found.newest ? WhyNotFromMemory(*found.newest, disk, deck) : "no complete copy is there";
    if (world_.Rank() == 0) SayMemory(found, why_not, disk);
    if (why_not.empty()) start_.generation = std::move(found.newest);
    OnAllRanks(world_, [&] {
      if (start_.IsFresh() && MustContinue()) RefuseToBegin();
    });
  }

  void SayMemory(const FoundInMemory& found, const std::string& why_not, const DiskLine& disk) const {
    for (const std::string& text : found.incomplete) spdlog::warn("copies in memory: {}", text);
    if (why_not.empty())
      spdlog::info(
          "continues from the copy in memory of step {}: {}", found.newest->step,
          disk.step < 0 ? "there is no checkpoint" : fmt::format("the newest checkpoint is of step {}", disk.step));
    else if (found.newest || !found.incomplete.empty() || disk.step >= 0)
      spdlog::info("does not continue from memory: {}", why_not);
  }

  /// Rank 0 holds the lock for all.
  void Take() {
    OnAllRanks(world_, [&] {
      if (world_.Rank() != 0) return;
      start_.lock = RunLock(Dir());
      if (!start_.lock.left_by().empty())
        spdlog::info("{}: taken over from a run that was ended ({})", Dir(), start_.lock.left_by());
      if (!Sleeps()) SettleCheckpoints(Dir() + "/checkpoints");
    });
  }

  void Adopt(Found found) {
    start_.refused = found.refused;
    start_.checkpoints = std::move(found.checkpoints);
    start_.branch = std::move(found.branch);
    found_step_ = found.step;
    JudgeStep();
  }

  void JudgeStep() {
    const Deck& deck = start_.deck();
    if (!start_.checkpoints.empty() && !AwaitsData(deck) && found_step_ > deck.run.steps) start_.beyond = found_step_;
  }

  /// The number of steps in run.epochs depends on the data.
  void CountSteps() {
    if (!AwaitsData(start_.deck())) return;
    OnAllRanks(world_,
               [&] { start_.loaded = WithStepsOfEpochs(std::move(start_.loaded), start_.data.training->samples()); });
    JudgeStep();
  }

  /// On rank 0, before anything is written. Another run may hold the directory and change it, so files that cannot be
  /// read now are checked again once this run holds the lock.
  Found Look() const {
    try {
      return Search();
    } catch (const RefusedForGood&) {
      throw;
    } catch (const UserError&) {
      return {};
    }
  }

  Found Warned(Found found) const {
    for (const std::string& warning : found.warnings) spdlog::warn("{}", warning);
    return found;
  }

  Found Search() const {
    Found found;
    found.checkpoints = MeansOwn(options_) ? Own() : Named(found);
    while (!found.checkpoints.empty()) try {
        const std::string& dir = found.checkpoints.front();
        const Metadata saved = ReadMetadata(dir);
        RequireSameModel(dir, Differences(SavedDeck(dir, saved.deck), start_.loaded));
        found.step = saved.step;
        break;
      } catch (const RefusedForGood&) {
        throw;
      } catch (const UserError& error) {
        if (found.refused++ >= start_.deck().checkpoint.fallback || found.checkpoints.size() == 1) throw;
        found.warnings.push_back(fmt::format("not restarted from {}: {}", found.checkpoints.front(), error.what()));
        found.checkpoints.erase(found.checkpoints.begin());
      }
    return found;
  }

  std::vector<std::string> Own() const {
    const std::string folder = CheckpointFolder(start_.deck());
    if (!MayContinue()) return {};
    std::vector<std::string> found = FindCheckpoints(folder);
    if (const auto broken = LatestWithoutManifest(folder)) found.insert(found.begin(), *broken);
    if (found.empty() && MustContinue() && start_.deck().checkpoint.memory_steps == 0) RefuseToBegin();
    return found;
  }

  /// The checkpoint that the command line names. If an earlier start in this directory began there, the run continues
  /// from its latest checkpoint instead: after exit status 75 the same command must continue the run.
  std::vector<std::string> Named(Found& found) const {
    const std::string folder = CheckpointFolder(start_.deck());
    const std::string named = Resolve(options_.restart, folder);
    std::error_code error;
    if (!fs::exists(fs::path(options_.restart) / "MANIFEST") &&
        fs::equivalent(fs::path(named).parent_path(), folder, error))
      return Own();
    found.branch = ReadManifest(named).id;
    std::vector<std::string> own = OfBranch(folder, found.branch);
    if (!own.empty())
      found.warnings.push_back(
          fmt::format("goes on from {}, which an earlier start made from {}; to begin there again, give this "
                      "run another run.dir",
                      own.front(), named));
    own.push_back(named);
    return own;
  }

  const RunOptions& options_;
  World& world_;
  Start start_;
  int64_t found_step_ = 0;  ///< step of the checkpoint to restart from
};

}  // namespace

std::string CheckpointFolder(const Deck& deck) { return (fs::path(deck.run.dir) / "checkpoints").string(); }

bool HasBegunAt(const Deck& deck, const std::string& checkpoint) try {
  return !OfBranch(CheckpointFolder(deck), ReadManifest(checkpoint).id).empty();
} catch (const UserError&) {
  return false;  // a checkpoint that cannot be read is refused by its own error
}

Start FindStart(const RunOptions& options, World& world) { return Finder(options, world).Find(); }

}  // namespace espalier
