// A file read at offsets.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

/// A regular file, open for reading. Not memory-mapped: a file that is truncated while it is in use then gives an error
/// with its position instead of a signal.
class InputFile {
 public:
  /// Throws UserError (kData) with path and reason.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  /// Reads exactly `bytes` from `offset`. Throws UserError (kData) if it cannot.
  void ReadAt(int64_t offset, void* out, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

}  // namespace espalier
