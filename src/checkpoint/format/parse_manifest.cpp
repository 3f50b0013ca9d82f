// The parser of MANIFEST. It trusts no byte: every number has bounds, every name a pattern, and errors name the line.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "espalier/checkpoint/manifest.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxSteps = 2147483647;        // as run.steps
constexpr int64_t kMaxCount = int64_t{1} << 53;  // samples
constexpr int64_t kMaxRanks = int64_t{1} << 24;
constexpr int64_t kMaxExtent = int64_t{1} << 40;  // limit of a dim
constexpr int64_t kMaxBytes = int64_t{1} << 58;   // limit of a tensor or file
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxLosses = 1000;
constexpr size_t kMaxWindow = 100000;  // as guard.spike_window
constexpr size_t kMaxText = 255;
constexpr std::string_view kFormat = "espalier-checkpoint ", kMemoryFormat = "espalier-memory ";
constexpr size_t kEndLine = std::string_view("end 00000000\n").size();

bool IsOneOf(char c, std::string_view allowed) { return allowed.find(c) != std::string_view::npos; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsOneOf(c, "_.-"); }

/// "shard-00000.h5", with five digits or more.
bool IsShardName(std::string_view name) {
  if (!name.starts_with("shard-") || !name.ends_with(".h5") || name.size() < 14 || name.size() > 18) return false;
  const std::string_view digits = name.substr(6, name.size() - 9);
  return std::all_of(digits.begin(), digits.end(), IsDigit);
}

/// Words between single slashes; none is "..".
bool IsTensorName(std::string_view name) {
  if (name.empty() || name.size() > kMaxText) return false;
  while (true) {
    const std::string_view word = name.substr(0, name.find('/'));
    if (word.empty() || word == "." || word == ".." || !std::all_of(word.begin(), word.end(), IsWord)) return false;
    if (word.size() == name.size()) return true;
    name.remove_prefix(word.size() + 1);
  }
}

/// From version 0.2 on every checkpoint has a proof.
bool AlwaysProves(std::string_view version) {
  int major = 0, minor = 0;
  const auto [dot, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc{} || dot == version.data() + version.size() || *dot != '.') return false;
  std::from_chars(dot + 1, version.data() + version.size(), minor);
  return major > 0 || minor >= 2;
}

/// Reads line by line, field by field; a field ends at a space, a line at a newline.
class ManifestReader {
 public:
  ManifestReader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  ManifestHead ReadHeadAlone() {
    CheckFormat();
    ReadIdentity();
    return {manifest_.id, manifest_.metadata.step, manifest_.metadata.lineage};
  }

