#include "espalier/util/write_whole.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

[[noreturn]] void Fail(const std::string& path) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
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

bool KeepPermissions(int file, const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || ::fchmod(file, status.st_mode & 07777) == 0;
}

/// ".NAME.espalier" in the same folder.
std::string TemporaryOf(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // 0 if there is no folder
  return path.substr(0, name) + "." + path.substr(name) + ".espalier";
}

}  // namespace

void WriteWhole(const std::string& path, std::string_view text) {
  const std::string temporary = TemporaryOf(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (file < 0) Fail(temporary);
  const bool done =
      WriteAll(file, text) && KeepPermissions(file, path) && ::rename(temporary.c_str(), path.c_str()) == 0;
  const int cause = errno;
  ::close(file);
  if (done) return;
  ::unlink(temporary.c_str());
  errno = cause;
  Fail(path);
}

}  // namespace espalier
