#include "espalier/data/token_source.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "data/input_file.hpp"
#include "data/token_file.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Tokens [begin, begin + count) of the source, in one file. Tokens between pieces are zero.
struct Piece {
  std::string path;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t offset = 0;  ///< bytes before the first token
  int64_t width = 1;   ///< bytes of a token
  int64_t limit = 0;   ///< ids are below it
};

/// Files up to this size are looked through when they are opened, so that a bad id is found before the first step.
constexpr int64_t kLookThroughBytes = int64_t{1} << 30;

template <typename T>
void Widen(const std::vector<char>& bytes, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    // Ids beyond int32 turn negative, and out of range they stay.
    out[i] = static_cast<int32_t>(id);
  }
}

/// Reads out.size() tokens of `piece` from its token `first` on; `scratch` is any buffer. Throws on an id out of range.
void ReadPiece(const InputFile& file, const Piece& piece, int64_t first, std::span<int32_t> out,
               std::vector<char>& scratch) {
  scratch.resize(out.size() * static_cast<size_t>(piece.width));
  file.ReadAt(piece.offset + first * piece.width, scratch.data(), static_cast<int64_t>(scratch.size()));
  if (piece.width == 1) Widen<uint8_t>(scratch, out);
  if (piece.width == 2) Widen<uint16_t>(scratch, out);
  if (piece.width == 4) Widen<uint32_t>(scratch, out);
  const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t id) { return id < 0 || id >= piece.limit; });
  if (bad == out.end()) return;
  const int64_t index = first + (bad - out.begin());
  throw UserError(ExitStatus::kData,
                  fmt::format("{}: token {} (byte {}) is {}; allowed: 0 to {}", piece.path, index,
                              piece.offset + index * piece.width, static_cast<uint32_t>(*bad), piece.limit - 1));
}

void LookThrough(const InputFile& file, const Piece& piece) {
  std::vector<char> scratch;
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(piece.count, 1 << 18)));
  for (int64_t first = 0; first < piece.count; first += static_cast<int64_t>(ids.size())) {
    const auto n = static_cast<size_t>(std::min(piece.count - first, static_cast<int64_t>(ids.size())));
    ReadPiece(file, piece, first, std::span(ids).first(n), scratch);
  }
}

Piece OpenText(const std::string& path) {
  const InputFile file(path);
  return {path, 0, file.bytes(), 0, 1, 256};
}

Piece OpenTokens(const std::string& path, int64_t vocab) {
  const InputFile file(path);
  const TokenFile header = ReadTokenHeader(file);
  const Piece piece{
      path, 0, header.count, kTokenHeaderBytes, static_cast<int64_t>(header.width), std::min(vocab, header.vocab)};
  if (file.bytes() <= kLookThroughBytes) LookThrough(file, piece);
  return piece;
}

class FileTokenSource final : public TokenSource {
 public:
  FileTokenSource(std::vector<Piece> pieces, int64_t tokens, int64_t seq_len)
      : pieces_(std::move(pieces)), tokens_(tokens), seq_len_(seq_len) {}

  int64_t samples() const override { return (tokens_ - 1) / seq_len_; }
  int64_t tokens() const override { return tokens_; }
  int64_t seq_len() const override { return seq_len_; }

  void Read(int64_t sample, std::span<int32_t> out) override {
    CHECK(0 <= sample && sample < samples(), "sample {} of {}", sample, samples());
    CHECK(static_cast<int64_t>(out.size()) == seq_len_ + 1, "room for {} tokens of {}", out.size(), seq_len_ + 1);
    const int64_t begin = sample * seq_len_, end = begin + seq_len_ + 1;
    std::fill(out.begin(), out.end(), 0);
    auto piece = std::partition_point(pieces_.begin(), pieces_.end(),
                                      [&](const Piece& p) { return p.begin + p.count <= begin; });
    for (; piece != pieces_.end() && piece->begin < end; ++piece) {
      const int64_t from = std::max(begin, piece->begin), to = std::min(end, piece->begin + piece->count);
      if (from >= to) continue;
      const auto part = out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
      ReadPiece(Open(piece->path), *piece, from - piece->begin, part, scratch_);
    }
  }

 private:
  /// One file stays open: neighbouring samples mostly share it, and a corpus may have more files than a process may
  /// open.
  const InputFile& Open(const std::string& path) {
    if (!file_ || file_->path() != path) file_.emplace(path);
    return *file_;
  }

  std::vector<Piece> pieces_;
  int64_t tokens_, seq_len_;
  std::optional<InputFile> file_;
  std::vector<char> scratch_;
};

void CheckFormat(std::string_view format, int64_t vocab) {
  if (format != "text" && format != "tokens") {
    throw UserError(ExitStatus::kData,
                    fmt::format("data.format \"{}\" cannot be read; available: \"text\", \"tokens\"", format));
  }
  if (format == "text" && vocab < 256) {
    throw UserError(ExitStatus::kData,
                    fmt::format("text needs model.vocab >= 256 (a token is a byte); it is {}", vocab));
  }
}

std::vector<Piece> OpenAll(bool text, const std::vector<std::string>& files, int64_t vocab) {
  std::vector<Piece> pieces;
  std::vector<std::string> mistakes;
  for (const std::string& file : files) {
    try {
      pieces.push_back(text ? OpenText(file) : OpenTokens(file, vocab));
    } catch (const UserError& error) {
      mistakes.insert(mistakes.end(), error.messages().begin(), error.messages().end());
    }
  }
  if (!mistakes.empty()) throw UserError(ExitStatus::kData, mistakes);
  return pieces;
}

}  // namespace

std::unique_ptr<TokenSource> OpenTokenSource(std::string_view format, const std::vector<std::string>& paths,
                                             int64_t seq_len, int64_t vocab) {
  CHECK(seq_len >= 1, "samples of {} tokens", seq_len);
  CheckFormat(format, vocab);
  const bool text = format == "text";
  const std::vector<std::string> files = ExpandPaths(paths);
  std::vector<Piece> pieces = OpenAll(text, files, vocab);
  int64_t tokens = 0;
  for (Piece& piece : pieces) {
    // Texts are parted by one zero byte.
    if (text && &piece != &pieces.front()) ++tokens;
    piece.begin = tokens;
    tokens += piece.count;
  }
  if (tokens < seq_len + 1) {
    throw UserError(
        ExitStatus::kData,
        fmt::format("{}{}: {} tokens in all; one sample needs {} (model.seq_len + 1)", files.front(),
                    files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "", tokens, seq_len + 1));
  }
  return std::make_unique<FileTokenSource>(std::move(pieces), tokens, seq_len);
}

}  // namespace espalier
