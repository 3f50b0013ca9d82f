#include "espalier/util/memory.hpp"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 writes "none" as a number near 2^63

/// The number after `key` in a file of lines "key number ...".
std::optional<int64_t> NumberOf(const std::string& path, const std::string& key) {
  std::istringstream file(ReadSystemFile(path));
  for (std::string word; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (int64_t number = 0; word == key && file >> number) return number;
  return std::nullopt;
}

/// The number in a file that contains nothing else; nullopt for "max".
std::optional<int64_t> NumberIn(const std::string& path) {
  std::istringstream file(ReadSystemFile(path));
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

int64_t KilobytesOf(const std::string& path, const std::string& key) { return NumberOf(path, key).value_or(0) * 1024; }

/// The names that a version of control groups uses.
struct GroupVersion {
  const char* mount;
  const char* limit;
  const char* used;
  const char* active_cache;
  const char* inactive_cache;
};
constexpr GroupVersion kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_active_file", "total_inactive_file"};
constexpr GroupVersion kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "active_file", "inactive_file"};

/// The limit of one group, if it has one.
std::optional<MemoryLimit> LimitOfGroup(const std::string& folder, const std::string& name,
                                        const GroupVersion& version) {
  const auto limit = NumberIn(folder + "/" + version.limit), used = NumberIn(folder + "/" + version.used);
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const std::string details = folder + "/memory.stat";
  const int64_t cache =
      NumberOf(details, version.active_cache).value_or(0) + NumberOf(details, version.inactive_cache).value_or(0);
  struct stat status {};
  ::stat(folder.c_str(), &status);
  return MemoryLimit{fmt::format("{} group {} {}", NodeKey(), status.st_dev, status.st_ino),
                     fmt::format("control group {} (limit {})", name.empty() ? "/" : name, Gigabytes(*limit)),
                     std::max<int64_t>(0, *limit - *used + std::min(cache, *used))};
}

/// The groups from `path` up to the root; in a container the path may not exist, but the root does.
void AddGroups(const std::string& root, std::string path, const GroupVersion& version,
               std::vector<MemoryLimit>& limits) {
  if (path == "/") path.clear();
  while (true) {
    if (auto limit = LimitOfGroup(root + version.mount + path, path, version)) limits.push_back(*limit);
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

void AddResource(const char* name, rlimit limit, int64_t used, std::vector<MemoryLimit>& limits) {
  if (limit.rlim_cur == RLIM_INFINITY) return;
  const int64_t most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit));
  limits.push_back({"", fmt::format("{} (limit {})", name, Gigabytes(most)), std::max<int64_t>(0, most - used)});
}

void AddResources(std::vector<MemoryLimit>& limits) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0)
    AddResource("ulimit -v", limit, KilobytesOf("/proc/self/status", "VmSize:"), limits);
  if (::getrlimit(RLIMIT_DATA, &limit) == 0)
    AddResource("ulimit -d", limit, KilobytesOf("/proc/self/status", "VmData:"), limits);
}

/// If vm.overcommit_memory is 2, a mapping counts before it is touched.
void AddCommitLimit(std::vector<MemoryLimit>& limits) {
  if (NumberIn("/proc/sys/vm/overcommit_memory") != 2) return;
  const int64_t left = KilobytesOf("/proc/meminfo", "CommitLimit:") - KilobytesOf("/proc/meminfo", "Committed_AS:");
  limits.push_back({NodeKey() + " commit", "commit limit of the node", std::max<int64_t>(0, left)});
}

}  // namespace

std::vector<MemoryLimit> GroupLimits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  std::istringstream file(ReadSystemFile(root + "/proc/self/cgroup"));
  // Lines "0::/path" (version 2) and "9:memory:/path" (version 1, which may list more controllers).
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,") AddGroups(root, path, kVersion2, limits);
    if (controllers.find(",memory,") != std::string::npos) AddGroups(root, path, kVersion1, limits);
  }
  return limits;
}

std::vector<MemoryLimit> MemoryLimits() {
  std::vector<MemoryLimit> limits;
  if (const auto node = NumberOf("/proc/meminfo", "MemAvailable:"))
    limits.push_back(
        {NodeKey() + " memory",
         fmt::format("free memory of the node, which has {}", Gigabytes(KilobytesOf("/proc/meminfo", "MemTotal:"))),
         *node * 1024});
  std::ranges::move(GroupLimits(""), std::back_inserter(limits));
  AddResources(limits);
  AddCommitLimit(limits);
  return limits;
}

int64_t AvailableMemory() {
  int64_t least = kUnknown;
  for (const MemoryLimit& limit : MemoryLimits()) least = std::min(least, limit.available);
  return least;
}

std::string Gigabytes(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 1e12) return fmt::format("{:.3g} TB", b / 1e12);
  if (b >= 1e9) return fmt::format("{:.3g} GB", b / 1e9);
  return fmt::format("{:.3g} MB", b / 1e6);
}

int64_t ResidentMemory() {
  // "total resident shared ...", in pages.
  std::istringstream file(ReadSystemFile("/proc/self/statm"));
  int64_t total = 0, resident = 0;
  return file >> total >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

int64_t PeakResidentMemory() { return KilobytesOf("/proc/self/status", "VmHWM:"); }

}  // namespace espalier
