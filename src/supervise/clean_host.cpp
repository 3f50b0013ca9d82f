// Removes the remains of earlier starts on one host: processes, shared memory of MPI, states in memory.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "espalier/supervise/supervise.hpp"
#include "espalier/util/input_file.hpp"
#include "supervise/launcher.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr auto kTimeToEnd = std::chrono::seconds(3);
constexpr auto kEndTick = std::chrono::milliseconds(50);
constexpr const char* kSharedMemory = "/dev/shm";

/// Ids of the processes that this user can look at.
std::vector<pid_t> Processes() {
  std::vector<pid_t> ids;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) ids.push_back(std::stoi(name));
  }
  return ids;
}

bool Lives(pid_t process) {
  const std::string stat = ReadSystemFile("/proc/" + std::to_string(process) + "/stat");
  const size_t bracket = stat.rfind(") ");
  return bracket != stat.npos && stat[bracket + 2] != 'Z' && stat[bracket + 2] != 'X';
}

/// Processes of a supervised run in this directory. The small shells by which ranks end a daemon that is stuck
/// (comm/mpi/launcher.cpp) are left to their work.
std::vector<pid_t> LeftOf(const std::string& run_dir) {
  const std::string mark = std::string(kSupervised) + "=" + run_dir;
  std::vector<pid_t> left;
  for (pid_t process : Processes()) {
    if (process == ::getpid()) continue;
    const std::string folder = "/proc/" + std::to_string(process);
    const std::string variables = '\0' + ReadSystemFile(folder + "/environ");
    if (variables.find('\0' + mark + '\0') == variables.npos || !Lives(process)) continue;
    if (ReadSystemFile(folder + "/comm") != "sh\n") left.push_back(process);
  }
  return left;
}

/// Their launcher may be about to end them.
void EndProcesses(const std::string& run_dir) {
  const auto end = std::chrono::steady_clock::now() + kTimeToEnd;
  std::vector<pid_t> left = LeftOf(run_dir);
  while (!left.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kEndTick);
    std::erase_if(left, [](pid_t process) { return !Lives(process); });
  }
  for (pid_t process : left.empty() ? left : LeftOf(run_dir)) ::kill(process, SIGKILL);
}

/// Files in shared memory that some process of this user has mapped.
std::set<std::string> Mapped() {
  std::set<std::string> files;
  for (pid_t process : Processes()) {
    std::istringstream lines(ReadSystemFile("/proc/" + std::to_string(process) + "/maps"));
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find(kSharedMemory); at != line.npos) files.insert(line.substr(at));
  }
  return files;
}

/// Open MPI's segments stay if its processes are killed.
void RemoveSegments(double since) {
  const std::set<std::string> mapped = Mapped();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(kSharedMemory, error)) {
    struct stat status {};
    const std::string path = entry.path();
    const bool ours = path.find("/vader_segment.") != path.npos || path.find("/sm_segment.") != path.npos;
    if (!ours || mapped.contains(path) || ::lstat(path.c_str(), &status) != 0) continue;
    if (status.st_uid == ::geteuid() && static_cast<double>(status.st_mtime) >= since) ::unlink(path.c_str());
  }
}

}  // namespace

void CleanHost(const OnHostOptions& options) {
  EndProcesses(options.run_dir);
  if (options.since > 0) RemoveSegments(options.since);
  std::error_code ignored;
  if (!options.memory.empty()) fs::remove_all(options.memory, ignored);
}

}  // namespace espalier
