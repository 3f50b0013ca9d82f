#include "commands/run/start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <sstream>

#include "commands/run/agreement.hpp"
#include "commands/run/together.hpp"
#include "commands/saved_deck.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// True if the checkpoints of the deck's own run are meant.
bool MeansOwn(const RunOptions& options) { return options.restart.empty() || options.restart == "latest"; }

/// What rank 0 finds for all.
struct Found {
  int64_t step = 0;  ///< of the first checkpoint
  int64_t refused = 0;
  std::vector<std::string> checkpoints;
  std::vector<std::string> warnings;  ///< not for the other ranks
};

std::string Print(const Found& found) {
  return fmt::format("{} {} {}\n{}\n", found.step, found.refused, found.checkpoints.size(),
                     fmt::join(found.checkpoints, "\n"));
}

Found ReadFound(const std::string& text) {
  Found found;
  size_t count = 0;
  std::istringstream stream(text);
  stream >> found.step >> found.refused >> count >> std::ws;
  for (std::string path; found.checkpoints.size() < count && std::getline(stream, path);)
    found.checkpoints.push_back(path);
  return found;
}

class Finder {
 public:
  Finder(const RunOptions& options, World& world) : options_(options), world_(world) {}

  Start Find() {
    Together(world_, [&] { start_.loaded = LoadDeck(options_.arguments.deck, options_.arguments.overrides); });
    AgreeOnDeck(world_, options_, start_.loaded);
    Together(world_, [&] { ResolveMesh(start_.loaded, world_.Size()); });
    if (Adopt(OnRankZero(world_, [&] { return Look(); })); start_.beyond) return std::move(start_);
    start_.data = OpenRunData(start_.loaded, world_);
    const std::string there = OnRankZero(world_, [&] { return std::string(fs::exists(Dir()) ? "there" : ""); });
    if (!there.empty()) Take();
    Adopt(OnRankZero(world_, [&] { return Print(Warned(Search())); }));
    if (there.empty() && !start_.beyond) Take();
    return std::move(start_);
  }

 private:
  const std::string& Dir() const { return start_.deck().run.dir; }

  /// Rank 0 holds the lock for all.
  void Take() {
    Together(world_, [&] {
      if (world_.Rank() != 0) return;
      start_.lock = RunLock(Dir());
      if (!start_.lock.left_by().empty())
        spdlog::info("{}: taken over from a run that was ended ({})", Dir(), start_.lock.left_by());
      SettleCheckpoints(Dir() + "/checkpoints");
    });
  }

  void Adopt(const std::string& text) {
    Found found = ReadFound(text);
    start_.refused = found.refused;
    start_.checkpoints = std::move(found.checkpoints);
    if (!start_.checkpoints.empty() && found.step > start_.deck().run.steps) start_.beyond = found.step;
  }

  /// Rank 0, before anything is touched. Whoever holds the directory may be changing it: what cannot be read now is
  /// judged once it is ours.
  std::string Look() const {
    try {
      return Print(Search());
    } catch (const RefusedForGood&) {
      throw;
    } catch (const UserError&) {
      return Print({});
    }
  }

  Found Warned(Found found) const {
    for (const std::string& warning : found.warnings) spdlog::warn("{}", warning);
    return found;
  }

  Found Search() const {
    Found found;
    found.checkpoints = Candidates(found.warnings);
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

  std::vector<std::string> Candidates(std::vector<std::string>& warnings) const {
    const std::string folder = CheckpointFolder(start_.deck());
    if (!MeansOwn(options_)) return {Resolve(options_.restart, folder)};
    const bool asked = !options_.restart.empty() || start_.deck().checkpoint.restart == "required";
    std::vector<std::string> found = FindCheckpoints(folder);
    if (!asked && start_.deck().checkpoint.restart == "never") {
      if (!found.empty())
        warnings.push_back(fmt::format(
            "{}: checkpoints of an earlier run are there, the latest is {}; checkpoint.restart = \"never\" begins "
            "anew beside them: give this run another run.dir to keep them apart",
            folder, fs::path(found.front()).filename().string()));
      return {};
    }
    if (const auto broken = LatestWithoutManifest(folder)) found.insert(found.begin(), *broken);
    if (found.empty() && asked)
      throw UserError(ExitStatus::kData, fmt::format("{}: there is no checkpoint to restart from", folder));
    return found;
  }

  const RunOptions& options_;
  World& world_;
  Start start_;
};

}  // namespace

std::string CheckpointFolder(const Deck& deck) { return (fs::path(deck.run.dir) / "checkpoints").string(); }

Start FindStart(const RunOptions& options, World& world) { return Finder(options, world).Find(); }

}  // namespace espalier
