#include "espalier/util/memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace espalier {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

/// The number behind `key` in a file of lines "key number ...".
std::optional<int64_t> NumberOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (int64_t number = 0; word == key && file >> number) return number;
  return std::nullopt;
}

/// The number that is all of a file; none for "max".
std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// What the control group leaves, its page cache counted as free.
int64_t LeftByGroup(const std::string& dir) {
  const auto limit = NumberIn(dir + "/memory.max"), used = NumberIn(dir + "/memory.current");
  if (!limit || !used) return kUnknown;
  const int64_t cache = NumberOf(dir + "/memory.stat", "inactive_file").value_or(0) + NumberOf(dir + "/memory.stat", "active_file").value_or(0);
  return std::max<int64_t>(0, *limit - *used + cache);
}

/// The folder of this process's control group (version 2).
std::string GroupFolder() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  return "/sys/fs/cgroup";
}

}  // namespace

int64_t AvailableMemory() {
  const auto node = NumberOf("/proc/meminfo", "MemAvailable:");
  const int64_t bytes = node ? *node * 1024 : kUnknown;
  return std::min({bytes, LeftByGroup("/sys/fs/cgroup"), LeftByGroup(GroupFolder())});
}

int64_t PeakResidentMemory() { return NumberOf("/proc/self/status", "VmHWM:").value_or(0) * 1024; }

}  // namespace espalier