  Manifest Read() {
    CheckFrame();
    ReadHead();
    while (NextIs("file")) ReadFile();
    if (!file_index_.contains("deck.toml")) Fail("file deck.toml is missing");
    if (!manifest_.in_memory && !file_index_.contains("master.h5")) Fail("file master.h5 is missing");
    while (NextIs("tensor")) ReadTensor();
    Key("end");
    Hex();
    EndLine();
    if (at_ != text_.size()) Fail("lines after the end");
    CheckApart();
    return std::move(manifest_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw UserError(ExitStatus::kData, fmt::format("{}:{}: {}", where_, line_, what));
  }

  void CheckFormat() {
    manifest_.in_memory = text_.starts_with(kMemoryFormat);
    const std::string_view format = manifest_.in_memory ? kMemoryFormat : kFormat;
    if (!text_.starts_with(format)) Fail("not a checkpoint's MANIFEST");
    const std::string_view version =
        text_.substr(format.size(), std::min<size_t>(text_.find('\n') - format.size(), 20));
    if (version.size() != 1 || !IsOneOf(version[0], "1234"))
      Fail(fmt::format("format '{}' is not known here; this program reads formats 1 to 4", version));
  }

  /// Checks the first and last lines before the rest is parsed.
  void CheckFrame() {
    CheckFormat();
    if (text_.size() < kEndLine || !text_.ends_with('\n') || !text_.substr(text_.size() - kEndLine).starts_with("end "))
      Fail("incomplete: it does not end with its checksum");
    const std::string_view body = text_.substr(0, text_.size() - kEndLine);
    const std::string stored(text_.substr(body.size() + 4, 8));
    const std::string found = fmt::format("{:08x}", Crc32c(body.data(), body.size()));
    if (stored != found) Fail(fmt::format("damaged: its checksum is {}, its last line says {}", found, stored));
  }

  void ReadIdentity() {
    const int64_t format = NumberLine(manifest_.in_memory ? "espalier-memory" : "espalier-checkpoint", 1, 4);
    manifest_.id = IdLine("id");
    if (format >= 2) {
      Lineage lineage;
      lineage.parent = IdOrNoneLine("parent");
      lineage.branch = IdOrNoneLine("branch");
      manifest_.metadata.lineage = std::move(lineage);
    }
    manifest_.metadata.step = NumberLine("step", 0, kMaxSteps);
  }

  void ReadHead() {
    ReadIdentity();
    manifest_.metadata.samples = NumberLine("samples", 0, kMaxCount);
    manifest_.ranks = static_cast<int>(NumberLine("ranks", 1, kMaxRanks));
    manifest_.mesh = Line("mesh");
    manifest_.metadata.version = Line("version");
    manifest_.metadata.git_hash = Line("git");
    Key("losses");
    while (at_ < text_.size() && text_[at_] == ' ') manifest_.metadata.losses.push_back(Real());
    if (manifest_.metadata.losses.size() > kMaxLosses) Fail(fmt::format("more than {} losses", kMaxLosses));
    EndLine();
    if (NextIs("window")) ReadWindow();
    if (NextIs("proof")) ReadProof();
    // An import saves step 0 and computes nothing.
    if (!manifest_.metadata.proof && manifest_.metadata.step > 0 && AlwaysProves(manifest_.metadata.version))
      Fail(fmt::format("the proof is missing, which version {} always writes", manifest_.metadata.version));
    if (NextIs("data")) ReadData();
  }

  void ReadWindow() {
    Key("window");
    while (at_ < text_.size() && text_[at_] == ' ') {
      const StepSeen step{static_cast<float>(Real()), static_cast<float>(Real())};
      if (!std::isfinite(step.loss) || !std::isfinite(step.norm)) Fail("a step of the window is not finite");
      manifest_.metadata.window.push_back(step);
    }
    if (manifest_.metadata.window.size() > kMaxWindow) Fail(fmt::format("more than {} steps", kMaxWindow));
    EndLine();
  }

  void ReadData() {
    Key("data");
    DataSeen data;
    data.tokens = Number(1, kMaxBytes);
    data.fingerprint = HexDigits(16);
    EndLine();
    manifest_.metadata.data = data;
  }

  void ReadProof() {
    Key("proof");
    Proof proof;
    proof.loss = static_cast<float>(Real());
    if (!std::isfinite(proof.loss)) Fail("the proof's loss is not finite");
    proof.compute = Field();
    if (proof.compute != "fp32" && proof.compute != "bf16")
      Fail(fmt::format("'{}' is no precision (allowed: fp32, bf16)", proof.compute));
    proof.conditions = Hex();
    EndLine();
    manifest_.metadata.proof = std::move(proof);
  }

  void ReadFile() {
    Key("file");
    ManifestFile file;
    file.name = Field();
    if (file.name == "MANIFEST" || !IsCheckpointFile(file.name))
      Fail(fmt::format("'{}' is no file of a checkpoint", file.name));
    file.bytes = Number(0, kMaxBytes);
    file.crc = Hex();
    if (!file_index_.emplace(file.name, static_cast<int>(manifest_.files.size())).second)
      Fail(fmt::format("file {} appears twice", file.name));
    EndLine();
    manifest_.files.push_back(std::move(file));
  }

  void ReadTensor() {
    const int first_line = line_;
    Key("tensor");
    ManifestTensor tensor;
    tensor.name = Field();
    if (!IsTensorName(tensor.name)) Fail(fmt::format("'{}' is no tensor name", tensor.name));
    if (!tensor_names_.insert(tensor.name).second) Fail(fmt::format("tensor {} appears twice", tensor.name));
    tensor.dtype = ReadDtype(tensor.name);
    tensor.shape = ReadShape();
    EndLine();
    while (NextIs("piece")) tensor.pieces.push_back(ReadPiece(tensor));

    std::vector<Box> boxes;
    for (const ManifestPiece& piece : tensor.pieces) boxes.push_back(piece.box);
    const std::string error = TilingError(tensor.shape, boxes);
    if (!error.empty()) {
      line_ = first_line;
      Fail(fmt::format("{}: {}", tensor.name, error));
    }
    manifest_.tensors.push_back(std::move(tensor));
  }

  /// Weights are f32; the optimizer's moments may be bf16.
  Dtype ReadDtype(const std::string& tensor) {
    const std::string name = Field();
    if (name == Name(Dtype::kF32)) return Dtype::kF32;
    if (!tensor.starts_with(kMomentPrefix)) Fail(fmt::format("{}: element type is not f32", tensor));
    if (name != Name(Dtype::kBf16)) Fail(fmt::format("{}: element type is neither f32 nor bf16", tensor));
    return Dtype::kBf16;
  }

  ManifestPiece ReadPiece(const ManifestTensor& tensor) {
    Key("piece");
    ManifestPiece piece;
    const std::string name = Field();
    const auto file = file_index_.find(name);
    if (file == file_index_.end() || !IsShardName(name)) Fail(fmt::format("'{}' is no shard of this checkpoint", name));
    piece.file = file->second;
    piece.box = ReadBox(tensor.shape);
    piece.offset = Number(0, kMaxBytes);
    piece.crc = Hex();
    const int64_t file_bytes = manifest_.files[static_cast<size_t>(piece.file)].bytes;
    if (piece.offset + tensor.BytesOf(piece) > file_bytes)
      Fail(fmt::format("{} {} ends at byte {} of {}, which has {}", tensor.name, ToString(piece.box),
                       piece.offset + tensor.BytesOf(piece), name, file_bytes));
    EndLine();
    return piece;
  }

  Shape ReadShape() {
    Space();
    Shape shape;
    int64_t volume = 1;
    for (Expect('['); shape.empty() || text_[at_ - 1] == ',';) {
      shape.push_back(Digits(1, kMaxExtent));
      if (volume > kMaxBytes / SizeOf(Dtype::kF32) / shape.back()) Fail("tensor too large");
      volume *= shape.back();
      ExpectOneOf(",]");
      if (shape.size() > kMaxDims) Fail(fmt::format("more than {} dims", kMaxDims));
    }
    return shape;
  }

  Box ReadBox(const Shape& shape) {
    Space();
    Box box;
    for (Expect('['); box.empty() || text_[at_ - 1] == ',';) {
      if (box.size() == shape.size()) Fail(fmt::format("more than the tensor's {} dims", shape.size()));
      const int64_t extent = shape[box.size()];
      const int64_t begin = Digits(0, extent - 1);
      Expect(':');
      box.push_back({begin, Digits(begin + 1, extent)});
      ExpectOneOf(",]");
    }
    if (box.size() != shape.size()) Fail(fmt::format("fewer than the tensor's {} dims", shape.size()));
    return box;
  }

  /// Stored boxes in one file must not share bytes.
  void CheckApart() const {
    struct Span {
      int file;
      int64_t begin, end;
      const ManifestTensor* tensor;
      bool operator<(const Span& o) const { return std::tie(file, begin) < std::tie(o.file, o.begin); }
    };
    std::vector<Span> spans;
    for (const ManifestTensor& tensor : manifest_.tensors)
      for (const ManifestPiece& p : tensor.pieces)
        spans.push_back({p.file, p.offset, p.offset + tensor.BytesOf(p), &tensor});
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i)
      if (spans[i].file == spans[i - 1].file && spans[i].begin < spans[i - 1].end)
        Fail(fmt::format("{} and {} share bytes of {}", spans[i - 1].tensor->name, spans[i].tensor->name,
                         manifest_.files[static_cast<size_t>(spans[i].file)].name));
  }

