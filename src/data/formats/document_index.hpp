// Where the tokens of each document of a file begin. They are counted once and kept in a file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "data/formats/document_blocks.hpp"
#include "data/formats/document_coder.hpp"
#include "data/formats/file_reader.hpp"

namespace espalier {

/// The begin of a block or conversation in a file.
struct DocumentBlock {
  int64_t offset = 0;        ///< offset of its first byte
  int64_t first_token = 0;   ///< in the file
  int64_t first_target = 0;  ///< targets in the file before it
};

/// The identity of an index: a file in its current state, and the settings that determine its tokens.
struct IndexedFile {
  IndexedFile(const std::string& path, OpenFiles& open, const DataSettings& settings, const DocumentCoder& coder);

  std::string data;  ///< the file
  std::string path;  ///< path of the index: next to the file, hidden from globs, or in data.index_dir
  int64_t bytes = 0, modified = 0;
  uint64_t key = 0;
};

/// Writes an index under a temporary name and commits it by renaming. Every function throws UserError (kData) that
/// names the file it cannot write.
class IndexWriter {
 public:
  explicit IndexWriter(const IndexedFile& of);
  /// Removes uncommitted files.
  ~IndexWriter();
  IndexWriter(const IndexWriter&) = delete;
  IndexWriter& operator=(const IndexWriter&) = delete;

  /// Blocks in rising order.
  void Add(const CountedBlock& block);
  void Commit();

 private:
  [[noreturn]] void Refuse(const std::string& what) const;

  const IndexedFile of_;
  const std::string partial_;
  std::ofstream file_;
  int64_t blocks_ = 0, tokens_ = 0, targets_ = 0;
};

/// The index of a file: block k begins at entry k, and the last block ends with the file.
class DocumentIndex {
 public:
  /// Reads the index of a file; makes it if no index matches. Throws UserError (kData).
  DocumentIndex(const std::string& path, OpenFiles& open, const DataSettings& settings, const DocumentCoder& coder);
  /// Whether there is an intact index for this file and these settings.
  static bool Exists(const IndexedFile& of);

  int64_t tokens() const { return tokens_; }
  int64_t blocks() const { return blocks_; }
  const std::string& path() const { return of_.path; }
  /// Block 0 <= k < blocks(); k = blocks() is the end of the file.
  DocumentBlock Block(OpenFiles& open, int64_t k) const;
  /// All of them, and the end of the file.
  std::vector<DocumentBlock> Blocks(OpenFiles& open) const;
  /// The block that holds a token.
  int64_t Holding(OpenFiles& open, int64_t token) const;

 private:
  bool Load();
  DocumentBlock End() const { return {of_.bytes, tokens_, targets_}; }
  void Check(const DocumentBlock& block, int64_t k) const;
  [[noreturn]] void Refuse(int64_t k) const;

  const IndexedFile of_;
  int64_t tokens_ = 0, targets_ = 0, blocks_ = 0;
};

}  // namespace espalier
