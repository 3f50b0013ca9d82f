#include "text/decoder.hpp"

#include <fmt/core.h>

#include <charconv>
#include <optional>

#include "text/byte_alphabet.hpp"
#include "text/normalizer.hpp"

namespace espalier {
namespace {

/// The byte that a token such as <0x0A> represents.
std::optional<char> ByteOf(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

TextChange ReplaceAll(const std::string& what, const std::string& by) {
  return [=](std::string& text) {
    for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size()) text.replace(at, what.size(), by);
  };
}

/// The steps of a decoder, each a change of a token. Strip removes spaces from a whole text only after Fuse.
class DecoderReader {
 public:
  void Add(const JsonReader& json) {
    const std::string type = json["type"].Text();
    if (fused_ && type != "Strip") json["type"].Refuse("is not supported after Fuse (supported there: Strip)");
    if (type == "Sequence") {
      json.RequireObject({"type", "decoders"});
      for (const JsonReader& part : json["decoders"].Elements()) Add(part);
    } else if (type == "ByteLevel") {
      json.RequireObject({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      changes_.push_back([](std::string& text) { text = FromByteAlphabet(text).value_or(text); });
    } else if (type == "Replace") {
      json.RequireObject({"type", "pattern", "content"});
      changes_.push_back(ReadReplace(json));
    } else if (type == "ByteFallback") {
      json.RequireObject({"type"});
      byte_fallback_ = true;
    } else if (type == "Fuse") {
      json.RequireObject({"type"});
      fused_ = true;
    } else if (type == "Strip") {
      AddStrip(json);
    } else if (type == "Metaspace") {
      AddMetaspace(json);
    } else {
      json["type"].Refuse(
          "is not supported (supported: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence)");
    }
  }

  Decoder Result() const {
    return {[changes = changes_, byte_fallback = byte_fallback_](const std::string& token) {
              if (const auto byte = ByteOf(token); byte_fallback && byte) return std::string(1, *byte);
              std::string text = token;
              for (const TextChange& change : changes) change(text);
              return text;
            },
            strip_spaces_};
  }

 private:
  void AddStrip(const JsonReader& json) {
    json.RequireObject({"type", "content", "start", "stop"});
    if (!fused_) json["type"].Refuse("is supported after Fuse only");
    if (json["content"].Text() != " ") json["content"].Refuse("must be a space");
    strip_spaces_ += static_cast<size_t>(json["start"].Integer(0, 1024));
    json["stop"].Integer(0, 0);
  }

  void AddMetaspace(const JsonReader& json) {
    json.RequireObject({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const JsonReader replacement = json["replacement"];
    if (replacement.Text().empty()) replacement.Refuse("must not be empty");
    changes_.push_back(ReplaceAll(replacement.Text(), " "));
    const std::string legacy = json["add_prefix_space"].BoolOr(true) ? "always" : "never";
    strip_spaces_ = json["prepend_scheme"].TextOr(legacy) == "never" ? 0 : 1;
  }

  std::vector<TextChange> changes_;
  bool byte_fallback_ = false, fused_ = false;
  size_t strip_spaces_ = 0;
};

}  // namespace

Decoder ReadDecoder(const JsonReader& json) {
  // Without a decoder, spaces separate the tokens.
  if (json.IsNull()) return {[](const std::string& token) { return " " + token; }, 1};
  DecoderReader reader;
  reader.Add(json);
  return reader.Result();
}

}  // namespace espalier
