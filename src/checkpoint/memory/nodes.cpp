#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunName = "run";  // the file with the id of the run directory
constexpr std::string_view kProbePrefix = "probe-";
constexpr int64_t kGenerations = 2;  // the one before stays until a new one is committed

/// The directory is below one that everybody may write, so it must be this user's own and no link.
void MakeOwn(const std::string& dir) {
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("checkpoint.memory_dir: {} on {} cannot be made: {}; name a directory in the memory of "
                                "each node that you may write",
                                dir, HostName(), std::strerror(errno)));
  struct stat status {};
  if (::lstat(dir.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
    throw UserError(ExitStatus::kDeck, fmt::format("checkpoint.memory_dir: {} on {} is not a directory of this user: "
                                                   "remove it, or name another directory",
                                                   dir, HostName()));
}

std::vector<fs::path> GenerationsIn(const std::string& dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(dir, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (StepOf(it->path().filename().string())) found.push_back(it->path());
  return found;
}

void RemoveGenerations(const std::string& dir, int64_t but) {
  const Directory directory(dir);
  for (const std::string& warning : Settle(directory)) spdlog::warn("{}", warning);
  for (const fs::path& path : GenerationsIn(dir))
    if (StepOf(path.filename().string()) != but) RemoveCheckpointFiles(path.string());
}

std::string ReadRun(const Directory& directory) {
  constexpr int64_t kMax = 100;
  return directory.HasFile(kRunName) ? directory.ReadText(kRunName, kMax) : "";
}

/// For the first rank of a node.
void Adopt(const std::string& dir, const std::string& run_id) {
  const Directory directory(dir);
  if (ReadRun(directory) == run_id) return;
  RemoveGenerations(dir, -1);
  fs::remove(fs::path(dir) / kRunName);
  directory.WriteText(kRunName, run_id);
}

bool IsInMemory(const std::string& dir) {
  struct statfs status {};
  return ::statfs(dir.c_str(), &status) != 0 || status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

}  // namespace

std::string MemoryCopiesFolder(const std::string& memory_dir, const std::string& run_dir) {
  const std::string absolute = fs::weakly_canonical(run_dir).string();
  return fmt::format("{}/espalier-{}-{:016x}", memory_dir, ::geteuid(), StreamKey(0, absolute));
}

MemoryNodes::MemoryNodes(const std::string& memory_dir, const std::string& run_dir, const std::string& run_id,
                         World& world)
    : dir_(memory_dir.empty() ? "" : MemoryCopiesFolder(memory_dir, run_dir)), rank_(world.Rank()) {
  OnAllRanks(world, [&] { MakeOwn(dir_); });
  FindNodes(world);
  OnAllRanks(world, [&] {
    if (Leads()) Adopt(dir_, run_id);
  });
  Warn(memory_dir, world);
}

/// A file of each rank shows who sees it. Host names would not do: containers of one host may have memory of their own.
void MemoryNodes::FindNodes(World& world) {
  const std::string id = OnRankZero(world, DrawId);
  const auto probe = [&](int rank) { return fmt::format("{}{}-{}", kProbePrefix, id, rank); };
  OnAllRanks(world, [&] { Directory(dir_).WriteText(probe(rank_), ""); });
  int first = 0;
  OnAllRanks(world, [&] {
    const Directory directory(dir_);
    while (first < rank_ && !directory.HasFile(probe(first))) ++first;
  });
  const std::vector<int> firsts = OfAllRanks(world, std::vector{first});
  world.Barrier();
  fs::remove(fs::path(dir_) / probe(rank_));
  std::vector<int> node_led_by(firsts.size(), -1);
  for (size_t rank = 0; rank < firsts.size(); ++rank) {
    int& node = node_led_by[static_cast<size_t>(firsts[rank])];
    if (node < 0) {
      node = Count();
      members_.emplace_back();
    }
    members_[static_cast<size_t>(node)].push_back(static_cast<int>(rank));
    node_of_.push_back(node);
  }
}

void MemoryNodes::Warn(const std::string& memory_dir, World& world) const {
  const bool elsewhere = world.Or(IsInMemory(memory_dir) ? 0 : 1) != 0;
  const std::vector<std::string> hosts = world.Gather(HostName());
  if (rank_ != 0) return;
  if (elsewhere)
    spdlog::warn("checkpoint.memory_dir = \"{}\" is not in memory (no tmpfs): copies go to a disk", memory_dir);
  const std::set<std::string> names(hosts.begin(), hosts.end());
  if (Count() == 1 && names.size() > 1)
    spdlog::warn(
        "checkpoint.memory_dir = \"{}\" is one directory for the hosts {}: it is not in the memory of each, "
        "so a copy may be lost with any of them",
        memory_dir, fmt::join(names, ", "));
  else if (Count() == 1)
    spdlog::warn(
        "copies in memory: there is one node, so no second copy is kept on another: they survive the processes "
        "and not the node");
}

int MemoryNodes::KeeperOf(int rank) const {
  if (Count() == 1) return -1;
  const std::vector<int>& own = MembersOf(NodeOf(rank));
  const std::vector<int>& next = MembersOf((NodeOf(rank) + 1) % Count());
  const auto place = static_cast<size_t>(std::ranges::find(own, rank) - own.begin());
  return next[place % next.size()];
}

bool MemoryNodes::Keeps(int writer) const {
  if (writer >= static_cast<int>(node_of_.size())) return false;
  const int keeper = KeeperOf(writer);
  return NodeOf(writer) == NodeOf(rank_) || (keeper >= 0 && NodeOf(keeper) == NodeOf(rank_));
}

int64_t MemoryNodes::PlannedBytes(const std::vector<int64_t>& by_writer) const {
  int64_t bytes = 0;
  for (size_t writer = 0; writer < by_writer.size(); ++writer)
    if (Keeps(static_cast<int>(writer))) bytes += by_writer[writer];
  return kGenerations * bytes;
}

int64_t MemoryNodes::BytesNow() const {
  int64_t bytes = 0;
  std::error_code error;
  for (const fs::path& path : GenerationsIn(dir_))
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      const auto size = entry.file_size(error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
  return bytes;
}

void MemoryNodes::RemoveAllBut(int64_t step, World& world) const {
  if (Leads()) try {
      RemoveGenerations(dir_, step);
    } catch (const std::exception& error) {
      spdlog::warn("{}: {}", dir_, error.what());
    }
  world.Barrier();
}

void MemoryNodes::RemoveAll(World& world) const {
  RemoveAllBut(-1, world);
  if (!Leads()) return;
  std::error_code error;
  fs::remove(fs::path(dir_) / kRunName, error);
  fs::remove(dir_, error);
  if (error) spdlog::warn("{}: cannot be removed: {}", dir_, error.message());
}

}  // namespace espalier
