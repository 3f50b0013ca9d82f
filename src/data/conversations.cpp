// Samples of whole conversations: each is a document, and a document is cut only if it is longer than a sample. The
// rest of a sample is padding, which is a document of its own and has no targets.
#include "data/conversations.hpp"

#include <algorithm>

#include "data/file_errors.hpp"
#include "data/formats/document_index.hpp"
#include "data/formats/file_reader.hpp"
#include "data/open_files.hpp"
#include "data/packing.hpp"
#include "data/samples_of_files.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The place of a conversation.
struct Place : ConversationLine {
  int64_t file = 0;
};

class ConversationSource final : public TokenSource {
 public:
  ConversationSource(const DataSettings& settings, std::vector<DataFile> files, std::vector<Place> places,
                     OpenFiles open)
      : coder_(settings, DataFormat::kChat),
        files_(std::move(files)),
        places_(std::move(places)),
        seq_len_(settings.seq_len),
        vocab_(settings.vocab),
        open_(std::move(open)) {
    std::vector<int64_t> lengths;
    for (const Place& place : places_) lengths.push_back(Kept(place));
    for (const int64_t length : lengths) tokens_ += length;
    packed_ = PackDocuments(lengths, Capacity());
  }

  int64_t samples() const override { return packed_.Samples(); }
  int64_t tokens() const override { return tokens_; }
  int64_t seq_len() const override { return seq_len_; }
  const std::vector<DataFile>& files() const override { return files_; }

  void Read(int64_t sample, Sample& out) override {
    CHECK(0 <= sample && sample < samples(), "sample {} of {}", sample, samples());
    out.tokens.clear();
    out.documents.clear();
    out.uncounted.clear();
    for (const int64_t document : packed_.Of(sample)) Add(places_[static_cast<size_t>(document)], out);
    if (std::ssize(out.tokens) < Capacity()) out.documents.push_back(std::ssize(out.tokens));
    out.tokens.resize(static_cast<size_t>(Capacity()), 0);
    out.uncounted.resize(static_cast<size_t>(Capacity()), 1);
  }

  Packing packing() const override {
    Packing packing{.documents = std::ssize(places_), .room = samples() * Capacity()};
    for (const Place& place : places_) {
      packing.cut += place.tokens > Capacity() ? 1 : 0;
      packing.without_target += place.targets == 0 ? 1 : 0;
      packing.tokens += place.tokens;
      packing.targets += place.targets;
    }
    packing.padding = packing.room - tokens_;
    return packing;
  }

  /// Templates and targets count, too.
  uint64_t Fingerprint() const override { return Fold(TokenSource::Fingerprint(), coder_.Key()); }

 private:
  /// Tokens of a sample: the tokens of the sequence, and the target of the last one.
  int64_t Capacity() const { return seq_len_ + 1; }
  int64_t Kept(const Place& place) const { return std::min(place.tokens, Capacity()); }

  void Add(const Place& place, Sample& out) {
    const std::string& path = files_[static_cast<size_t>(place.file)].path;
    const BlockTokens read = ReadConversation(path, open_, coder_, place, vocab_);
    out.documents.push_back(std::ssize(out.tokens));
    for (int64_t i = 0; i < Kept(place); ++i) {
      out.tokens.push_back(read.ids[static_cast<size_t>(i)]);
      out.uncounted.push_back(read.targets[static_cast<size_t>(i)] != 0 ? 0 : 1);
    }
  }

  DocumentCoder coder_;
  std::vector<DataFile> files_;
  std::vector<Place> places_;  ///< in the order of the files
  int64_t seq_len_, vocab_;
  int64_t tokens_ = 0;  ///< tokens of all samples
  PackedDocuments packed_;
  OpenFiles open_;
};

}  // namespace

std::vector<ConversationLine> ConversationsOf(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  FormatOf(path, open, settings);  // checks the vocabulary
  const DocumentIndex index(path, open, settings, DocumentCoder(settings, DataFormat::kChat));
  const std::vector<DocumentBlock> blocks = index.Blocks(open);
  std::vector<ConversationLine> lines;
  for (size_t k = 0; k + 1 < blocks.size(); ++k) {
    const DocumentBlock &begin = blocks[k], &end = blocks[k + 1];
    lines.push_back({begin.offset, end.offset - begin.offset, end.first_token - begin.first_token,
                     end.first_target - begin.first_target});
  }
  return lines;
}

BlockTokens ReadConversation(const std::string& path, OpenFiles& open, const DocumentCoder& coder,
                             const ConversationLine& at, int64_t vocab) {
  std::string line(static_cast<size_t>(at.bytes), '\0');
  open.Get(path).ReadAt(at.offset, line.data(), at.bytes);
  BlockTokens read;
  coder.Encode(path, line, 0, at.offset, false, read);
  if (read.documents.size() != 1 || std::ssize(read.ids) != at.tokens)
    RefuseData(path, fmt::format("the line at byte {} does not fit its index: has the file changed since the start?",
                                 at.offset));
  for (int64_t i = 0; i < at.tokens; ++i)
    if (const int32_t id = read.ids[static_cast<size_t>(i)]; id < 0 || id >= vocab)
      RefuseData(path, fmt::format("the line at byte {}: token {} is {}; allowed: 0 to {} (model.vocab - 1)", at.offset,
                                   i, id, vocab - 1));
  return read;
}

std::unique_ptr<TokenSource> OpenConversations(const std::vector<std::string>& paths, const DataSettings& settings,
                                               const BeforeFile& before_file) {
  OpenFiles open;
  std::vector<DataFile> files;
  std::vector<Place> places;
  FileErrors errors;
  for (const std::string& path : paths) {
    if (before_file) before_file();
    errors.Collect([&] {
      files.push_back({path, open.Get(path).bytes(), 0});
      for (const ConversationLine& line : ConversationsOf(path, open, settings))
        places.push_back({line, std::ssize(files) - 1});
    });
  }
  errors.ThrowAny();
  if (places.empty()) RefuseData(paths.front(), "has no conversation");
  SampleFiles(files, open, before_file);
  return std::make_unique<ConversationSource>(settings, std::move(files), std::move(places), std::move(open));
}

}  // namespace espalier
