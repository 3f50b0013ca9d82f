// Opens files for reading. No other source opens a file to read it (tests/readers.py). Opening never waits, not even
// for the writer of a pipe, so that a signal can always end the program; and every size has a limit.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace espalier {

/// Whether a symbolic link as the last name of a path is followed.
enum class Symlinks : uint8_t { kFollow, kRefuse };

/// Limits and name of a kind of file.
struct FileKind {
  std::string_view what = "file";  ///< for messages: "tokenizer"
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
  std::string_view remedy = {};  ///< for messages, after the reason
  Symlinks symlinks = Symlinks::kFollow;
};

/// A regular file, open for reading. Not memory-mapped: a file that is truncated while it is in use then gives an error
/// with its position instead of a signal.
class InputFile {
 public:
  /// Throws UserError (kData) with path and reason: the file cannot be opened, is larger than its kind allows, or is a
  /// folder, a pipe, a socket or a device.
  explicit InputFile(std::string path, const FileKind& kind = {});
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  /// The size when it was opened; 0 for files of /proc.
  int64_t bytes() const { return bytes_; }
  /// Reads exactly `bytes` from `offset`. Throws UserError (kData) if it cannot.
  void ReadAt(int64_t offset, void* out, int64_t bytes) const;
  /// The same up to the end of the file; returns how many bytes were read.
  int64_t ReadSome(int64_t offset, void* out, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

/// Reads the whole file. Throws as InputFile does, also if the file has more bytes than its size.
std::string ReadFile(const std::string& path, const FileKind& kind);

/// A file of /proc or /sys; "" if it cannot be read.
std::string ReadSystemFile(const std::string& path);

/// The lines of a file, read in blocks.
class InputLines {
 public:
  /// Throws as InputFile.
  InputLines(const std::string& path, const FileKind& kind, int64_t most_line_bytes)
      : file_(path, kind), most_(most_line_bytes) {}

  struct Line {
    std::string_view text;  ///< without its newline, until the next call; empty if the line is too long
    bool complete = false;  ///< the line ends with a newline
    bool too_long = false;
  };
  /// Sets the next line; false at the end of the file, as it was when it was opened. Throws as InputFile::ReadAt.
  bool Next(Line& line);

 private:
  bool Fill();

  InputFile file_;
  const int64_t most_;
  int64_t offset_ = 0;  ///< offset of the next read
  std::string block_;   ///< bytes from `begin_` on have not been returned yet
  size_t begin_ = 0;
};

}  // namespace espalier
