#include "espalier/watch/heartbeat.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kRecordBytes = sizeof(HeartbeatRecord);

[[noreturn]] void Refuse(const std::string& path) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

/// "node-" and five digits or more, as PathOf writes them.
bool IsOurs(const std::string& name) {
  constexpr std::string_view kPrefix = "node-";
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

/// Nothing if there is no such file, or another kind of it.
std::optional<InputFile> OpenFile(const std::string& path) {
  try {
    return InputFile(path, {.what = "heartbeat", .symlinks = Symlinks::kRefuse});
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<Heartbeat> ReadRecord(const InputFile& file, int64_t offset, int rank) {
  alignas(HeartbeatRecord) std::byte bytes[kRecordBytes];
  if (file.ReadSome(offset, bytes, kRecordBytes) != kRecordBytes) return std::nullopt;
  const auto* record = reinterpret_cast<const HeartbeatRecord*>(bytes);
  if (record->magic != HeartbeatRecord::kMagic || record->rank != rank) return std::nullopt;
  if (static_cast<uint32_t>(record->activity.load()) > static_cast<uint32_t>(Activity::kEndingJob)) return std::nullopt;
  return Read(*record);
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

HeartbeatTable::HeartbeatTable(std::string folder, std::vector<int> leaders)
    : folder_(std::move(folder)), leaders_(std::move(leaders)) {
  std::map<int, int> ranks_of;
  for (int leader : leaders_) places_.push_back(ranks_of[leader]++);
}

std::vector<int> HeartbeatTable::NodeOf(int rank) const {
  std::vector<int> node;
  for (int other = 0; other < Ranks(); ++other)
    if (LeaderOf(other) == LeaderOf(rank)) node.push_back(other);
  return node;
}

std::string HeartbeatTable::PathOf(int rank) const { return fmt::format("{}/node-{:05}", folder_, LeaderOf(rank)); }

int64_t HeartbeatTable::OffsetOf(int rank) const { return kRecordBytes * places_.at(static_cast<size_t>(rank)); }

/// Never opens an existing file or follows a link. Blocks are allocated now, so that a full disk does not silence the
/// heartbeats later.
void HeartbeatTable::MakeFile(int rank) const {
  const std::string path = PathOf(rank);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file < 0) Refuse(path);
  errno = posix_fallocate(file, 0, kRecordBytes * std::ssize(NodeOf(rank)));
  const int reason = errno;
  close(file);
  if (reason == 0) return;
  unlink(path.c_str());
  errno = reason;
  Refuse(path);
}

std::optional<Heartbeat> HeartbeatTable::Read(int rank) const {
  const std::optional<InputFile> file = OpenFile(PathOf(rank));
  return file ? ReadRecord(*file, OffsetOf(rank), rank) : std::nullopt;
}

std::vector<std::optional<Heartbeat>> HeartbeatTable::Read(const std::vector<int>& ranks) const {
  std::map<int, std::optional<InputFile>> files;  // by leader
  std::vector<std::optional<Heartbeat>> heartbeats;
  for (int rank : ranks) {
    if (!files.contains(LeaderOf(rank))) files.emplace(LeaderOf(rank), OpenFile(PathOf(rank)));
    const std::optional<InputFile>& file = files.at(LeaderOf(rank));
    heartbeats.push_back(file ? ReadRecord(*file, OffsetOf(rank), rank) : std::nullopt);
  }
  return heartbeats;
}

std::vector<std::optional<Heartbeat>> HeartbeatTable::ReadAll() const {
  std::vector<int> all(leaders_.size());
  std::iota(all.begin(), all.end(), 0);
  return Read(all);
}

HeartbeatFile::HeartbeatFile(const HeartbeatTable& table, int rank)
    : table_(table), path_(table.PathOf(rank)), offset_(table.OffsetOf(rank)) {
  record_.rank = rank;
  record_.process = getpid();
  HostName().copy(record_.host, sizeof(record_.host) - 1);
  record_.process_table = ProcessTable();
  file_ = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file_ < 0 || !Publish()) Refuse(path_);
}

HeartbeatFile::~HeartbeatFile() {
  Remove();
  close(file_);
}

void HeartbeatFile::Remove() {
  const std::array<std::byte, sizeof(HeartbeatRecord)> nothing{};
  Write(nothing.data());
  struct stat mine {};
  struct stat there {};
  const bool ours = fstat(file_, &mine) == 0 && lstat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino;
  if (ours && IsLast()) unlink(path_.c_str());
}

bool HeartbeatFile::Write(const void* record) {
  return pwrite(file_, record, sizeof(HeartbeatRecord), offset_) == static_cast<ssize_t>(sizeof(HeartbeatRecord));
}

bool HeartbeatFile::IsLast() const {
  return std::ranges::none_of(table_.Read(table_.NodeOf(record_.rank)), &std::optional<Heartbeat>::has_value);
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
  return Write(&copy);
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

}  // namespace espalier
