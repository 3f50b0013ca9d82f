#include "espalier/data/token_source.hpp"

#include <algorithm>

#include "data/blend.hpp"
#include "data/conversations.hpp"
#include "data/file_errors.hpp"
#include "data/formats/file_reader.hpp"
#include "data/open_files.hpp"
#include "data/samples_of_files.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// A file in the sequence of all. Tokens between segments are zero.
struct Segment {
  std::unique_ptr<FileReader> reader;
  int64_t begin = 0;             ///< its first token
  bool begins_document = false;  ///< by its own settings, or because the previous file ends a document

  int64_t End() const { return begin + reader->tokens(); }
};

constexpr int64_t kMaxTokens = int64_t{1} << 58;

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
    out.uncounted.clear();
    auto segment =
        std::partition_point(segments_.begin(), segments_.end(), [&](const Segment& s) { return s.End() <= begin; });
    for (; segment != segments_.end() && segment->begin < end; ++segment) {
      if (segment->begins_document && segment->begin > begin) out.documents.push_back(segment->begin - begin);
      const int64_t from = std::max(begin, segment->begin), to = std::min(end, segment->End());
      if (from < to) segment->reader->Read(open_, from - segment->begin, {out, from - begin, to - from});
    }
    EndDocuments(out);
  }

 private:
  /// A document begins after each end_token.
  void EndDocuments(Sample& sample) const {
    if (end_token_ >= 0)
      for (size_t i = 0; i + 1 < sample.tokens.size(); ++i)
        if (sample.tokens[i] == end_token_) sample.documents.push_back(static_cast<int64_t>(i) + 1);
    std::ranges::sort(sample.documents);
    sample.documents.erase(std::unique(sample.documents.begin(), sample.documents.end()), sample.documents.end());
  }

  std::vector<Segment> segments_;
  std::vector<DataFile> files_;
  int64_t tokens_, seq_len_, end_token_;
  OpenFiles open_;
};

/// Opens every file once.
std::vector<Segment> OpenAll(const std::vector<std::string>& paths, const DataSettings& settings, OpenFiles& open,
                             const BeforeFile& before_file) {
  std::vector<Segment> segments;
  FileErrors errors;
  for (const std::string& path : paths) {
    if (before_file) before_file();
    errors.Collect([&] {
      segments.push_back({OpenReader(path, open, settings)});
      if (settings.isolate_documents && settings.end_token < 0 && !segments.back().reader->IsOfDocuments())
        RefuseData(path, "does not say where documents end, and data.isolate_documents must know: set data.end_token");
    });
  }
  errors.ThrowAny();
  return segments;
}

/// Concatenates the segments; returns the number of tokens.
int64_t Arrange(std::vector<Segment>& segments) {
  int64_t tokens = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    Segment& segment = segments[i];
    segment.begins_document = segment.reader->IsOfDocuments();
    if (i > 0) {
      const FileReader& before = *segments[i - 1].reader;
      if (before.EndsWithZero()) ++tokens;
      segment.begins_document |= before.IsOfDocuments();
    }
    if (segment.reader->tokens() > kMaxTokens - tokens)
      RefuseData(segment.reader->Paths().front(), "more than 2^58 tokens up to here");
    segment.begin = tokens;
    tokens += segment.reader->tokens();
  }
  return tokens;
}

std::vector<DataFile> FilesOf(const std::vector<Segment>& segments, OpenFiles& open) {
  std::vector<DataFile> files;
  for (const Segment& segment : segments)
    for (std::string& path : segment.reader->Paths()) {
      const int64_t bytes = open.Get(path).bytes();
      files.push_back({std::move(path), bytes, 0});
    }
  return files;
}

std::unique_ptr<TokenSource> OpenFilesAsOne(const DataSettings& settings, const BeforeFile& before_file) {
  const std::vector<std::string> paths = DataPaths(settings.format, settings.paths, before_file);
  if (settings.format == DataFormat::kChat) return OpenConversations(paths, settings, before_file);
  OpenFiles open;
  std::vector<Segment> segments = OpenAll(paths, settings, open, before_file);
  const int64_t tokens = Arrange(segments);
  if (tokens < settings.seq_len + 1)
    RefuseData(paths.front() + (paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : ""),
               fmt::format("{} tokens in all; one sample needs {} (model.seq_len + 1)", tokens, settings.seq_len + 1));
  std::vector<DataFile> files = FilesOf(segments, open);
  SampleFiles(files, open, before_file);
  return std::make_unique<FileTokenSource>(settings, std::move(segments), std::move(files), std::move(open), tokens);
}

std::unique_ptr<TokenSource> OpenBlend(const DataSettings& settings, const BeforeFile& before_file) {
  CHECK(settings.weights.size() == settings.paths.size(), "{} weights of {} sources", settings.weights.size(),
        settings.paths.size());
  std::vector<std::unique_ptr<TokenSource>> sources;
  FileErrors errors;
  for (const std::string& path : settings.paths) {
    DataSettings one = settings;
    one.paths = {path};
    errors.Collect([&] { sources.push_back(OpenFilesAsOne(one, before_file)); });
  }
  errors.ThrowAny();
  return MakeBlend(std::move(sources), settings.paths, settings.weights);
}

}  // namespace

const std::vector<DataFile>& TokenSource::files() const {
  static const std::vector<DataFile> kNone;
  return kNone;
}

Packing& Packing::operator+=(const Packing& other) {
  for (int64_t Packing::*count : {&Packing::documents, &Packing::cut, &Packing::without_target, &Packing::tokens,
                                  &Packing::targets, &Packing::room, &Packing::padding})
    this->*count += other.*count;
  return *this;
}

void TokenSource::ReadAt(int64_t position, const SampleOrder& order, Sample& out) {
  Read(SampleIndex(position, samples(), order.seed, order.order), out);
}

std::unique_ptr<TokenSource> OpenTokenSource(const DataSettings& settings, const BeforeFile& before_file) {
  CHECK(settings.seq_len >= 1, "samples of {} tokens", settings.seq_len);
  return settings.weights.empty() ? OpenFilesAsOne(settings, before_file) : OpenBlend(settings, before_file);
}

}  // namespace espalier
