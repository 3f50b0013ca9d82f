#include "espalier/data/token_source.hpp"

#include <algorithm>
#include <cstring>

#include "data/open_files.hpp"
#include "data/samples_of_files.hpp"
#include "data/token_file.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Tokens [begin, begin + count) of the source, in one file. Tokens between segments are zero.
struct Segment {
  std::string path;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t offset = 0;     ///< bytes before the first token
  int64_t width = 1;      ///< bytes of a token
  int64_t limit = 0;      ///< ids are below it
  bool document = false;  ///< begins a document
};

constexpr int64_t kMaxTokens = int64_t{1} << 58;

template <typename T>
void Widen(const std::vector<char>& bytes, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    // Ids beyond int32 become negative, and so stay out of range.
    out[i] = static_cast<int32_t>(id);
  }
}

/// Reads out.size() tokens of `segment`, starting at its token `first`; `scratch` is any buffer. Throws on an id out of
/// range.
void ReadPiece(const InputFile& file, const Segment& segment, int64_t first, std::span<int32_t> out,
               std::vector<char>& scratch) {
  scratch.resize(out.size() * static_cast<size_t>(segment.width));
  file.ReadAt(segment.offset + first * segment.width, scratch.data(), static_cast<int64_t>(scratch.size()));
  if (segment.width == 1) Widen<uint8_t>(scratch, out);
  if (segment.width == 2) Widen<uint16_t>(scratch, out);
  if (segment.width == 4) Widen<uint32_t>(scratch, out);
  const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t id) { return id < 0 || id >= segment.limit; });
  if (bad == out.end()) return;
  const int64_t index = first + (bad - out.begin());
  throw UserError(ExitStatus::kData,
                  fmt::format("{}: token {} (byte {}) is {}; allowed: 0 to {}", segment.path, index,
                              segment.offset + index * segment.width, static_cast<uint32_t>(*bad), segment.limit - 1));
}

Segment OpenText(const InputFile& file) { return {file.path(), 0, file.bytes(), 0, 1, 256, true}; }

Segment OpenTokens(const InputFile& file, int64_t vocab) {
  const TokenFile header = ReadTokenHeader(file);
  if (header.vocab > vocab)
    throw UserError(
        ExitStatus::kData,
        fmt::format("{}: its vocabulary is {} (byte 16), larger than model.vocab = {}: raise model.vocab, or "
                    "write the file with the vocabulary of its ids",
                    file.path(), header.vocab, vocab));
  return {file.path(), 0, header.count, kTokenHeaderBytes, static_cast<int64_t>(header.width), header.vocab, false};
}

class FileTokenSource final : public TokenSource {
 public:
  FileTokenSource(const DataSettings& settings, std::vector<Segment> segments, std::vector<DataFile> files,
                  OpenFiles open, int64_t tokens)
      : segments_(std::move(segments)),
        files_(std::move(files)),
        tokens_(tokens),
        seq_len_(settings.seq_len),
        end_token_(settings.end_token),
        open_(std::move(open)) {}

  int64_t samples() const override { return (tokens_ - 1) / seq_len_; }
  int64_t tokens() const override { return tokens_; }
  int64_t seq_len() const override { return seq_len_; }
  const std::vector<DataFile>& files() const override { return files_; }

  void Read(int64_t sample, Sample& out) override {
    CHECK(0 <= sample && sample < samples(), "sample {} of {}", sample, samples());
    const int64_t begin = sample * seq_len_, end = begin + seq_len_ + 1;
    out.tokens.assign(static_cast<size_t>(seq_len_) + 1, 0);
    out.documents = {0};
    auto segment = std::partition_point(segments_.begin(), segments_.end(),
                                        [&](const Segment& p) { return p.begin + p.count <= begin; });
    for (; segment != segments_.end() && segment->begin < end; ++segment) {
      if (segment->document && segment->begin > begin) out.documents.push_back(segment->begin - begin);
      const int64_t from = std::max(begin, segment->begin), to = std::min(end, segment->begin + segment->count);
      if (from >= to) continue;
      const auto part =
          std::span(out.tokens).subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
      ReadPiece(open_.Get(segment->path), *segment, from - segment->begin, part, scratch_);
    }
    EndDocuments(out);
  }

