#include "espalier/util/input_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kBlock = int64_t{1} << 16, kLineBlock = int64_t{1} << 20;

[[noreturn]] void Refuse(const std::string& path, const std::string& why, std::string_view remedy = {}) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}{}{}", path, why, remedy.empty() ? "" : "; ", remedy));
}

std::string WhyNotOpened(int error) {
  if (error == ENOENT) return "no such file";
  if (error == ELOOP) return "is a symbolic link, which is not followed here";
  if (error == ENXIO) return "is not a file but a socket, or a device that is not there";
  return fmt::format("cannot be opened: {}", std::strerror(error));
}

/// "" for a regular file.
std::string WhyNotFile(mode_t mode, const FileKind& kind) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return fmt::format("is a folder, not a {}", kind.what);
  const char* is = S_ISFIFO(mode) ? "pipe" : S_ISSOCK(mode) ? "socket" : "device";
  return fmt::format("is not a file but a {}", is);
}

std::string TooLarge(int64_t bytes, const FileKind& kind) {
  return fmt::format("has {} bytes, and a {} has at most {}", bytes, kind.what, kind.most_bytes);
}

}  // namespace

InputFile::InputFile(std::string path, const FileKind& kind) : path_(std::move(path)) {
  const int links = kind.symlinks == Symlinks::kRefuse ? O_NOFOLLOW : 0;
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | links);
  if (fd_ < 0) Refuse(path_, WhyNotOpened(errno), kind.remedy);
  struct stat status {};
  std::string why = fstat(fd_, &status) == 0 ? WhyNotFile(status.st_mode, kind) : WhyNotOpened(errno);
  bytes_ = status.st_size;
  if (why.empty() && bytes_ > kind.most_bytes) why = TooLarge(bytes_, kind);
  if (why.empty()) return;
  close(fd_);
  Refuse(path_, why, kind.remedy);
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

int64_t InputFile::ReadSome(int64_t offset, void* out, int64_t bytes) const {
  auto* at = static_cast<char*>(out);
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd_, at + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Refuse(path_, fmt::format("cannot read at byte {}: {}", offset + done, std::strerror(errno)));
    if (got == 0) break;
    done += got;
  }
  return done;
}

void InputFile::ReadAt(int64_t offset, void* out, int64_t bytes) const {
  const int64_t done = ReadSome(offset, out, bytes);
  if (done < bytes)
    Refuse(path_, fmt::format("ends at byte {}; it had {} bytes when it was opened", offset + done, bytes_));
}

std::string ReadFile(const std::string& path, const FileKind& kind) {
  const InputFile file(path, kind);
  std::string text;
  while (true) {
    const int64_t have = std::ssize(text);
    // One byte more than expected shows if the file has grown.
    const int64_t more = std::min(std::max(file.bytes() - have, kBlock), kind.most_bytes - have) + 1;
    text.resize(static_cast<size_t>(have + more));
    const int64_t got = file.ReadSome(have, text.data() + have, more);
    text.resize(static_cast<size_t>(have + got));
    if (have + got > kind.most_bytes) Refuse(path, TooLarge(have + got, kind), kind.remedy);
    if (got < more) return text;
  }
}

std::string ReadSystemFile(const std::string& path) {
  try {
    return ReadFile(path, {"file of the system", int64_t{16} << 20});
  } catch (const UserError&) {
    return "";
  }
}

/// Reads the next block behind what is left of the last one; false at the end of the file.
bool InputLines::Fill() {
  block_.erase(0, std::exchange(begin_, 0));
  const int64_t more = std::min(kLineBlock, file_.bytes() - offset_);
  if (more <= 0) return false;
  const size_t have = block_.size();
  block_.resize(have + static_cast<size_t>(more));
  file_.ReadAt(offset_, block_.data() + have, more);
  offset_ += more;
  return true;
}

bool InputLines::Next(Line& line) {
  line = {};
  while (true) {
    const size_t end = block_.find('\n', begin_);
    const size_t bytes = std::min(end, block_.size()) - begin_;
    line.too_long |= static_cast<int64_t>(bytes) > most_;
    line.complete = end != block_.npos;
    if (line.complete) {
      if (!line.too_long) line.text = std::string_view(block_).substr(begin_, bytes);
      begin_ = end + 1;
      return true;
    }
    if (line.too_long) begin_ = block_.size();  // forget what is too long
    if (Fill()) continue;
    const bool some = line.too_long || !block_.empty();
    line.text = block_;
    begin_ = block_.size();
    return some;
  }
}

}  // namespace espalier
