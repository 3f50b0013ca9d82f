// A data file document by document, for uses that need no samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/data/token_source.hpp"

namespace espalier {

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> uncounted;  ///< 1 for each token that is not a counted target; empty: all count
};

/// Reads the documents of a file in order, as in training: with the token that ends a document. A file whose format
/// does not mark the ends of documents is one document, unless DataSettings::end_token marks them.
class DocumentFile {
 public:
  /// Throws UserError (kData) if the file cannot be read, is damaged, or has no tokens. The index of documents that it
  /// computes is kept in settings.index_dir.
  DocumentFile(const std::string& path, const DataSettings& settings);
  ~DocumentFile();
  DocumentFile(DocumentFile&&) noexcept;

  const std::string& path() const;
  int64_t tokens() const;
  /// Its tokens come from text, by bytes or by the tokenizer.
  bool IsText() const;

  /// The next document; false after the last one. Throws UserError (kData) with the place of an unreadable document.
  bool Next(Document& out);

 private:
  class Reader;
  class InBlocks;
  class Conversations;
  std::unique_ptr<Reader> reader_;
};

/// Opens all files that settings.paths name, sorted by byte. Throws UserError (kData) naming every one that cannot be
/// read.
std::vector<DocumentFile> OpenDocumentFiles(const DataSettings& settings);

}  // namespace espalier
