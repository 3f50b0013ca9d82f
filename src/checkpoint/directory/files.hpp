// Plain files in one open directory. Names are base names, symbolic links are not followed, and every failure is a
// UserError (kData) with path and cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace espalier {

/// Bytes that are read or written and then checked in one go: they stay in the core's cache in between. A multiple of
/// the block size of Crc32c (48 KiB) and of a page.
constexpr int64_t kChunkBytes = 480 << 10;

/// Owns a file descriptor.
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

enum class Access : uint8_t { kRead, kWrite };

/// The bytes of a file as memory, as long as it exists. Writes reach the file.
class Mapping {
 public:
  Mapping(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

class File {
 public:
  File() = default;
  File(std::string path, Descriptor descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  const std::string& path() const { return path_; }
  int64_t Bytes() const;
  /// Reads exactly `bytes` from `offset`; fewer are an error.
  void Read(void* data, int64_t bytes, int64_t offset) const;
  /// Starts reading bytes ahead, if the system can.
  void BeginRead(int64_t offset, int64_t bytes) const;
  void Write(const void* data, int64_t bytes, int64_t offset) const;
  /// Allocates the first `bytes` on disk, if the file system can, so that a full disk is detected before the work.
  void Reserve(int64_t bytes) const;
  /// Starts writing these bytes to disk, if the system can, so that Sync waits less.
  void BeginSync(int64_t offset, int64_t bytes) const;
  /// Waits until everything is on disk.
  void Sync() const;
  /// The whole file, which must not be empty.
  Mapping Map(Access access) const;

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
  /// A new file, for reading and writing; an existing one is an error.
  File Create(const std::string& name) const;
  /// The whole text file; refuses more than `max` bytes.
  std::string ReadText(const std::string& name, int64_t max) const;
  /// The first bytes of a file, at most `max`.
  std::string ReadStart(const std::string& name, int64_t max) const;
  /// Creates a new file and syncs it; an existing one is an error.
  void WriteText(const std::string& name, const std::string& text) const;
  bool Has(const std::string& name) const;
  /// A regular file, no link.
  bool HasFile(const std::string& name) const;
  /// A directory, no link.
  bool HasDirectory(const std::string& name) const;
  void Rename(const std::string& from, const std::string& to) const;
  /// Exchanges two entries atomically; false if the file system cannot.
  bool Exchange(const std::string& a, const std::string& b) const;
  /// Warns once if the file system cannot sync directories.
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