  bool NextIs(std::string_view key) const {
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with(key) && rest.size() > key.size() && rest[key.size()] == ' ';
  }
  void Key(std::string_view key) {
    if (!text_.substr(at_).starts_with(key)) Fail(fmt::format("expected '{}'", key));
    at_ += key.size();
  }
  void Expect(char c) {
    if (at_ >= text_.size() || text_[at_] != c) Fail(fmt::format("expected '{}'", c));
    ++at_;
  }
  void ExpectOneOf(std::string_view allowed) {
    if (at_ >= text_.size() || !IsOneOf(text_[at_], allowed)) Fail(fmt::format("expected one of '{}'", allowed));
    ++at_;
  }
  void Space() {
    if (at_ >= text_.size() || text_[at_] != ' ') Fail("expected a space");
    ++at_;
  }
  void EndLine() {
    if (at_ >= text_.size() || text_[at_] != '\n') Fail("expected the end of the line");
    ++at_;
    ++line_;
  }
  std::string Until(std::string_view stops) {
    const size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    const std::string_view token = text_.substr(at_, end - at_);
    if (token.empty() || token.size() > kMaxText) Fail(fmt::format("expected 1 to {} characters", kMaxText));
    if (std::any_of(token.begin(), token.end(), [](char c) { return c < ' ' || c > '~'; }))
      Fail("unprintable character");
    at_ = end;
    return std::string(token);
  }
  std::string Field() {
    Space();
    return Until(" \n");
  }
  std::string IdLine(std::string_view key) {
    Key(key);
    std::string id = Field();
    if (!IsCheckpointId(id)) Fail(fmt::format("{} is not 32 hex digits", key));
    EndLine();
    return id;
  }
  /// Empty: none.
  std::string IdOrNoneLine(std::string_view key) {
    Key(key);
    std::string id = Field();
    if (id != "none" && !IsCheckpointId(id)) Fail(fmt::format("{} is neither 32 hex digits nor none", key));
    EndLine();
    return id == "none" ? "" : id;
  }
  /// "KEY any text".
  std::string Line(std::string_view key) {
    Key(key);
    Space();
    std::string text = Until("\n");
    EndLine();
    return text;
  }
  int64_t Digits(int64_t least, int64_t most) {
    size_t end = at_;
    while (end < text_.size() && IsDigit(text_[end])) ++end;
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text_.data() + at_, text_.data() + end, value);
    const bool padded = end - at_ > 1 && text_[at_] == '0';
    if (end == at_ || error != std::errc{} || padded || value < least || value > most)
      Fail(fmt::format("expected a number from {} to {}", least, most));
    at_ = end;
    return value;
  }
  int64_t Number(int64_t least, int64_t most) {
    Space();
    return Digits(least, most);
  }
  int64_t NumberLine(std::string_view key, int64_t least, int64_t most) {
    Key(key);
    const int64_t value = Number(least, most);
    EndLine();
    return value;
  }
  double Real() {
    const std::string field = Field();
    double value = 0;
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc{} || stop != field.data() + field.size()) Fail(fmt::format("'{}' is not a number", field));
    return value;
  }
  uint32_t Hex() { return static_cast<uint32_t>(HexDigits(8)); }
  uint64_t HexDigits(size_t digits) {
    const std::string field = Field();
    if (field.size() != digits || field.find_first_not_of("0123456789abcdef") != std::string::npos)
      Fail(fmt::format("'{}' is not a checksum of {} hex digits", field, digits));
    uint64_t value = 0;
    std::from_chars(field.data(), field.data() + field.size(), value, 16);
    return value;
  }

  std::string_view text_, where_;
  size_t at_ = 0;
  int line_ = 1;
  Manifest manifest_;
  std::map<std::string, int, std::less<>> file_index_;
  std::set<std::string> tensor_names_;
};

}  // namespace

bool IsCheckpointId(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsTokenizerFile(std::string_view name) { return name == "tokenizer.json" || name == "tokenizer.model"; }

bool IsCheckpointFile(std::string_view name) {
  return name == "MANIFEST" || name == "deck.toml" || name == "master.h5" || IsTokenizerFile(name) ||
         IsTokenizerCompanion(name) || IsShardName(name);
}

ManifestHead ParseManifestHead(std::string_view text, std::string_view where) {
  return ManifestReader(text, where).ReadHeadAlone();
}

Manifest ParseManifest(std::string_view text, std::string_view where) { return ManifestReader(text, where).Read(); }

}  // namespace espalier
