#include "data/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

[[noreturn]] void Refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, what));
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Non-blocking, so that a pipe is refused below instead of waited for.
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) Refuse(path_, fmt::format("cannot read: {}", std::strerror(errno)));
  struct stat status {};
  const bool known = fstat(fd_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const bool folder = known && S_ISDIR(status.st_mode);
    close(fd_);
    Refuse(path_, folder ? fmt::format("is a directory; its files are \"{}/**/*\"", path_) : "is not a regular file");
  }
  bytes_ = status.st_size;
}

InputFile::~InputFile() { close(fd_); }

void InputFile::ReadAt(int64_t offset, void* out, int64_t bytes) const {
  auto* at = static_cast<char*>(out);
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd_, at + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Refuse(path_, fmt::format("cannot read at byte {}: {}", offset + done, std::strerror(errno)));
    if (got == 0)
      Refuse(path_, fmt::format("ends at byte {}; it had {} bytes when it was opened", offset + done, bytes_));
    done += got;
  }
}

}  // namespace espalier
