#include "espalier/data/document_file.hpp"

#include <algorithm>

#include "data/file_errors.hpp"
#include "data/formats/file_reader.hpp"
#include "data/open_files.hpp"

namespace espalier {

/// Takes the file in blocks. Each block begins with the last token of the block before, since a reader need not say
/// whether a document begins at the first token.
class DocumentFile::Reader {
 public:
  Reader(const std::string& path, const DataSettings& settings)
      : path_(path),
        format_(FormatOf(path, open_, settings)),
        end_token_(settings.end_token),
        file_(OpenReader(path, open_, settings)) {
    if (file_->tokens() == 0) RefuseData(path, "has no tokens");
  }

  const std::string& path() const { return path_; }
  int64_t tokens() const { return file_->tokens(); }
  bool IsText() const { return format_ == DataFormat::kText || format_ == DataFormat::kJsonl; }

  bool Next(Document& out) {
    out = {};
    while (ReadMore()) {
      const auto next = std::ranges::upper_bound(block_.documents, at_);
      const int64_t end = next == block_.documents.end() ? std::ssize(block_.tokens) : *next;
      Append(out, end);
      // The end of a block ends a document only if the next block begins one, or there is none.
      if (next != block_.documents.end() || BeginsDocument()) return true;
    }
    return !out.tokens.empty();
  }

 private:
  static constexpr int64_t kBlockTokens = 1 << 16;

  /// Whether the next token begins a document, in the block after this one.
  bool BeginsDocument() { return ReadMore() && std::ranges::binary_search(block_.documents, at_); }

  /// Makes sure that there is a next token; false at the end of the file.
  bool ReadMore() {
    if (at_ < std::ssize(block_.tokens)) return true;
    if (first_ == tokens()) return false;
    const int64_t before = std::min<int64_t>(first_, 1), begin = first_ - before;
    block_.tokens.assign(static_cast<size_t>(std::min(kBlockTokens, tokens() - begin)), 0);
    block_.documents = {0};
    block_.uncounted.clear();
    file_->Read(open_, begin, {block_, 0, std::ssize(block_.tokens)});
    EndDocuments();
    at_ = before;
    first_ = begin + std::ssize(block_.tokens);
    return true;
  }

  void EndDocuments() {
    for (int64_t i = 0; end_token_ >= 0 && i + 1 < std::ssize(block_.tokens); ++i)
      if (block_.tokens[static_cast<size_t>(i)] == end_token_) block_.documents.push_back(i + 1);
    std::ranges::sort(block_.documents);
  }

  void Append(Document& out, int64_t end) {
    if (!block_.uncounted.empty()) {
      out.uncounted.resize(out.tokens.size());
      out.uncounted.insert(out.uncounted.end(), block_.uncounted.begin() + at_, block_.uncounted.begin() + end);
    }
    out.tokens.insert(out.tokens.end(), block_.tokens.begin() + at_, block_.tokens.begin() + end);
    if (!out.uncounted.empty()) out.uncounted.resize(out.tokens.size());
    at_ = end;
  }

  const std::string path_;
  OpenFiles open_;
  const DataFormat format_;
  const int64_t end_token_;
  const std::unique_ptr<FileReader> file_;
  Sample block_;       ///< the tokens up to first_
  int64_t at_ = 0;     ///< the next token, in the block
  int64_t first_ = 0;  ///< the first token of the file after the block
};

DocumentFile::DocumentFile(const std::string& path, const DataSettings& settings)
    : reader_(std::make_unique<Reader>(path, settings)) {}
DocumentFile::~DocumentFile() = default;
DocumentFile::DocumentFile(DocumentFile&&) noexcept = default;

const std::string& DocumentFile::path() const { return reader_->path(); }
int64_t DocumentFile::tokens() const { return reader_->tokens(); }
bool DocumentFile::IsText() const { return reader_->IsText(); }
bool DocumentFile::Next(Document& out) { return reader_->Next(out); }

std::vector<DocumentFile> OpenDocumentFiles(const DataSettings& settings) {
  std::vector<DocumentFile> files;
  FileErrors errors;
  for (const std::string& path : DataPaths(settings.format, settings.paths, {}))
    errors.Collect([&] { files.emplace_back(path, settings); });
  errors.ThrowAny();
  return files;
}

}  // namespace espalier
