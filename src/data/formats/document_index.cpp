// The index file, little-endian: 64 bytes of header, then 16 bytes for each block (byte, first token).
#include "data/formats/document_index.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/samples_of_files.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = 32 << 10;
constexpr int64_t kReadBytes = 256 << 10;

struct Header {
  std::array<char, 8> magic = {'E', 'S', 'P', 'I', 'D', 'X', '\0', '\1'};
  int64_t data_bytes = 0, modified = 0;
  uint64_t key = 0;
  int64_t blocks = 0, tokens = 0, reserved = 0;
  uint32_t checksum = 0;  ///< of the bytes before
  uint32_t end = 0;
};
static_assert(sizeof(Header) == 64);

uint32_t ChecksumOf(const Header& header) { return Crc32c(&header, offsetof(Header, checksum)); }

/// Nanoseconds since 1970.
int64_t Modified(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) RefuseData(path, fmt::format("cannot read: {}", std::strerror(errno)));
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// Beside the file, hidden from globs, or in data.index_dir; the name changes with whatever changes the tokens.
std::string IndexPath(const std::string& data, const DataSettings& settings, uint64_t mark) {
  const fs::path path = fs::absolute(data).lexically_normal();
  const std::string name = fmt::format("{}.{:016x}.index", path.filename().string(), mark);
  if (settings.index_dir.empty()) return (path.parent_path() / ("." + name)).string();
  return (fs::path(settings.index_dir) / name).string();
}

/// Bytes of a file in whole lines.
class Lines {
 public:
  explicit Lines(const InputFile& file) : file_(file) {}
  /// Whole lines of at least kBlockBytes, or what is left; empty at the end.
  std::string_view Next() {
    buffer_.erase(0, used_);
    size_t end = std::string::npos;
    for (size_t looked = kBlockBytes - 1; (end = buffer_.find('\n', looked)) == std::string::npos && ReadMore();)
      looked = std::max(looked, buffer_.size() - last_);
    used_ = end == std::string::npos ? buffer_.size() : end + 1;
    return std::string_view(buffer_).substr(0, used_);
  }

 private:
  /// Whether there was more.
  bool ReadMore() {
    last_ = static_cast<size_t>(std::min(kReadBytes, file_.bytes() - read_));
    if (last_ == 0) return false;
    buffer_.resize(buffer_.size() + last_);
    file_.ReadAt(read_, buffer_.data() + buffer_.size() - last_, static_cast<int64_t>(last_));
    read_ += static_cast<int64_t>(last_);
    return true;
  }

  const InputFile& file_;
  std::string buffer_;
  size_t used_ = 0, last_ = 0;  ///< bytes given by the last Next, read by the last ReadMore
  int64_t read_ = 0;
};

}  // namespace

DocumentCoder::DocumentCoder(const DataSettings& settings, bool json)
    : json_(json), field_(settings.text_field), tokenizer_(settings.tokenizer) {}

uint64_t DocumentCoder::Key() const {
  uint64_t key = Fold(1, json_ ? Crc32c(field_.data(), field_.size()) + (uint64_t{1} << 32) : 0);
  if (tokenizer_ == nullptr) return key;
  const std::string& bytes = tokenizer_->bytes();
  return Fold(Fold(key, bytes.size()), Crc32c(bytes.data(), bytes.size()));
}

void DocumentCoder::AddText(std::string_view text, BlockTokens& out) const {
  if (tokenizer_ != nullptr) return tokenizer_->Encode(text, out.ids);
  for (const char c : text) out.ids.push_back(static_cast<uint8_t>(c));
}

void DocumentCoder::EndDocument(BlockTokens& out) const {
  if (tokenizer_ == nullptr) return out.ids.push_back(0);
  if (tokenizer_->end_of_text()) out.ids.push_back(*tokenizer_->end_of_text());
}

void DocumentCoder::Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
                           BlockTokens& out) const {
  if (!json_) {
    try {
      AddText(lines, out);
    } catch (const UserError& error) {
      RefuseData(path, fmt::format("from byte {} on: {}", offset, error.what()));
    }
    if (at_end) EndDocument(out);
    return;
  }
  for (size_t begin = 0, end = 0; begin<lines.size(); begin = end + 1, line += line> 0 ? 1 : 0) {
    end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view text = lines.substr(begin, end - begin);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = line > 0 ? fmt::format("line {}", line)
                                       : fmt::format("the line at byte {}", offset + static_cast<int64_t>(begin));
    try {
      const auto object = nlohmann::json::parse(text);
      if (!object.is_object()) RefuseData(path, fmt::format("{} is no JSON object", place));
      const auto field = object.find(field_);
      if (field == object.end())
        RefuseData(path, fmt::format("{} has no field \"{}\" (data.text_field)", place, field_));
      if (!field->is_string())
        RefuseData(path, fmt::format("{}: field \"{}\" is a {}, not a string", place, field_, field->type_name()));
      out.documents.push_back(std::ssize(out.ids));
      AddText(field->get_ref<const std::string&>(), out);
      EndDocument(out);
    } catch (const nlohmann::json::exception& error) {
      RefuseData(path, fmt::format("{} is no JSON object: {}", place, error.what()));
    }
  }
}

