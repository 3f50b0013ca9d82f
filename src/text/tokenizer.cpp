#include "espalier/text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "text/formats.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr FileKind kTokenizerFile = {
    "tokenizer", kMaxTokenizerBytes,
    "name a file tokenizer.json or tokenizer.model, or a Hugging Face folder with one; nothing is downloaded"};
constexpr const char* kTokenizerNames[] = {"tokenizer.json", "tokenizer.model"};
constexpr FileKind kCompanion = {"file beside a tokenizer", kMaxCompanionBytes, {}, Symlinks::kRefuse};

constexpr std::array kEndNames = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
constexpr std::array kCompanions = {"chat_template.jinja", "generation_config.json", "special_tokens_map.json",
                                    "tokenizer_config.json"};
constexpr std::array kBeginNames = {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"};

bool IsIn(const fs::path& file, const fs::path& folder) {
  return std::ranges::mismatch(folder, file).in1 == folder.end();
}

/// A folder from others may have links that lead to private files of the user, which must not get into checkpoints:
/// links may only lead to files in the same folder. In the cache of the Hugging Face hub, snapshots/REVISION has links
/// to files in blobs.
std::string WithinFolder(const fs::path& path) {
  const fs::path file = fs::canonical(path), folder = fs::canonical(path.parent_path());
  const bool is_snapshot = folder.parent_path().filename() == "snapshots";
  if (IsIn(file, folder) || (is_snapshot && IsIn(file, folder.parent_path().parent_path() / "blobs"))) return file;
  throw UserError(ExitStatus::kData, fmt::format("{}: is a link that leaves its folder", path.string()));
}

struct Companions {
  std::vector<TokenizerCompanion> files;
  std::vector<std::string> left_out;
};

Companions CompanionsIn(fs::path folder) {
  if (folder.empty()) folder = ".";
  Companions found;
  for (const char* name : kCompanions) {
    if (!fs::exists(folder / name)) continue;
    try {
      found.files.push_back({name, ReadFile(WithinFolder(folder / name), kCompanion)});
    } catch (const UserError& error) {
      found.left_out.emplace_back(error.what());
    }
  }
  return found;
}

template <typename Names>
std::optional<int32_t> FindFirst(const Tokenizer& tokenizer, const Names& names) {
  for (const char* name : names)
    if (const std::optional<int32_t> id = tokenizer.Find(name)) return id;
  return std::nullopt;
}

std::shared_ptr<Tokenizer> Parse(const std::string& name, std::string bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == bytes.npos) throw UserError(ExitStatus::kData, fmt::format("{}: the tokenizer is empty", name));
  return bytes[first] == '{' ? ReadTokenizerJson(name, std::move(bytes)) : ReadSentencePiece(name, std::move(bytes));
}

}  // namespace

std::string TokenizerIn(const std::string& folder) {
  for (const char* name : kTokenizerNames)
    if (const fs::path path = fs::path(folder) / name; fs::exists(path)) return path.string();
  return "";
}

bool IsTokenizerCompanion(std::string_view name) { return std::ranges::find(kCompanions, name) != kCompanions.end(); }

std::shared_ptr<const Tokenizer> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const std::string file = folder ? TokenizerIn(path) : path;
  if (file.empty())
    throw UserError(ExitStatus::kData, fmt::format("{}: has neither tokenizer.json nor tokenizer.model", path));
  const std::shared_ptr<Tokenizer> tokenizer = Parse(file, ReadFile(file, kTokenizerFile));
  auto [files, left_out] = CompanionsIn(fs::path(file).parent_path());
  tokenizer->companions_ = std::move(files);
  tokenizer->left_out_ = std::move(left_out);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> Tokenizer::FromBytes(const std::string& name, std::string bytes,
                                                      std::vector<TokenizerCompanion> companions) {
  const std::shared_ptr<Tokenizer> tokenizer = Parse(name, std::move(bytes));
  tokenizer->companions_ = std::move(companions);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encode(text, ids);
  return ids;
}

void Tokenizer::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (const std::optional<size_t> bad = FindBadUtf8(text))
    throw UserError(ExitStatus::kData, fmt::format("the text is not UTF-8: byte {} is 0x{:02x}", *bad,
                                                   static_cast<unsigned char>(text[*bad])));
  EncodeValid(text, ids);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, SpecialTokens special) const {
  TextStream stream(*this, special);
  std::string text;
  for (int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

const std::string& Tokenizer::Name(int32_t id) const {
  static const std::string kNone;
  return 0 <= id && id < vocab() ? names_[static_cast<size_t>(id)] : kNone;
}

std::optional<int32_t> Tokenizer::Find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(ids_, name, {}, [](const auto& entry) { return std::string_view(entry.first); });
  if (found == ids_.end() || found->first != name) return std::nullopt;
  return found->second;
}

std::string Tokenizer::CompanionNames() const {
  std::string names;
  for (const TokenizerCompanion& companion : companions_) names += (names.empty() ? "" : ", ") + companion.name;
  return names;
}

void Tokenizer::SetTokens(std::vector<std::string> names, std::vector<std::string> texts, std::vector<bool> special) {
  names_ = std::move(names);
  texts_ = std::move(texts);
  special_ = std::move(special);
  for (size_t id = 0; id < names_.size(); ++id)
    if (!names_[id].empty()) ids_.emplace_back(names_[id], static_cast<int32_t>(id));
  std::ranges::sort(ids_);
}

void Tokenizer::FindUsualTokens() {
  if (!end_of_text_) end_of_text_ = FindFirst(*this, kEndNames);
  if (!bos_) bos_ = FindFirst(*this, kBeginNames);
}

std::string TextStream::Push(int32_t id) {
  if (id < 0 || id >= tokenizer_.vocab())
    throw UserError(ExitStatus::kData,
                    fmt::format("token {} is not in the tokenizer's vocabulary (0 to {})", id, tokenizer_.vocab() - 1));
  const auto at = static_cast<size_t>(id);
  if (tokenizer_.special_[at] && special_ == SpecialTokens::kHide) return {};
  const bool show_name = tokenizer_.special_[at];
  std::string_view text = show_name ? tokenizer_.names_[at] : tokenizer_.texts_[at];
  while (spaces_ > 0 && text.starts_with(' ')) text.remove_prefix(1), --spaces_;
  if (!text.empty()) spaces_ = 0;
  unfinished_ += text;
  const std::string rest = unfinished_.substr(unfinished_.size() - UnfinishedBytes(unfinished_));
  std::string complete = unfinished_.substr(0, unfinished_.size() - rest.size());
  unfinished_ = rest;
  return complete;
}

std::string TextStream::Finish() { return std::exchange(unfinished_, {}); }

}  // namespace espalier
