#include "espalier/watch/heartbeat.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

std::string PathOf(const std::string& folder, int rank) { return fmt::format("{}/rank-{:05}", folder, rank); }

[[noreturn]] void Refuse(const std::string& path) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

/// Creates a new file, never opening an existing one or following a link. Blocks are allocated now, so that a full disk
/// does not silence the heartbeat later.
int MakeFile(const std::string& path, size_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file < 0) Refuse(path);
  errno = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (errno == 0) return file;
  const int reason = errno;
  close(file);
  unlink(path.c_str());
  errno = reason;
  Refuse(path);
}

/// "rank-" and five digits or more, as PathOf writes them.
bool IsOurs(const std::string& name) {
  constexpr std::string_view kPrefix = "rank-";
  const std::string_view digits = std::string_view(name).substr(std::min(name.size(), kPrefix.size()));
  return name.starts_with(kPrefix) && digits.size() >= 5 &&
         std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
}

/// 0 if the system does not tell.
uint64_t ProcessTable() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

void Copy(const Progress& progress, std::array<int, kLaneCount>& done) {
  for (size_t lane = 0; lane < kLaneCount; ++lane) done[lane] = progress.done[lane].load(std::memory_order_relaxed);
}
template <typename T>
void Copy(const std::atomic<T>& from, std::atomic<T>& to) {
  to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
}
void Copy(const Progress& from, Progress& to) {
  Copy(from.runs, to.runs);
  for (size_t lane = 0; lane < kLaneCount; ++lane) Copy(from.done[lane], to.done[lane]);
  Copy(from.alive, to.alive);
}

}  // namespace

std::string_view Name(Activity activity) {
  constexpr std::array<std::string_view, 8> kNames = {
      "starting", "in a step",  "between steps", "agreeing with the other ranks",
      "saving",   "evaluating", "at the end",    "ending the job"};
  return kNames.at(static_cast<size_t>(activity));
}

std::string HeartbeatFolder(const std::string& run_dir) { return run_dir + "/heartbeat"; }

void PrepareHeartbeatFolder(const std::string& folder) {
  namespace fs = std::filesystem;
  if (fs::is_symlink(fs::symlink_status(folder)))
    throw UserError(ExitStatus::kFault,
                    fmt::format("{}: is a link; heartbeats need a folder of their own: remove the link", folder));
  fs::create_directories(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (IsOurs(entry.path().filename()) && unlink(entry.path().c_str()) != 0) Refuse(entry.path());
}

HeartbeatFile::HeartbeatFile(const std::string& folder, int rank) : path_(PathOf(folder, rank)) {
  record_.rank = rank;
  record_.process = getpid();
  HostName().copy(record_.host, sizeof(record_.host) - 1);
  record_.process_table = ProcessTable();
  file_ = MakeFile(path_, sizeof(HeartbeatRecord));
  if (!Publish()) Refuse(path_);
}

HeartbeatFile::~HeartbeatFile() {
  Remove();
  close(file_);
}

void HeartbeatFile::Remove() {
  struct stat mine {};
  struct stat there {};
  const bool ours = fstat(file_, &mine) == 0 && lstat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino;
  if (ours) unlink(path_.c_str());
}

bool HeartbeatFile::Publish() {
  ++record_.pulse;
  HeartbeatRecord copy;
  copy.rank = record_.rank;
  copy.process = record_.process;
  std::ranges::copy(record_.host, copy.host);
  copy.process_table = record_.process_table;
  copy.pulse = record_.pulse;
  Copy(record_.step, copy.step);
  Copy(record_.activity, copy.activity);
  Copy(record_.training, copy.training);
  Copy(record_.forward, copy.forward);
  return pwrite(file_, &copy, sizeof(copy), 0) == static_cast<ssize_t>(sizeof(copy));
}

bool Heartbeat::SamePlace(const Heartbeat& other) const {
  return step == other.step && activity == other.activity && done == other.done && forward == other.forward &&
         runs == other.runs && alive == other.alive;
}

Heartbeat Read(const HeartbeatRecord& record) {
  Heartbeat heartbeat;
  heartbeat.rank = record.rank;
  heartbeat.process = record.process;
  heartbeat.host.assign(record.host, strnlen(record.host, sizeof(record.host)));
  heartbeat.process_table = record.process_table;
  heartbeat.pulse = record.pulse;
  heartbeat.step = record.step.load(std::memory_order_relaxed);
  heartbeat.activity = record.activity.load(std::memory_order_relaxed);
  heartbeat.runs =
      record.training.runs.load(std::memory_order_relaxed) + record.forward.runs.load(std::memory_order_relaxed);
  heartbeat.alive = record.training.alive.load(std::memory_order_relaxed);
  Copy(record.training, heartbeat.done);
  Copy(record.forward, heartbeat.forward);
  return heartbeat;
}

std::optional<Heartbeat> ReadHeartbeat(const std::string& folder, int rank) {
  alignas(HeartbeatRecord) std::byte bytes[sizeof(HeartbeatRecord)];
  try {
    const InputFile file(PathOf(folder, rank), {.what = "heartbeat", .symlinks = Symlinks::kRefuse});
    file.ReadAt(0, bytes, sizeof(bytes));
  } catch (const UserError&) {
    return std::nullopt;
  }
  const auto* record = reinterpret_cast<const HeartbeatRecord*>(bytes);
  if (record->magic != HeartbeatRecord::kMagic || record->rank != rank) return std::nullopt;
  if (static_cast<uint32_t>(record->activity.load()) > static_cast<uint32_t>(Activity::kEndingJob)) return std::nullopt;
  return Read(*record);
}

}  // namespace espalier
