#include "train/run_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// The first line of every deck.toml that a run wrote. Only such a file is overwritten.
constexpr std::string_view kOurs = "# effective deck of a run; written by espalier\n";

[[noreturn]] void Fail(const fs::path& path, const char* what) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(file) == 0;
}

/// True if `path` is a regular file, not a link, and begins with our line.
bool IsOurs(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  struct stat status {};
  std::array<char, kOurs.size()> line{};
  const bool ours = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                    ::pread(file, line.data(), line.size(), 0) == std::ssize(line) &&
                    std::string_view(line.data(), line.size()) == kOurs;
  ::close(file);
  return ours;
}

}  // namespace

void WriteWhole(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.parent_path() / ("." + path.filename().string() + ".espalier");
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (file < 0) Fail(temporary, "cannot write");
  const bool done = WriteAll(file, text) && ::rename(temporary.c_str(), path.c_str()) == 0;
  const int cause = errno;
  ::close(file);
  if (done) return;
  ::unlink(temporary.c_str());
  errno = cause;
  Fail(path, "cannot write");
}

void RemoveFile(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) Fail(path, "cannot remove");
}

std::string WriteEffectiveDeck(const fs::path& dir, const std::string& text, const fs::path& given) {
  const fs::path path = dir / "deck.toml";
  std::error_code error;
  if (fs::equivalent(path, given, error)) return "this run was started with it";
  if (fs::exists(fs::symlink_status(path, error)) && !IsOurs(path))
    return "its first line is not a run's (remove it to have the effective deck there)";
  WriteWhole(path, std::string(kOurs) + text);
  return "";
}

}  // namespace espalier
