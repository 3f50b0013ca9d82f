// Where the tokens of a file of documents are: counted once, and kept in a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/formats/file_reader.hpp"

namespace espalier {

/// A block of a file: whole lines, some 32 KiB of them, that are tokenized together.
struct DocumentBlock {
  int64_t offset = 0;       ///< of its first byte
  int64_t first_token = 0;  ///< in the file
};

/// The tokens of a block.
struct BlockTokens {
  std::vector<int32_t> ids;
  std::vector<int64_t> documents;  ///< tokens at which a document begins, rising
};

/// How the bytes of a file become tokens: lines of JSON or text, as bytes or by a tokenizer.
class DocumentCoder {
 public:
  explicit DocumentCoder(const DataSettings& settings, bool json);
  /// Appends the tokens of whole lines. `at_end`: they are the last of the file. `line` is the number of the first one,
  /// from 1, or 0 if it is not known; `offset` its byte. Throws UserError (kData) with file and line.
  void Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
              BlockTokens& out) const;
  /// Tells apart what gives other tokens.
  uint64_t Key() const;
  /// One line is one document; otherwise the file is.
  bool json() const { return json_; }

 private:
  void AddText(std::string_view text, BlockTokens& out) const;
  void EndDocument(BlockTokens& out) const;

  bool json_;
  std::string field_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

/// The index of a file: block k begins at entry k, and the last block ends with the file.
class DocumentIndex {
 public:
  /// Reads the index of `path`; makes it if there is none that fits. Throws UserError (kData).
  DocumentIndex(const std::string& path, OpenFiles& open, const DataSettings& settings, const DocumentCoder& coder);

  int64_t tokens() const { return tokens_; }
  int64_t blocks() const { return blocks_; }
  /// Whether this made the index.
  bool made() const { return made_; }
  const std::string& path() const { return path_; }
  /// Block 0 <= k < blocks(); k = blocks() is the end of the file.
  DocumentBlock Block(OpenFiles& open, int64_t k) const;
  /// The block that holds a token.
  int64_t Holding(OpenFiles& open, int64_t token) const;

 private:
  bool Load(int64_t data_bytes, int64_t modified, uint64_t key);
  void Make(const InputFile& data, int64_t modified, uint64_t key, const DocumentCoder& coder);

  std::string path_;
  int64_t data_bytes_ = 0, tokens_ = 0, blocks_ = 0;
  bool made_ = false;
};

}  // namespace espalier
