#include "espalier/watch/heartbeat.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

std::string PathOf(const std::string& folder, int rank) { return fmt::format("{}/rank-{:05}", folder, rank); }

[[noreturn]] void Refuse(const std::string& path) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

void* MapFile(const std::string& path, size_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file < 0) Refuse(path);
  // Real blocks: a store into a hole of a full disk would be a SIGBUS.
  errno = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* memory = errno == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int reason = errno;
  close(file);
  errno = reason;
  if (memory == MAP_FAILED) Refuse(path);
  return memory;
}

/// 0 where the system does not say.
uint64_t ProcessTable() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

void Copy(const Progress& progress, std::array<int, kLaneCount>& done) {
  for (size_t lane = 0; lane < kLaneCount; ++lane) done[lane] = progress.done[lane].load(std::memory_order_relaxed);
}

}  // namespace

std::string_view Name(Activity activity) {
  constexpr std::array<std::string_view, 7> kNames = {"starting", "in a step", "between steps", "saving", "evaluating", "at the end", "ending the job"};
  return kNames.at(static_cast<size_t>(activity));
}

std::string HeartbeatFolder(const std::string& run_dir) { return run_dir + "/heartbeat"; }

HeartbeatFile::HeartbeatFile(const std::string& folder, int rank) : path_(PathOf(folder, rank)) {
  record_ = new (MapFile(path_, sizeof(HeartbeatRecord))) HeartbeatRecord;
  record_->rank = rank;
  record_->process = getpid();
  HostName().copy(record_->host, sizeof(record_->host) - 1);
  record_->process_table = ProcessTable();
}

HeartbeatFile::~HeartbeatFile() {
  Remove();
  munmap(record_, sizeof(HeartbeatRecord));
}

void HeartbeatFile::Remove() { unlink(path_.c_str()); }

void HeartbeatFile::Publish() { msync(record_, sizeof(HeartbeatRecord), MS_SYNC); }

Heartbeat Read(const HeartbeatRecord& record) {
  Heartbeat heartbeat;
  heartbeat.rank = record.rank;
  heartbeat.process = record.process;
  heartbeat.host.assign(record.host, strnlen(record.host, sizeof(record.host)));
  heartbeat.process_table = record.process_table;
  heartbeat.step = record.step.load(std::memory_order_relaxed);
  heartbeat.activity = record.activity.load(std::memory_order_relaxed);
  heartbeat.runs = record.training.runs.load(std::memory_order_relaxed) + record.forward.runs.load(std::memory_order_relaxed);
  heartbeat.alive = record.training.alive.load(std::memory_order_relaxed);
  Copy(record.training, heartbeat.done);
  Copy(record.forward, heartbeat.forward);
  return heartbeat;
}

std::optional<Heartbeat> ReadHeartbeat(const std::string& folder, int rank) {
  const int file = open(PathOf(folder, rank).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  alignas(HeartbeatRecord) std::byte bytes[sizeof(HeartbeatRecord)];
  const ssize_t got = pread(file, bytes, sizeof(bytes), 0);
  close(file);
  const auto* record = reinterpret_cast<const HeartbeatRecord*>(bytes);
  if (got != static_cast<ssize_t>(sizeof(bytes)) || record->magic != HeartbeatRecord::kMagic || record->rank != rank) return std::nullopt;
  if (static_cast<uint32_t>(record->activity.load()) > static_cast<uint32_t>(Activity::kEndingJob)) return std::nullopt;
  return Read(*record);
}

}  // namespace espalier
