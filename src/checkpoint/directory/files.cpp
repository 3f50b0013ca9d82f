#include "checkpoint/directory/files.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

[[noreturn]] void FailAt(const std::string& path, const char* what) {
  const int cause = errno;
  throw UserError(ExitStatus::kData, fmt::format("{}: {}: {}", path, what, std::strerror(cause)));
}

/// Repeats a call that a signal interrupted.
template <typename Call>
int Uninterrupted(Call call) {
  while (true) {
    const int result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// Calls pread or pwrite until `bytes` are done; false at the end of the file.
template <typename Call>
bool Repeat(Call call, int64_t bytes, const std::string& path, const char* what) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = call(done, static_cast<size_t>(bytes - done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailAt(path, what);
    if (n == 0) return false;
    done += n;
  }
  return true;
}

}  // namespace

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

void File::Fail(const char* what) const { FailAt(path_, what); }

int64_t File::Bytes() const {
  struct stat status {};
  if (::fstat(descriptor_.value(), &status) != 0) Fail("cannot look at it");
  return status.st_size;
}

void File::Read(void* data, int64_t bytes, int64_t offset) const {
  auto* out = static_cast<char*>(data);
  const auto call = [&](int64_t done, size_t n) { return ::pread(descriptor_.value(), out + done, n, offset + done); };
  if (!Repeat(call, bytes, path_, "cannot read"))
    throw UserError(ExitStatus::kData, fmt::format("{}: ends before byte {}", path_, offset + bytes));
}

void File::BeginRead(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(descriptor_.value(), offset, bytes, POSIX_FADV_WILLNEED);  // a hint
}

void File::Write(const void* data, int64_t bytes, int64_t offset) const {
  const auto* in = static_cast<const char*>(data);
  const auto call = [&](int64_t done, size_t n) { return ::pwrite(descriptor_.value(), in + done, n, offset + done); };
  if (!Repeat(call, bytes, path_, "cannot write"))
    throw UserError(ExitStatus::kData, fmt::format("{}: cannot write: no byte was taken", path_));
}

void File::Reserve(int64_t bytes) const {
  const auto reserve = [&] { return ::fallocate(descriptor_.value(), 0, 0, bytes); };
  if (bytes > 0 && Uninterrupted(reserve) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    Fail("cannot take room on the disk");
}

void File::BeginSync(int64_t offset, int64_t bytes) const {
  ::sync_file_range(descriptor_.value(), offset, bytes,
                    SYNC_FILE_RANGE_WRITE);  // a hint: Sync does the rest, and reports errors
}

void File::Sync() const {
  if (Uninterrupted([&] { return ::fsync(descriptor_.value()); }) != 0) Fail("cannot bring it to the disk (fsync)");
}

Mapping File::Map(Access access) const {
  const int64_t bytes = Bytes();
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, descriptor_.value(), 0);
  if (data == MAP_FAILED) Fail("cannot map it");
  return {static_cast<std::byte*>(data), bytes};
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

Directory::Directory(std::string path) : path_(std::move(path)) {
  descriptor_ = Descriptor(Uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (descriptor_.value() < 0) FailAt(path_, "cannot open the directory");
}

void Directory::Fail(const std::string& name, const char* what) const { FailAt(PathOf(name), what); }

File Directory::OpenAs(const std::string& name, int flags) const {
  // O_NONBLOCK: a pipe with that name must not block.
  const auto open = [&] {
    return ::openat(descriptor_.value(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  };
  const int fd = Uninterrupted(open);
  if (fd < 0) Fail(name, "cannot open");
  Descriptor descriptor(fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) Fail(name, "cannot look at it");
  if (!S_ISREG(status.st_mode)) throw UserError(ExitStatus::kData, fmt::format("{}: not a regular file", PathOf(name)));
  return {PathOf(name), std::move(descriptor)};
}

File Directory::Open(const std::string& name) const { return OpenAs(name, O_RDONLY); }

File Directory::OpenToWrite(const std::string& name) const { return OpenAs(name, O_RDWR); }

std::string Directory::ReadText(const std::string& name, int64_t max) const {
  const File file = Open(name);
  const int64_t bytes = file.Bytes();
  if (bytes > max)
    throw UserError(ExitStatus::kData, fmt::format("{}: {} bytes, at most {} are allowed", PathOf(name), bytes, max));
  std::string text(static_cast<size_t>(bytes), '\0');
  file.Read(text.data(), bytes, 0);
  return text;
}

std::string Directory::ReadStart(const std::string& name, int64_t max) const {
  const File file = Open(name);
  std::string text(static_cast<size_t>(std::min(file.Bytes(), max)), '\0');
  file.Read(text.data(), std::ssize(text), 0);
  return text;
}

File Directory::Create(const std::string& name) const {
  const auto make = [&] {
    return ::openat(descriptor_.value(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  };
  const int fd = Uninterrupted(make);
  if (fd < 0) Fail(name, "cannot make it");
  return {PathOf(name), Descriptor(fd)};
}

void Directory::WriteText(const std::string& name, const std::string& text) const {
  const File file = Create(name);
  file.Write(text.data(), static_cast<int64_t>(text.size()), 0);
  file.Sync();
}

bool Directory::Has(const std::string& name) const {
  return ::faccessat(descriptor_.value(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

bool Directory::HasKind(const std::string& name, unsigned kind) const {
  struct stat status {};
  return ::fstatat(descriptor_.value(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         (status.st_mode & S_IFMT) == kind;
}

bool Directory::HasFile(const std::string& name) const { return HasKind(name, S_IFREG); }

bool Directory::HasDirectory(const std::string& name) const { return HasKind(name, S_IFDIR); }

void Directory::Rename(const std::string& from, const std::string& to) const {
  if (::renameat(descriptor_.value(), from.c_str(), descriptor_.value(), to.c_str()) != 0)
    Fail(from, fmt::format("cannot rename it to {}", to).c_str());
}

bool Directory::Exchange(const std::string& a, const std::string& b) const {
  return ::renameat2(descriptor_.value(), a.c_str(), descriptor_.value(), b.c_str(), RENAME_EXCHANGE) == 0;
}

void Directory::Sync() const {
  if (Uninterrupted([&] { return ::fsync(descriptor_.value()); }) == 0) return;
  if (errno != EINVAL && errno != ENOTSUP) FailAt(path_, "cannot bring the directory to the disk (fsync)");
  static std::once_flag said;
  std::call_once(said, [&] {
    spdlog::warn(
        "{}: this file system cannot bring a directory to the disk (fsync): after a power failure a checkpoint may be "
        "missing",
        path_);
  });
}

}  // namespace espalier
