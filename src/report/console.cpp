#include "report/console.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPatienceMs = 500;  // limit of the wait for a slow reader
constexpr int kTickMs = 10;

/// Opens a terminal or pipe again, since other processes share the flags of the first descriptor. -1 for anything else.
int OpenWithoutBlocking(std::FILE* file) {
  struct stat status {};
  if (file == nullptr || fstat(fileno(file), &status) != 0) return -1;
  if (!S_ISFIFO(status.st_mode) && isatty(fileno(file)) == 0) return -1;
  const std::string path = fmt::format("/proc/self/fd/{}", fileno(file));
  return open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

Console::Console(std::FILE* file)
    : file_(file),
      descriptor_(OpenWithoutBlocking(file)),
      terminal_(descriptor_ < 0 ? std::nullopt : Terminal::Of(fileno(file))) {}

Console::~Console() {
  pending_ += Erasure();
  if (descriptor_ < 0) return;
  WritePending(0);
  close(descriptor_);
}

std::string Console::Erasure() {
  const size_t length = std::exchange(shown_, 0);
  return length == 0 ? "" : "\r" + std::string(length, ' ') + "\r";
}

// The cursor is left at the beginning, so that output of others, such as the launcher, overwrites the line.
void Console::Show(const std::string& line) {
  if (line.empty() && shown_ == 0) return;
  if (!terminal_ || (!pending_.empty() && !WritePending(0))) return;
  const std::string text = line.substr(0, static_cast<size_t>(std::max(0, terminal_->Width() - 1)));
  const size_t longer = shown_ > text.size() ? shown_ - text.size() : 0;
  pending_ = "\r" + text + std::string(longer, ' ') + "\r";
  shown_ = text.size();
  WritePending(0);
}

std::string Console::Print(const std::string& line) {
  if (file_ == nullptr) return "";
  errno = 0;
  if (descriptor_ < 0) return WriteToFile(line) ? (lost_ = false, "") : Lose();
  if (!pending_.empty() && !WritePending(0)) return ++dropped_, Lose();
  if (dropped_ > 0) pending_ = fmt::format("... {} lines left out: nobody read them\n", dropped_);
  pending_ += Erasure() + line;
  if (!WritePending(kPatienceMs)) return Lose();
  dropped_ = 0;
  lost_ = false;
  return "";
}

bool Console::WritePending(int wait_ms) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(wait_ms);
  while (!pending_.empty()) {
    const ssize_t written = write(descriptor_, pending_.data(), pending_.size());
    if (written > 0) {
      pending_.erase(0, static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      if (Clock::now() >= end) return false;
      pollfd room{descriptor_, POLLOUT, 0};
      poll(&room, 1, kTickMs);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Console::WriteToFile(const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  const bool whole = std::fflush(file_) == 0 && written && std::ferror(file_) == 0;
  std::clearerr(file_);
  return whole;
}

std::string Console::Lose() {
  if (std::exchange(lost_, true)) return "";
  if (errno == EAGAIN) return "nobody reads it";
  return errno == 0 ? "cannot write" : std::strerror(errno);
}

}  // namespace espalier
