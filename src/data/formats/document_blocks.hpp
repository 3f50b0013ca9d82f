// Files of documents in blocks of whole lines, cut at the same places for every reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/formats/document_coder.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {

/// A file is divided into ranges of this many bytes; the first line that begins in a range begins a block.
inline constexpr int64_t kBlockBytes = 32 << 10;

/// Reads the blocks of a part of a file, and nothing before it. A block ends where the next one begins.
class BlockReader {
 public:
  /// The blocks that begin in [begin, end), which are multiples of kBlockBytes or the end of the file.
  BlockReader(const InputFile& file, int64_t begin, int64_t end);

  /// The next block, valid until the next call; empty after the last one.
  std::string_view Next();
  /// The first byte of the last block, and whether it ends with the file.
  int64_t offset() const { return offset_; }
  bool at_end() const { return offset_ + size_ == file_.bytes(); }

 private:
  int64_t BufferEnd() const { return buffer_begin_ + std::ssize(buffer_); }
  int64_t LineBegin(int64_t from, int64_t limit);
  void ReadMore();

  const InputFile& file_;
  int64_t end_;
  std::string buffer_;
  int64_t buffer_begin_;  ///< in the file
  int64_t offset_, size_ = 0;
};

/// The numbers of tokens and targets (0 in blocks) of a block or a conversation.
struct CountedBlock {
  int64_t offset = 0;
  int64_t tokens = 0;
  int64_t targets = 0;
};

/// Counts the blocks that begin in [begin, end), or the conversations in them. Calls `before_block`, if set, before
/// each. Throws UserError (kData) with file and line.
std::vector<CountedBlock> CountBlocks(const InputFile& file, const DocumentCoder& coder, int64_t begin, int64_t end,
                                      const BeforeFile& before_block = {});

}  // namespace espalier
