// Plain files under one open directory. Names are base names, symbolic links are not followed, and every failure is a
// UserError (kData) with path and cause.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace espalier {

/// What is read or written, and checked, at once: it stays in a core's own cache between the two, and is a multiple of
/// what Crc32c is fastest on (48 KiB) and of a page.
constexpr int64_t kChunkBytes = 480 << 10;

/// An open file descriptor, closed at the end of its life.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor();
  int value() const { return value_; }

 private:
  int value_;
};

class File {
 public:
  File() = default;
  File(std::string path, Descriptor descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  const std::string& path() const { return path_; }
  int64_t Bytes() const;
  /// Exactly `bytes` from `offset`; fewer are an error.
  void Read(void* data, int64_t bytes, int64_t offset) const;
  /// Sets the disk to work on bytes that will be read soon, where the system can.
  void BeginRead(int64_t offset, int64_t bytes) const;
  void Write(const void* data, int64_t bytes, int64_t offset) const;
  /// Takes room for the first `bytes` on the disk now, where the file system can, so that a full disk shows before the
  /// work.
  void Reserve(int64_t bytes) const;
  /// Sets the disk to work on these bytes, where the system can; Sync has less to wait for then.
  void BeginSync(int64_t offset, int64_t bytes) const;
  /// Returns when everything is on the disk.
  void Sync() const;

 private:
  [[noreturn]] void Fail(const char* what) const;

  std::string path_;
  Descriptor descriptor_;
};

class Directory {
 public:
  explicit Directory(std::string path);

  const std::string& path() const { return path_; }
  /// An existing regular file, for reading.
  File Open(const std::string& name) const;
  /// An existing regular file, for reading and writing.
  File OpenToWrite(const std::string& name) const;
  /// The whole of a text file; refuses more than `most` bytes.
  std::string ReadText(const std::string& name, int64_t most) const;
  /// The first bytes of a file, at most `most`.
  std::string ReadStart(const std::string& name, int64_t most) const;
  /// Makes a new file, synced; an existing one is an error.
  void WriteText(const std::string& name, const std::string& text) const;
  bool Has(const std::string& name) const;
  /// Neither a directory nor a link nor anything else.
  bool HasFile(const std::string& name) const;
  /// A directory, and no link to one.
  bool HasDirectory(const std::string& name) const;
  void Rename(const std::string& from, const std::string& to) const;
  /// Swaps two entries in one step; false if the file system cannot.
  bool Exchange(const std::string& a, const std::string& b) const;
  /// On file systems that cannot bring a directory to the disk this warns, once.
  void Sync() const;

 private:
  bool HasKind(const std::string& name, unsigned kind) const;
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  File OpenAs(const std::string& name, int flags) const;
  [[noreturn]] void Fail(const std::string& name, const char* what) const;

  std::string path_;
  Descriptor descriptor_;
};

}  // namespace espalier
