// The index file, little-endian: 64 bytes of header, then 24 bytes for each block or conversation (byte, first token,
// targets before it).
#include "data/formats/document_index.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "data/samples_of_files.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

struct IndexHeader {
  std::array<char, 8> magic = {'E', 'S', 'P', 'I', 'D', 'X', '\0', '\3'};
  int64_t data_bytes = 0, modified = 0;
  uint64_t key = 0;
  int64_t blocks = 0, tokens = 0, targets = 0;
  uint32_t checksum = 0;  ///< checksum of the bytes before
  uint32_t end = 0;
};
static_assert(sizeof(IndexHeader) == 64 && sizeof(DocumentBlock) == 24);

uint32_t ChecksumOf(const IndexHeader& header) { return Crc32c(&header, offsetof(IndexHeader, checksum)); }

/// Nanoseconds since 1970.
int64_t Modified(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) RefuseData(path, fmt::format("cannot read: {}", std::strerror(errno)));
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// The name depends on everything that changes the tokens.
std::string IndexPath(const std::string& data, const DataSettings& settings, uint64_t mark) {
  const fs::path path = fs::absolute(data).lexically_normal();
  const std::string name = fmt::format("{}.{:016x}.index", path.filename().string(), mark);
  if (settings.index_dir.empty()) return (path.parent_path() / ("." + name)).string();
  return (fs::path(settings.index_dir) / name).string();
}

IndexHeader HeaderOf(const IndexedFile& of, int64_t blocks, int64_t tokens, int64_t targets) {
  IndexHeader header;
  header.data_bytes = of.bytes;
  header.modified = of.modified;
  header.key = of.key;
  header.blocks = blocks;
  header.tokens = tokens;
  header.targets = targets;
  header.checksum = ChecksumOf(header);
  return header;
}

/// The header of the matching index.
std::optional<IndexHeader> FindHeader(const IndexedFile& of) {
  if (!fs::is_regular_file(of.path)) return std::nullopt;
  const InputFile file(of.path);
  IndexHeader header;
  constexpr int64_t entry = sizeof(DocumentBlock);
  const int64_t body = file.bytes() - static_cast<int64_t>(sizeof header);
  if (body < 0) return std::nullopt;
  file.ReadAt(0, &header, sizeof header);
  const bool fits = header.magic == IndexHeader{}.magic && header.checksum == ChecksumOf(header) &&
                    header.data_bytes == of.bytes && header.modified == of.modified && header.key == of.key &&
                    header.blocks >= 0 && header.tokens >= 0 && body / entry == header.blocks && body % entry == 0;
  return fits ? std::optional(header) : std::nullopt;
}

}  // namespace

IndexedFile::IndexedFile(const std::string& file, OpenFiles& open, const DataSettings& settings,
                         const DocumentCoder& coder)
    : data(file), bytes(open.Get(file).bytes()), modified(Modified(file)) {
  const std::string full = fs::absolute(file).lexically_normal().string();
  key = Fold(coder.Key(), Crc32c(full.data(), full.size()));
  path = IndexPath(file, settings, Fold(Fold(key, static_cast<uint64_t>(bytes)), static_cast<uint64_t>(modified)));
}

IndexWriter::IndexWriter(const IndexedFile& of) : of_(of), partial_(fmt::format("{}.{}", of.path, getpid())) {
  std::error_code exists;
  if (const fs::path folder = fs::path(of.path).parent_path(); !folder.empty()) fs::create_directories(folder, exists);
  file_.open(partial_, std::ios::binary);
  if (!file_) Refuse(std::strerror(errno));
  const IndexHeader header;  // overwritten later with the right one
  file_.write(reinterpret_cast<const char*>(&header), sizeof header);
}

IndexWriter::~IndexWriter() {
  std::error_code none;
  fs::remove(partial_, none);
}

void IndexWriter::Add(const CountedBlock& block) {
  const DocumentBlock entry{block.offset, tokens_, targets_};
  file_.write(reinterpret_cast<const char*>(&entry), sizeof entry);
  tokens_ += block.tokens;
  targets_ += block.targets;
  ++blocks_;
}

void IndexWriter::Commit() {
  const IndexHeader header = HeaderOf(of_, blocks_, tokens_, targets_);
  file_.seekp(0);
  file_.write(reinterpret_cast<const char*>(&header), sizeof header);
  file_.close();
  if (!file_) Refuse(std::strerror(errno));
  std::error_code error;
  fs::rename(partial_, of_.path, error);
  if (error) Refuse(error.message());
}

void IndexWriter::Refuse(const std::string& what) const {
  RefuseData(of_.data,
             fmt::format("its index {} cannot be written: {}; data.index_dir names a folder for it", of_.path, what));
}

DocumentIndex::DocumentIndex(const std::string& path, OpenFiles& open, const DataSettings& settings,
                             const DocumentCoder& coder)
    : of_(path, open, settings, coder) {
  if (Load()) return;
  IndexWriter writer(of_);
  for (const CountedBlock& block : CountBlocks(open.Get(path), coder, 0, of_.bytes)) writer.Add(block);
  writer.Commit();
  if (!Load()) RefuseData(path, fmt::format("its index {} is not what was written just now", of_.path));
}

bool DocumentIndex::Exists(const IndexedFile& of) { return FindHeader(of).has_value(); }

bool DocumentIndex::Load() {
  const std::optional<IndexHeader> header = FindHeader(of_);
  if (!header) return false;
  blocks_ = header->blocks;
  tokens_ = header->tokens;
  targets_ = header->targets;
  return true;
}

DocumentBlock DocumentIndex::Block(OpenFiles& open, int64_t k) const {
  if (k == blocks_) return End();
  DocumentBlock block;
  open.Get(of_.path).ReadAt(static_cast<int64_t>(sizeof(IndexHeader)) + k * int64_t{sizeof block}, &block,
                            sizeof block);
  Check(block, k);
  return block;
}

std::vector<DocumentBlock> DocumentIndex::Blocks(OpenFiles& open) const {
  std::vector<DocumentBlock> blocks(static_cast<size_t>(blocks_));
  open.Get(of_.path).ReadAt(sizeof(IndexHeader), blocks.data(), blocks_ * int64_t{sizeof(DocumentBlock)});
  blocks.push_back(End());
  for (int64_t k = 0; k < blocks_; ++k) {
    const DocumentBlock &block = blocks[static_cast<size_t>(k)], &next = blocks[static_cast<size_t>(k) + 1];
    Check(block, k);
    if (next.offset <= block.offset || next.first_token <= block.first_token || next.first_target < block.first_target)
      Refuse(k);
  }
  return blocks;
}

void DocumentIndex::Check(const DocumentBlock& block, int64_t k) const {
  if (block.offset < 0 || block.offset > of_.bytes || block.first_token < 0 || block.first_token > tokens_) Refuse(k);
}

void DocumentIndex::Refuse(int64_t k) const {
  RefuseData(of_.path, fmt::format("block {} is damaged: delete this index, and it is made again", k));
}

int64_t DocumentIndex::Holding(OpenFiles& open, int64_t token) const {
  int64_t low = 0, high = blocks_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (Block(open, middle).first_token <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace espalier
