#include "commands/run/start.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <sstream>

#include "commands/run/together.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// True if the checkpoints of the deck's own run are meant.
bool MeansOwn(const RunOptions& options) { return options.restart.empty() || options.restart == "latest"; }

class Finder {
 public:
  Finder(const RunOptions& options, World& world) : options_(options), world_(world) {}

  Start Find() {
    Together(world_, [&] { start_.loaded = LoadDeck(options_.arguments.deck, options_.arguments.overrides); });
    const std::string dir = start_.deck().run.dir;
    const std::string there = OnRankZero(world_, [&] { return std::string(fs::exists(dir) ? "there" : ""); });
    if (MeansOwn(options_) && !there.empty()) Take(dir);
    std::istringstream found(OnRankZero(world_, [&] { return Search(); }));
    Read(found);
    // The checkpoint's deck may name another folder.
    if (start_.deck().run.dir != dir || !locked_) Take(start_.deck().run.dir);
    return std::move(start_);
  }

 private:
  /// Rank 0 holds the lock for all.
  void Take(const std::string& dir) {
    Together(world_, [&] {
      if (world_.Rank() != 0) return;
      start_.lock = RunLock(dir);
      if (!start_.lock.left_by().empty()) spdlog::info("{}: taken over from a run that was ended ({})", dir, start_.lock.left_by());
      SettleCheckpoints(dir + "/checkpoints");
    });
    locked_ = true;
  }

  std::vector<std::string> Candidates() const {
    const std::string folder = CheckpointFolder(start_.deck());
    if (!MeansOwn(options_)) return {Resolve(options_.restart, folder)};
    const bool asked = !options_.restart.empty() || start_.deck().checkpoint.restart == "required";
    if (!asked && start_.deck().checkpoint.restart == "never") return {};
    std::vector<std::string> found = FindCheckpoints(folder);
    if (const auto broken = LatestWithoutManifest(folder)) found.insert(found.begin(), *broken);
    if (found.empty() && asked)
      throw UserError(ExitStatus::kData, fmt::format("{}: there is no checkpoint to restart from", folder));
    return found;
  }

  /// Rank 0: "refused count", then the paths of the rest, then the first one's deck.
  std::string Search() {
    std::vector<std::string> candidates = Candidates();
    std::string deck;
    int64_t refused = 0;
    while (!candidates.empty()) try {
        deck = ReadMetadata(candidates.front()).deck;
        break;
      } catch (const UserError& error) {
        if (refused++ >= start_.deck().checkpoint.fallback || candidates.size() == 1) throw;
        spdlog::warn("not restarted from {}: {}", candidates.front(), error.what());
        candidates.erase(candidates.begin());
      }
    std::string text = fmt::format("{} {}\n", refused, candidates.size());
    for (const std::string& path : candidates) text += path + "\n";
    return text + deck;
  }

  void Read(std::istringstream& found) {
    size_t count = 0;
    found >> start_.refused >> count >> std::ws;
    for (std::string path; start_.checkpoints.size() < count && std::getline(found, path);) start_.checkpoints.push_back(path);
    if (start_.checkpoints.empty()) return;
    const std::string deck(std::istreambuf_iterator<char>(found), {});
    Together(world_, [&] { start_.loaded = LoadDeck(options_.arguments.deck, options_.arguments.overrides, deck); });
  }

  const RunOptions& options_;
  World& world_;
  Start start_;
  bool locked_ = false;
};

}  // namespace

std::string CheckpointFolder(const Deck& deck) { return (fs::path(deck.run.dir) / "checkpoints").string(); }

Start FindStart(const RunOptions& options, World& world) { return Finder(options, world).Find(); }

}  // namespace espalier