 private:
  /// A document begins after each end_token.
  void EndDocuments(Sample& sample) const {
    if (end_token_ < 0) return;
    for (size_t i = 0; i + 1 < sample.tokens.size(); ++i)
      if (sample.tokens[i] == end_token_) sample.documents.push_back(static_cast<int64_t>(i) + 1);
    std::ranges::sort(sample.documents);
    sample.documents.erase(std::unique(sample.documents.begin(), sample.documents.end()), sample.documents.end());
  }

  std::vector<Segment> segments_;
  std::vector<DataFile> files_;
  int64_t tokens_, seq_len_, end_token_;
  OpenFiles open_;
  std::vector<char> scratch_;
};

/// Keeps the first messages and counts the rest: a corpus may have a hundred thousand files.
void Add(std::vector<std::string>& errors, int64_t& more, const UserError& error) {
  constexpr size_t kMaxMessages = 20;
  for (const std::string& message : error.messages()) {
    if (errors.size() < kMaxMessages) {
      errors.push_back(message);
    } else {
      ++more;
    }
  }
}

/// Fills the sizes of `files`.
std::vector<Segment> OpenAll(bool text, std::vector<DataFile>& files, int64_t vocab, OpenFiles& open,
                             const BeforeFile& before_file) {
  std::vector<Segment> segments;
  std::vector<std::string> errors;
  int64_t more = 0;
  for (DataFile& file : files) {
    if (before_file) before_file();
    try {
      const InputFile& input = open.Get(file.path);
      file.bytes = input.bytes();
      segments.push_back(text ? OpenText(input) : OpenTokens(input, vocab));
    } catch (const UserError& error) {
      Add(errors, more, error);
    }
  }
  if (more > 0) errors.push_back(fmt::format("... and {} more", more));
  if (!errors.empty()) throw UserError(ExitStatus::kData, errors);
  return segments;
}

}  // namespace

const std::vector<DataFile>& TokenSource::files() const {
  static const std::vector<DataFile> kNone;
  return kNone;
}

std::unique_ptr<TokenSource> OpenTokenSource(const DataSettings& settings, const BeforeFile& before_file) {
  const int64_t seq_len = settings.seq_len, vocab = settings.vocab;
  CHECK(seq_len >= 1, "samples of {} tokens", seq_len);
  const bool text = settings.format == DataFormat::kText;
  if (text && vocab < 256) {
    throw UserError(ExitStatus::kData,
                    fmt::format("text needs model.vocab >= 256 (a token is a byte); it is {}", vocab));
  }
  std::vector<DataFile> files;
  for (std::string& path : ExpandPaths(settings.paths, before_file)) files.push_back({std::move(path), 0, 0});
  OpenFiles open;
  std::vector<Segment> segments = OpenAll(text, files, vocab, open, before_file);
  int64_t tokens = 0;
  for (Segment& segment : segments) {
    // One zero byte separates texts.
    if (text && &segment != &segments.front()) ++tokens;
    if (segment.count > kMaxTokens - tokens) {
      throw UserError(ExitStatus::kData, fmt::format("{}: more than 2^58 tokens up to here", segment.path));
    }
    segment.begin = tokens;
    tokens += segment.count;
  }
  if (tokens < seq_len + 1) {
    throw UserError(
        ExitStatus::kData,
        fmt::format("{}{}: {} tokens in all; one sample needs {} (model.seq_len + 1)", files.front().path,
                    files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "", tokens, seq_len + 1));
  }
  SampleFiles(files, open, before_file);
  return std::make_unique<FileTokenSource>(settings, std::move(segments), std::move(files), std::move(open), tokens);
}

}  // namespace espalier
