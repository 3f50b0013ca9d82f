#include "text_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "text.hpp"

namespace espalier {
namespace {

struct FileDescriptor {
  explicit FileDescriptor(int n) : number(n) {}
  FileDescriptor(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (number >= 0) ::close(number);
  }
  const int number;  ///< < 0: none
};

/// At most so many bytes; nothing if they cannot be read.
std::optional<std::string> ReadBytes(int file, size_t most) {
  std::string text(most, '\0');
  size_t size = 0;
  for (ssize_t got = 1; got != 0 && size < most;) {
    got = ::read(file, &text[size], most - size);
    if (got < 0 && errno != EINTR) return std::nullopt;
    size += static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
  text.resize(size);
  return text;
}

}  // namespace

std::string TextLimit(const SettingsFormat& format) {
  return fmt::format("{} MiB: not a {}", format.max_bytes >> 20, format.what);
}

std::optional<std::string> ReadTextFile(const std::string& path, const SettingsFormat& format, std::string& why) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // a FIFO would be waited for
  if (file.number < 0) return why = errno == ENOENT ? "no such file" : "cannot be opened", std::nullopt;
  struct stat status {};
  ::fstat(file.number, &status);
  if (S_ISDIR(status.st_mode)) return why = fmt::format("is a folder, not a {}", format.what), std::nullopt;
  if (!S_ISREG(status.st_mode))
    return why = fmt::format("is not a file: every rank reads the {} for itself", format.what), std::nullopt;
  std::optional<std::string> text = ReadBytes(file.number, static_cast<size_t>(format.max_bytes) + 1);
  if (!text) return why = "cannot be read", std::nullopt;
  if (text->size() > static_cast<size_t>(format.max_bytes))
    return why = "is larger than " + TextLimit(format), std::nullopt;
  return text;
}

bool CheckText(std::string_view text, const std::string& label, std::string_view what, Errors& errors) {
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char32_t c = DecodeUtf8(text, i);
    const bool control = (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7f;
    if (c == kNotUtf8 || control) {
      errors.push_back(fmt::format("{}:{}: byte 0x{:02x} {}: {}s are UTF-8 text", label, line, byte,
                                   control ? "is a control character" : "begins no UTF-8 character", what));
      return false;
    }
    line += c == '\n';
  }
  return true;
}

}  // namespace espalier
