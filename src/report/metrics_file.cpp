#include "report/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The end of the last complete line in the first `end` bytes, searched backwards in blocks.
off_t EndOfLines(int file, off_t end) {
  std::array<char, 1 << 16> block;
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - std::ssize(block));
    if (pread(file, block.data(), static_cast<size_t>(end - begin), begin) != end - begin) return end;
    const std::string_view text(block.data(), static_cast<size_t>(end - begin));
    if (const size_t last = text.rfind('\n'); last != text.npos) return begin + static_cast<off_t>(last) + 1;
    end = begin;
  }
  return 0;
}

/// A regular file: not a link, which may lead to someone else's file, nor a pipe, which could block the run.
bool IsPlainFile(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

int Open(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (file < 0 && errno == ELOOP)
    throw UserError(
        ExitStatus::kFault,
        fmt::format("{}: is a link, which a run does not follow: remove it, or set run.dir to where it leads", path));
  if (file < 0) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
  if (IsPlainFile(file)) return file;
  close(file);
  throw UserError(ExitStatus::kFault,
                  fmt::format("{}: is not a regular file: remove it, or use another run.dir", path));
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(Open(path)) { RemoveTornLine(); }

MetricsFile::~MetricsFile() { close(file_); }

void MetricsFile::RemoveTornLine() {
  struct stat status {};
  if (fstat(file_, &status) != 0) return;
  const off_t end = EndOfLines(file_, status.st_size);
  if (end == status.st_size) return;
  note_ = ftruncate(file_, end) == 0
              ? fmt::format("{}: the last line was torn: its {} bytes are removed", path_, status.st_size - end)
              : fmt::format("{}: the last line is torn and stays: {}", path_, std::strerror(errno));
}

std::string MetricsFile::Write(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(file_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string why = fmt::format("{}: cannot write: {}; lines will be missing", path_, std::strerror(errno));
      const std::string stays = TakeBack(done);
      return std::exchange(failed_, true) ? "" : why + stays;
    }
    done += static_cast<size_t>(written);
  }
  return "";
}

std::string MetricsFile::TakeBack(size_t bytes) const {
  struct stat status {};
  if (bytes == 0 || fstat(file_, &status) != 0) return "";
  if (ftruncate(file_, status.st_size - static_cast<off_t>(bytes)) == 0) return "";
  return fmt::format("; a torn line stays: {}", std::strerror(errno));
}

}  // namespace espalier