DocumentIndex::DocumentIndex(const std::string& path, OpenFiles& open, const DataSettings& settings,
                             const DocumentCoder& coder) {
  const int64_t modified = Modified(path);
  const InputFile& data = open.Get(path);
  data_bytes_ = data.bytes();
  const std::string full = fs::absolute(path).lexically_normal().string();
  const uint64_t key = Fold(coder.Key(), Crc32c(full.data(), full.size()));
  path_ =
      IndexPath(path, settings, Fold(Fold(key, static_cast<uint64_t>(data_bytes_)), static_cast<uint64_t>(modified)));
  if (Load(data_bytes_, modified, key)) return;
  Make(data, modified, key, coder);
  made_ = true;
}

/// An index that is damaged or of something else is made again.
bool DocumentIndex::Load(int64_t data_bytes, int64_t modified, uint64_t key) {
  if (!fs::is_regular_file(path_)) return false;
  const InputFile file(path_);
  Header header;
  if (file.bytes() < static_cast<int64_t>(sizeof header)) return false;
  file.ReadAt(0, &header, sizeof header);
  const bool fits = header.magic == Header{}.magic && header.checksum == ChecksumOf(header) &&
                    header.data_bytes == data_bytes && header.modified == modified && header.key == key &&
                    header.blocks >= 0 && header.tokens >= 0 &&
                    (file.bytes() - static_cast<int64_t>(sizeof header)) / 16 == header.blocks &&
                    (file.bytes() - static_cast<int64_t>(sizeof header)) % 16 == 0;
  if (!fits) return false;
  blocks_ = header.blocks;
  tokens_ = header.tokens;
  return true;
}

void DocumentIndex::Make(const InputFile& data, int64_t modified, uint64_t key, const DocumentCoder& coder) {
  const std::string partial = fmt::format("{}.{}", path_, getpid());
  const auto refuse = [&](const std::string& what) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    RefuseData(data.path(),
               fmt::format("its index {} cannot be written: {}; data.index_dir names a folder for it", path_, what));
  };
  std::error_code exists;
  if (const fs::path folder = fs::path(path_).parent_path(); !folder.empty()) fs::create_directories(folder, exists);
  std::ofstream file(partial, std::ios::binary);
  if (!file) refuse(std::strerror(errno));
  Header header;
  header.data_bytes = data.bytes();
  header.modified = modified;
  header.key = key;
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  try {
    Lines lines(data);
    int64_t offset = 0, line = 1;
    for (std::string_view text = lines.Next(); !text.empty(); text = lines.Next()) {
      const DocumentBlock block{offset, header.tokens};
      file.write(reinterpret_cast<const char*>(&block), sizeof block);
      BlockTokens tokens;
      offset += std::ssize(text);
      coder.Encode(data.path(), text, line, block.offset, offset == data.bytes(), tokens);
      line += std::ranges::count(text, '\n');
      header.tokens += std::ssize(tokens.ids);
      ++header.blocks;
    }
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
  header.checksum = ChecksumOf(header);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.close();
  if (!file) refuse(std::strerror(errno));
  std::error_code error;
  fs::rename(partial, path_, error);
  if (error) refuse(error.message());
  blocks_ = header.blocks;
  tokens_ = header.tokens;
}

DocumentBlock DocumentIndex::Block(OpenFiles& open, int64_t k) const {
  if (k == blocks_) return {data_bytes_, tokens_};
  DocumentBlock block;
  static_assert(sizeof block == 16);
  open.Get(path_).ReadAt(static_cast<int64_t>(sizeof(Header)) + 16 * k, &block, sizeof block);
  if (block.offset < 0 || block.offset > data_bytes_ || block.first_token < 0 || block.first_token > tokens_)
    RefuseData(path_, fmt::format("block {} is damaged: delete this index, and it is made again", k));
  return block;
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
