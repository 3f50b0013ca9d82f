#include "text/read_bpe.hpp"

#include <fmt/core.h>

#include <set>

#include "text/byte_alphabet.hpp"

namespace espalier {
namespace {

/// {"token": id, ...}; every id once, and not much larger than their number.
TokenIds ReadNames(const JsonReader& json) {
  if (!json.value().is_object()) json.Refuse("must be an object");
  const auto max = static_cast<int64_t>(8 * json.value().size() + 1024);
  TokenIds names;
  std::set<int64_t> ids;
  for (const auto& [name, value] : json.value().items()) {
    const JsonReader member = json[name];
    const int64_t id = member.Integer(0, max);
    if (!ids.insert(id).second) member.Refuse("another token has this id");
    names.emplace(name, static_cast<int32_t>(id));
  }
  return names;
}

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> ReadMerge(const JsonReader& json) {
  if (json.value().is_array()) {
    const std::vector<JsonReader> parts = json.Elements();
    if (parts.size() != 2) json.Refuse("must be two tokens");
    return {parts[0].Text(), parts[1].Text()};
  }
  const std::string& text = json.Text();
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) json.Refuse("must be two tokens");
  return {text.substr(0, space), text.substr(space + 1)};
}

MergeTable ReadMerges(const JsonReader& json, const TokenIds& names, const std::string& prefix) {
  const std::vector<JsonReader> list = json.Elements();
  MergeTable merges(list.size());
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const auto [left, right] = ReadMerge(list[rank]);
    const auto id = [&](const std::string& name) {
      const auto found = names.find(name);
      if (found == names.end()) list[rank].Refuse(fmt::format("model.vocab has no token \"{}\"", name));
      return found->second;
    };
    const int32_t left_id = id(left), right_id = id(right);
    if (right.size() < prefix.size()) list[rank].Refuse("the second token lacks continuing_subword_prefix");
    merges.Set(left_id, right_id, {static_cast<int32_t>(rank), id(left + right.substr(prefix.size()))});
  }
  return merges;
}

std::vector<int32_t> ByteTokens(const TokenIds& names) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = names.find(fmt::format("<0x{:02X}>", byte));
    ids.push_back(found == names.end() ? -1 : found->second);
  }
  return ids;
}

/// Tokens in the form in which they occur in words.
TokenIds InWords(const TokenIds& names, bool bytes) {
  if (!bytes) return names;
  TokenIds ids;
  for (const auto& [name, id] : names)
    if (const auto spelled = FromByteAlphabet(name)) ids.emplace(*spelled, id);
  return ids;
}

/// Notes bytes that would be dropped; with byte_fallback all must have tokens.
void CheckBytes(const JsonReader& json, NamedBpe& bpe, std::vector<std::string>& notes) {
  BpeModel& model = bpe.model;
  int missing = 0;
  for (int byte = 0; byte < 256; ++byte) missing += !model.ids.contains(std::string(1, static_cast<char>(byte)));
  if (missing > 0 && model.byte_fallback)
    json["byte_fallback"].Refuse("with ByteLevel, every byte must have a token of its own");
  model.byte_fallback = false;
  if (missing > 0 && !model.unknown)
    notes.push_back(
        fmt::format("{} of 256 bytes have no token, and there is no unknown token: such bytes of a text are "
                    "dropped, as Hugging Face's tokenizers do",
                    missing));
}

}  // namespace

NamedBpe ReadBpe(const JsonReader& json, bool bytes, std::vector<std::string>& notes) {
  json.RequireObject({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                      "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const JsonReader type = json["type"]; type.TextOr("BPE") != "BPE")
    type.Refuse("is not supported (supported: BPE)");
  if (const JsonReader dropout = json["dropout"]; !dropout.IsNull() && dropout.value() != 0.0)
    dropout.Refuse("is not supported: it makes ids random (supported: null)");
  NamedBpe bpe;
  bpe.names = ReadNames(json["vocab"]);
  BpeModel& model = bpe.model;
  model.bytes = bytes;
  model.prefix = json["continuing_subword_prefix"].TextOr("");
  model.suffix = json["end_of_word_suffix"].TextOr("");
  if (bytes && !model.prefix.empty())
    json["continuing_subword_prefix"].Refuse("is not supported with ByteLevel (supported: null)");
  model.ignore_merges = json["ignore_merges"].BoolOr(false);
  model.byte_fallback = json["byte_fallback"].BoolOr(false);
  model.fuse_unknown = json["fuse_unk"].BoolOr(false);
  model.byte_tokens = ByteTokens(bpe.names);
  model.ids = InWords(bpe.names, bytes);
  model.merges = ReadMerges(json["merges"], bpe.names, model.prefix);
  if (const JsonReader unknown = json["unk_token"]; !unknown.IsNull()) {
    const auto found = bpe.names.find(unknown.Text());
    if (found == bpe.names.end() && !bytes) unknown.Refuse("model.vocab has no such token");
    if (found != bpe.names.end()) model.unknown = found->second;
  }
  if (bytes) CheckBytes(json, bpe, notes);
  return bpe;
}

}  // namespace espalier
