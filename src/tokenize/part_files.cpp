#include "tokenize/part_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// A part's file: this header, then int32 ids.
struct Header {
  std::array<char, 8> magic = {'E', 'S', 'P', 'P', 'A', 'R', 'T', '1'};
  int64_t tokens = 0, documents = 0, bad_lines = 0;
  uint32_t ids_crc = 0;  ///< CRC-32C of the ids
  uint32_t crc = 0;      ///< checksum of the fields above
};
constexpr size_t kCheckedBytes = sizeof(Header) - sizeof(uint32_t);
constexpr size_t kBlockIds = size_t{1} << 18;
constexpr int64_t kHeaderBytes = sizeof(Header), kIdBytes = sizeof(int32_t);

constexpr FileKind kJobFile = {.what = "description of a job", .most_bytes = int64_t{1} << 30};

[[noreturn]] void Refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, what));
}

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kFault, fmt::format("{}: {}", path, what));
}

void WritePart(const std::string& path, const std::string& temporary, std::string_view head, std::string_view body) {
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(head.data(), std::ssize(head)).write(body.data(), std::ssize(body));
  file.close();
  if (!file) Fail(temporary, fmt::format("cannot write: {}", std::strerror(errno)));
  fs::rename(temporary, path);
}

}  // namespace

PartFiles::PartFiles(std::string folder, const std::string& job) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) Fail(folder_, fmt::format("cannot be created: {}", error.message()));
  lock_ = open((folder_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) Fail(folder_, fmt::format("cannot write: {}", std::strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) Refuse(folder_, "another process is at work on this output");
  const std::string path = folder_ + "/job";
  if (!fs::exists(path)) {
    WritePart(path, Temporary("job"), job, "");
    return;
  }
  const std::string before = ReadFile(path, kJobFile);
  std::istringstream old(before), now(job);
  for (std::string was, is; before != job;) {
    const bool more_was = static_cast<bool>(std::getline(old, was)), more_is = static_cast<bool>(std::getline(now, is));
    if (more_was && more_is && was == is) continue;
    Refuse(folder_,
           fmt::format("is of another job: it has \"{}\", this one \"{}\": give the same arguments, remove the "
                       "folder, or choose another output",
                       more_was ? was : "nothing more", more_is ? is : "nothing more"));
  }
}

PartFiles::~PartFiles() {
  if (lock_ >= 0) close(lock_);
}

std::string PartFiles::PathOf(int64_t part) const { return fmt::format("{}/{:08}", folder_, part); }

std::optional<PartSummary> PartFiles::Find(int64_t part) const {
  const std::string path = PathOf(part);
  if (!fs::exists(path)) return std::nullopt;
  const InputFile file(path);
  Header header;
  if (file.ReadSome(0, &header, kHeaderBytes) < kHeaderBytes) return std::nullopt;
  if (header.magic != Header().magic || header.crc != Crc32c(&header, kCheckedBytes) ||
      file.bytes() != kHeaderBytes + header.tokens * kIdBytes)
    return std::nullopt;
  return PartSummary{header.tokens, header.documents, header.bad_lines};
}

void PartFiles::Write(int64_t part, const PartTokens& tokens) const {
  Header header;
  header.tokens = std::ssize(tokens.ids);
  header.documents = tokens.documents;
  header.bad_lines = tokens.bad_lines;
  const std::string_view body(reinterpret_cast<const char*>(tokens.ids.data()), tokens.ids.size() * sizeof(int32_t));
  header.ids_crc = Crc32c(body.data(), body.size());
  header.crc = Crc32c(&header, kCheckedBytes);
  WritePart(PathOf(part), Temporary(fmt::format("{:08}", part)),
            {reinterpret_cast<const char*>(&header), sizeof header}, body);
}

void PartFiles::Read(int64_t part, const std::function<void(std::span<const int32_t>)>& use) const {
  const std::string path = PathOf(part);
  const InputFile file(path);
  Header header;
  bool whole = file.ReadSome(0, &header, kHeaderBytes) == kHeaderBytes;
  std::vector<int32_t> ids(kBlockIds);
  uint32_t crc = 0;
  for (int64_t first = 0; whole && first < header.tokens; first += std::ssize(ids)) {
    const int64_t count = std::min<int64_t>(header.tokens - first, std::ssize(ids));
    whole = file.ReadSome(kHeaderBytes + first * kIdBytes, ids.data(), count * kIdBytes) == count * kIdBytes;
    crc = Crc32c(ids.data(), static_cast<size_t>(count * kIdBytes), crc);
    if (whole) use(std::span(ids).first(static_cast<size_t>(count)));
  }
  if (!whole || crc != header.ids_crc) {
    fs::remove(path);
    Refuse(path, "is damaged and was removed: start the same command again, which repeats this part alone");
  }
}

void PartFiles::Remove() const {
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) Fail(folder_, fmt::format("cannot be removed: {}", error.message()));
}

}  // namespace espalier
