// Documents as rows of a model's windows.
//
// A window is model.seq_len tokens that the model sees and the targets that follow each of them. The first window of a
// document begins with it, the next one `stride` tokens later, and so on. Each target is counted once, in the first
// window that has it. So a token is predicted from at least seq_len - stride tokens before it, or from all of the
// document's. Windows of several documents share a row if they fit; documents are isolated, so none sees another.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "espalier/data/document_file.hpp"

namespace espalier {

/// Tokens [begin, end) of a document. Targets are the tokens from begin + 1 on; targets before `counted` were counted
/// in an earlier window.
struct DocumentWindow {
  int64_t begin = 0, end = 0, counted = 0;
};

/// The windows of a document of `tokens` tokens; none if it has fewer than two.
class DocumentWindows {
 public:
  DocumentWindows(int64_t tokens, int64_t seq_len, int64_t stride)
      : tokens_(tokens), seq_len_(seq_len), stride_(stride) {}
  /// The next window; nothing after the last one.
  std::optional<DocumentWindow> Next();

 private:
  int64_t tokens_, seq_len_, stride_;
  int64_t begin_ = 0;
  int64_t counted_ = 1;  ///< the first token that has not been a target
};

/// A row, the same on all ranks.
struct Row {
  std::vector<int32_t> tokens;     ///< at most seq_len + 1
  std::vector<int64_t> documents;  ///< tokens at which a window begins
  std::vector<uint8_t> uncounted;  ///< 1 for each token that does not count

  auto Fields() { return std::tie(tokens, documents, uncounted); }
};

/// The document of the target that follows each token of a row; -1: no counted target follows.
using Owners = std::vector<int64_t>;

/// Fills rows, one window after the other.
class RowFiller {
 public:
  RowFiller(int64_t seq_len, int64_t stride) : seq_len_(seq_len), stride_(stride) {}
  /// The next document. All windows of the previous one must have been taken.
  void Begin(int64_t document, Document content);
  /// Appends windows of the document to the row while they fit. False if the row is full: the rest goes into another
  /// row.
  bool Fill(Row& row, Owners& owners);

 private:
  void Append(const DocumentWindow& window, Row& row, Owners& owners) const;

  int64_t seq_len_, stride_;
  int64_t document_ = -1;
  Document content_;
  DocumentWindows windows_{0, 1, 1};
  std::optional<DocumentWindow> next_;
};

}  // namespace espalier
