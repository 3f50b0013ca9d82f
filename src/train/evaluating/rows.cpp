#include "train/evaluating/rows.hpp"

#include <algorithm>
#include <utility>

namespace espalier {

std::optional<DocumentWindow> DocumentWindows::Next() {
  if (counted_ >= tokens_) return std::nullopt;
  const int64_t begin = std::exchange(begin_, begin_ + stride_);
  const int64_t end = std::min(tokens_, begin + seq_len_ + 1);
  return DocumentWindow{begin, end, std::exchange(counted_, end)};
}

void RowFiller::Begin(int64_t document, Document content) {
  document_ = document;
  content_ = std::move(content);
  windows_ = DocumentWindows(std::ssize(content_.tokens), seq_len_, stride_);
  next_ = windows_.Next();
}

bool RowFiller::Fill(Row& row, Owners& owners) {
  for (; next_; next_ = windows_.Next()) {
    if (std::ssize(row.tokens) + next_->end - next_->begin > seq_len_ + 1) return false;
    Append(*next_, row, owners);
  }
  return true;
}

void RowFiller::Append(const DocumentWindow& window, Row& row, Owners& owners) const {
  row.documents.push_back(std::ssize(row.tokens));
  for (int64_t i = window.begin; i < window.end; ++i) {
    const bool masked = !content_.uncounted.empty() && content_.uncounted[static_cast<size_t>(i)] != 0;
    const bool counts = i > window.begin && i >= window.counted && !masked;
    row.tokens.push_back(content_.tokens[static_cast<size_t>(i)]);
    row.uncounted.push_back(counts ? 0 : 1);
    if (!owners.empty()) owners.back() = counts ? document_ : -1;
    owners.push_back(-1);
  }
}

}  // namespace espalier
