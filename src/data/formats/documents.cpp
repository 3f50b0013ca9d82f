// Formats whose tokens must be counted: jsonl, and text with a tokenizer. Samples are tokenized as they are read, block
// by block.
#include <algorithm>
#include <atomic>

#include "data/formats/document_index.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

int64_t NewId() {
  static std::atomic<int64_t> next = 0;
  return next++;
}

/// The block that a thread tokenized last: consecutive samples share blocks.
struct LastBlock {
  int64_t reader = -1, index = -1;
  BlockTokens tokens;
};
thread_local LastBlock last_block;

class DocumentReader final : public FileReader {
 public:
  DocumentReader(const std::string& path, OpenFiles& open, const DataSettings& settings, DataFormat format)
      : path_(path), coder_(settings, format), index_(path, open, settings, coder_), vocab_(settings.vocab) {}

  int64_t tokens() const override { return index_.tokens(); }
  std::vector<std::string> Paths() const override { return {path_}; }
  bool IsOfDocuments() const override { return true; }

  void Read(OpenFiles& open, int64_t first, const SamplePart& part) override {
    const std::span<int32_t> out = part.Tokens();
    for (int64_t k = index_.Holding(open, first), done = 0; done < part.count; ++k) {
      if (k == index_.blocks()) RefuseChanged();
      const DocumentBlock begin = index_.Block(open, k), end = index_.Block(open, k + 1);
      const int64_t from = first + done - begin.first_token, to = end.first_token - begin.first_token;
      if (from < 0 || to < from) RefuseChanged();
      const BlockTokens& tokens = Tokens(open, k, begin, end);
      const int64_t count = std::min(part.count - done, to - from);
      std::copy_n(tokens.ids.begin() + from, count, out.begin() + done);
      for (const int64_t document : tokens.documents)
        if (document >= from && document < from + count) part.BeginDocument(done + document - from);
      done += count;
    }
  }

 private:
  const BlockTokens& Tokens(OpenFiles& open, int64_t k, const DocumentBlock& begin, const DocumentBlock& end) {
    if (last_block.reader == id_ && last_block.index == k) return last_block.tokens;
    last_block = {id_, -1, {}};
    BlockTokens& tokens = last_block.tokens;
    if (end.offset < begin.offset) RefuseChanged();
    std::string bytes(static_cast<size_t>(end.offset - begin.offset), '\0');
    open.Get(path_).ReadAt(begin.offset, bytes.data(), std::ssize(bytes));
    coder_.Encode(path_, bytes, 0, begin.offset, k + 1 == index_.blocks(), tokens);
    if (std::ssize(tokens.ids) != end.first_token - begin.first_token) RefuseChanged();
    const auto bad = std::ranges::find_if(tokens.ids, [&](int32_t id) { return id < 0 || id >= vocab_; });
    if (bad != tokens.ids.end())
      RefuseData(path_, fmt::format("token {} is {}; allowed: 0 to {} (model.vocab - 1)",
                                    begin.first_token + (bad - tokens.ids.begin()), *bad, vocab_ - 1));
    last_block.index = k;
    return tokens;
  }

  [[noreturn]] void RefuseChanged() const {
    RefuseData(path_, fmt::format("does not fit its index {}: has it changed since the start?", index_.path()));
  }

  std::string path_;
  DocumentCoder coder_;
  DocumentIndex index_;
  int64_t vocab_;
  const int64_t id_ = NewId();
};

}  // namespace

std::unique_ptr<FileReader> OpenJsonl(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return std::make_unique<DocumentReader>(path, open, settings, DataFormat::kJsonl);
}

std::unique_ptr<FileReader> OpenTokenizedText(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return std::make_unique<DocumentReader>(path, open, settings, DataFormat::kText);
}

}  // namespace espalier
