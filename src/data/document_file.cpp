#include "espalier/data/document_file.hpp"

#include <algorithm>

#include "data/conversations.hpp"
#include "data/file_errors.hpp"
#include "data/formats/file_reader.hpp"
#include "data/open_files.hpp"

namespace espalier {

class DocumentFile::Reader {
 public:
  virtual ~Reader() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t tokens() const = 0;
  virtual bool IsText() const = 0;
  virtual bool Next(Document& out) = 0;
};

/// Takes the file in blocks. Each block begins with the last token of the block before, since a reader need not say
/// whether a document begins at the first token.
class DocumentFile::InBlocks final : public DocumentFile::Reader {
 public:
  InBlocks(const std::string& path, const DataSettings& settings)
      : path_(path),
        format_(FormatOf(path, open_, settings)),
        end_token_(settings.end_token),
        file_(OpenReader(path, open_, settings)) {
    if (file_->tokens() == 0) RefuseData(path, "has no tokens");
  }

  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return file_->tokens(); }
  bool IsText() const override { return espalier::IsText(format_); }

  bool Next(Document& out) override {
    out = {};
    while (ReadMore()) {
      const auto next = std::ranges::upper_bound(block_.documents, at_);
      const int64_t end = next == block_.documents.end() ? std::ssize(block_.tokens) : *next;
      Append(out, end);
      // The end of a block ends a document only if the next block begins one, or does not exist.
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

class DocumentFile::Conversations final : public DocumentFile::Reader {
 public:
  Conversations(const std::string& path, const DataSettings& settings)
      : path_(path),
        vocab_(settings.vocab),
        coder_(settings, DataFormat::kChat),
        lines_(ConversationsOf(path, open_, settings)) {
    for (const ConversationLine& line : lines_) tokens_ += line.tokens;
    if (tokens_ == 0) RefuseData(path, "has no conversation");
  }

  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return tokens_; }
  bool IsText() const override { return true; }

  bool Next(Document& out) override {
    out = {};
    if (next_ == lines_.size()) return false;
    BlockTokens read = ReadConversation(path_, open_, coder_, lines_[next_++], vocab_);
    out.tokens = std::move(read.ids);
    for (const uint8_t target : read.targets) out.uncounted.push_back(target != 0 ? 0 : 1);
    return true;
  }

 private:
  const std::string path_;
  const int64_t vocab_;
  OpenFiles open_;
  const DocumentCoder coder_;
  const std::vector<ConversationLine> lines_;
  int64_t tokens_ = 0;
  size_t next_ = 0;
};

DocumentFile::DocumentFile(const std::string& path, const DataSettings& settings) {
  if (settings.format == DataFormat::kChat)
    reader_ = std::make_unique<Conversations>(path, settings);
  else
    reader_ = std::make_unique<InBlocks>(path, settings);
}
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
