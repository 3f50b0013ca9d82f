#include "data/formats/document_blocks.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kReadBytes = 256 << 10;

/// The number, from 1, of the line that begins at `offset`. Reads the file up to there: only for errors.
int64_t LineNumber(const InputFile& file, int64_t offset) {
  int64_t line = 1;
  std::string bytes;
  for (int64_t at = 0; at < offset; at += std::ssize(bytes)) {
    bytes.resize(static_cast<size_t>(std::min(kReadBytes, offset - at)));
    file.ReadAt(at, bytes.data(), std::ssize(bytes));
    line += std::ranges::count(bytes, '\n');
  }
  return line;
}

}  // namespace

BlockReader::BlockReader(const InputFile& file, int64_t begin, int64_t end)
    : file_(file), end_(end), buffer_begin_(std::max<int64_t>(begin - 1, 0)), offset_(begin) {
  CHECK(begin % kBlockBytes == 0, "blocks from byte {}", begin);
  if (begin == 0) return;
  offset_ = end;  // keeps nothing
  offset_ = LineBegin(begin, end);
}

std::string_view BlockReader::Next() {
  offset_ += size_;
  size_ = 0;
  if (offset_ >= end_) return {};
  size_ = LineBegin((offset_ / kBlockBytes + 1) * kBlockBytes, file_.bytes()) - offset_;
  while (BufferEnd() < offset_ + size_) ReadMore();
  return std::string_view(buffer_).substr(static_cast<size_t>(offset_ - buffer_begin_), static_cast<size_t>(size_));
}

/// The first byte in [from, limit) at which a line begins, which is after a newline; or `limit`.
int64_t BlockReader::LineBegin(int64_t from, int64_t limit) {
  for (int64_t at = from - 1; at < limit - 1; at = BufferEnd()) {
    while (BufferEnd() <= at) ReadMore();
    const size_t newline = buffer_.find('\n', static_cast<size_t>(at - buffer_begin_));
    if (newline != std::string::npos) return std::min(buffer_begin_ + static_cast<int64_t>(newline) + 1, limit);
  }
  return limit;
}

/// Drops the bytes before offset_ and reads more; there must be more. Beyond the end of its part a reader reads little
/// at a time, since that part belongs to another rank.
void BlockReader::ReadMore() {
  const auto used = static_cast<size_t>(std::max<int64_t>(offset_ - buffer_begin_, 0));
  const int64_t at = BufferEnd();
  buffer_.erase(0, std::min(used, buffer_.size()));
  buffer_begin_ = at - std::ssize(buffer_);
  const int64_t bytes = at < end_ ? std::min(kReadBytes, end_ - at) : std::min(kBlockBytes, file_.bytes() - at);
  CHECK(bytes > 0, "{} has {} bytes", file_.path(), file_.bytes());
  buffer_.resize(buffer_.size() + static_cast<size_t>(bytes));
  file_.ReadAt(at, buffer_.data() + buffer_.size() - bytes, bytes);
}

namespace {

/// An entry for each conversation of a block, or one for the block.
void AddCounts(const BlockTokens& block, int64_t offset, bool of_documents, std::vector<CountedBlock>& counted) {
  if (!of_documents) return counted.push_back({offset, std::ssize(block.ids)});
  for (size_t i = 0; i < block.documents.size(); ++i) {
    const int64_t begin = block.documents[i];
    const int64_t end = i + 1 < block.documents.size() ? block.documents[i + 1] : std::ssize(block.ids);
    const int64_t targets = std::count(block.targets.begin() + begin, block.targets.begin() + end, uint8_t{1});
    counted.push_back({offset + block.lines[i], end - begin, targets});
  }
}

}  // namespace

std::vector<CountedBlock> CountBlocks(const InputFile& file, const DocumentCoder& coder, int64_t begin, int64_t end,
                                      const BeforeFile& before_block) {
  std::vector<CountedBlock> counted;
  BlockReader blocks(file, begin, end);
  for (std::string_view text = blocks.Next(); !text.empty(); text = blocks.Next()) {
    if (before_block) before_block();
    const auto tokens = [&](int64_t line) {
      BlockTokens out;
      coder.Encode(file.path(), text, line, blocks.offset(), blocks.at_end(), out);
      return out;
    };
    try {
      AddCounts(tokens(0), blocks.offset(), coder.IndexesDocuments(), counted);
    } catch (const UserError&) {
      tokens(LineNumber(file, blocks.offset()));  // throws again, with the line
      throw;
    }
  }
  return counted;
}

}  // namespace espalier
