#include "espalier/checkpoint/run_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

std::string Holder() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S", ::gmtime_r(&now, &utc));
  return fmt::format("host {}, process {}, since {} UTC", HostName(), ::getpid(), since.data());
}

/// The one line of the file, without control characters.
std::string ReadHolder(int file) {
  std::array<char, 400> bytes{};
  const ssize_t n = ::pread(file, bytes.data(), bytes.size(), 0);
  std::string text(bytes.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  text = text.substr(0, text.find('\n'));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::string PathOf(const std::string& dir, LockOf of) { return dir + "/" + of.file; }

/// True if `path` still names the open file, or if that cannot be determined.
bool IsAt(const std::string& path, int file) {
  struct stat open {
  }, there{};
  if (::fstat(file, &open) != 0) return true;
  if (::lstat(path.c_str(), &there) != 0) return errno != ENOENT;
  return open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

/// Only informative: a lock without its text still locks.
void WriteHolder(int file, const std::string& text) {
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, text.data(), text.size(), 0) < 0) return;
}

}  // namespace

bool RunLock::Take() {
  const std::string path = PathOf(dir_, of_);
  while (true) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0)
      throw UserError(ExitStatus::kFault,
                      fmt::format("run.dir = {}: cannot write there: {}: {}", dir_, of_.file, std::strerror(errno)));
    if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      const int cause = errno;
      if (cause == EWOULDBLOCK) {
        left_by_ = ReadHolder(file);
        ::close(file);
        return false;
      }
      spdlog::warn("{}: this file system gives no lock ({}): nothing keeps a second {} out of the directory", path,
                   std::strerror(cause), of_.who);
    }
    if (!IsAt(path, file)) {  // it was removed in between, so this lock protects nothing
      ::close(file);
      continue;
    }
    if (file_ >= 0) ::close(file_);
    file_ = file;
    return true;
  }
}

RunLock::RunLock(const std::string& dir, LockOf of) : dir_(dir), of_(of) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error)
    throw UserError(ExitStatus::kFault, fmt::format("run.dir = {}: cannot be created: {}", dir, error.message()));
  if (!Take())
    throw UserError(ExitStatus::kFault,
                    fmt::format("{}: another {} is in this directory ({}): end it, or give this run another run.dir",
                                dir, of.who, left_by_.empty() ? "it is only starting" : left_by_));
  left_by_ = ReadHolder(file_);
  WriteHolder(file_, Holder() + "\n");
}

std::string RunLock::WhyLost() {
  if (file_ < 0 || IsAt(PathOf(dir_, of_), file_)) return "";
  if (!Take())
    return fmt::format(
        "{}: run.lock was removed, and another run has taken the directory ({}): this one ends, and saves nothing more",
        dir_, left_by_.empty() ? "it is only starting" : left_by_);
  spdlog::warn("{}: run.lock was removed; it is there again", dir_);
  WriteHolder(file_, Holder() + "\n");
  return "";
}

std::optional<std::string> RunLock::HeldBy(const std::string& dir) {
  const int file = ::open(PathOf(dir, kLockOfRun).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  const bool held = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  std::optional<std::string> holder;
  if (held) holder = ReadHolder(file);
  ::close(file);
  return holder;
}

void RunLock::TakeAway(const std::string& dir) { ::unlink(PathOf(dir, kLockOfRun).c_str()); }

RunLock::~RunLock() {
  if (file_ < 0) return;
  WriteHolder(file_, "");
  ::close(file_);
}

RunLock::RunLock(RunLock&& other) noexcept
    : dir_(std::move(other.dir_)),
      of_(other.of_),
      file_(std::exchange(other.file_, -1)),
      left_by_(std::move(other.left_by_)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(dir_, other.dir_);
  std::swap(of_, other.of_);
  std::swap(file_, other.file_);
  std::swap(left_by_, other.left_by_);
  return *this;
}

}  // namespace espalier
