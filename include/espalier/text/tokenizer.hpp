// Tokenizers: text to token ids and back. Reads Hugging Face's tokenizer.json (BPE) and SentencePiece's
// tokenizer.model. doc/tokenize.md lists the supported parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// Whether decoded text shows special tokens, such as <|endoftext|>, by their names.
enum class SpecialTokens : uint8_t { kHide, kShow };

/// Limits of the bytes of a tokenizer's file, and of a companion. The largest known have 35 MB and 1 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20, kMaxCompanionBytes = int64_t{16} << 20;

/// A file in the tokenizer's folder that tells how to use it. It is kept and written back; chat templates and special
/// tokens are read from it (chat_template.hpp).
struct TokenizerCompanion {
  std::string name, bytes;
};

/// The tokenizer.json, or else the tokenizer.model, of a Hugging Face folder; empty if it has neither.
std::string TokenizerIn(const std::string& folder);

/// True for the names of companions in Hugging Face folders: tokenizer_config.json, special_tokens_map.json,
/// chat_template.jinja, generation_config.json.
bool IsTokenizerCompanion(std::string_view name);

/// A tokenizer. Immutable: any number of threads may share it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Reads tokenizer.json or tokenizer.model, or the one in a folder; the content decides which. Throws UserError
  /// (kData) if the file cannot be read, is damaged, or needs an unsupported feature; the message has the place in the
  /// file, its value and what is allowed. Also reads the companions in the same folder; links to files elsewhere are
  /// skipped.
  static std::shared_ptr<const Tokenizer> Load(const std::string& path);
  /// The same from the bytes of files; messages call the tokenizer `name`.
  static std::shared_ptr<const Tokenizer> FromBytes(const std::string& name, std::string bytes,
                                                    std::vector<TokenizerCompanion> companions = {});

  /// The ids of `text`, without the tokens that a tokenizer adds around a text (bos). Special tokens inside the text
  /// are recognized. Throws UserError (kData) with the byte if `text` is not UTF-8.
  std::vector<int32_t> Encode(std::string_view text) const;
  /// The same, appended to `ids`.
  void Encode(std::string_view text, std::vector<int32_t>& ids) const;

  /// The bytes of a text. Tokens of single bytes may make invalid UTF-8. Throws UserError (kData) for an id that is not
  /// in the vocabulary.
  std::string Decode(std::span<const int32_t> ids, SpecialTokens special = SpecialTokens::kHide) const;

  /// The highest id + 1.
  int64_t vocab() const { return static_cast<int64_t>(names_.size()); }
  /// The token of an id as written in the file ("Ġthe", "<|endoftext|>"); empty if no token has this id.
  const std::string& Name(int32_t id) const;
  /// The id of a token by its name in the file.
  std::optional<int32_t> Find(std::string_view name) const;

  /// Whether a token has no text, such as <|endoftext|>.
  bool IsSpecial(int32_t id) const { return 0 <= id && id < vocab() && special_[static_cast<size_t>(id)]; }

  /// Offsets in `text`, rising and not 0, at which it can be cut: its parts have the ids of the whole.
  virtual std::vector<size_t> CutsOf(std::string_view text) const {
    (void)text;
    return {};
  }

  /// The tokens that end and begin a document, from the file, or else found by their usual names.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }
  std::optional<int32_t> bos() const { return bos_; }

  /// Whether tokens depend only on the text near them. In a unigram model two segmentations may tie; then rounding of
  /// the probabilities before them decides.
  virtual bool IsLocal() const { return true; }

  /// Settings of the file that have no effect here, in words for the user.
  const std::vector<std::string>& notes() const { return notes_; }

  /// The file itself, and the name under which it is stored: "tokenizer.json" or "tokenizer.model".
  const std::string& bytes() const { return bytes_; }
  const char* file_name() const { return file_name_; }
  /// The companions, by name.
  const std::vector<TokenizerCompanion>& companions() const { return companions_; }
  /// "a, b", for messages.
  std::string CompanionNames() const;
  /// Companions that were found and not used: their names and why.
  const std::vector<std::string>& left_out() const { return left_out_; }

 protected:
  friend class TextStream;
  Tokenizer(std::string bytes, const char* file_name) : bytes_(std::move(bytes)), file_name_(file_name) {}

  /// Appends the ids of valid UTF-8.
  virtual void EncodeValid(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// The text of each id. Sets the vocabulary.
  void SetTokens(std::vector<std::string> names, std::vector<std::string> texts, std::vector<bool> special);
  /// Finds end_of_text and bos by their usual names, unless they are known.
  void FindUsualTokens();

  std::optional<int32_t> end_of_text_, bos_;
  std::vector<std::string> notes_;
  size_t strip_spaces_ = 0;  ///< number of spaces that decoding removes at the start of a text

 private:
  std::string bytes_;
  const char* file_name_;
  std::vector<TokenizerCompanion> companions_;
  std::vector<std::string> left_out_;
  std::vector<std::string> names_, texts_;            ///< by id
  std::vector<bool> special_;                         ///< by id
  std::vector<std::pair<std::string, int32_t>> ids_;  ///< sorted by name
};

/// Decodes token by token, and never returns a part of a UTF-8 character.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kHide)
      : tokenizer_(tokenizer), special_(special), spaces_(tokenizer.strip_spaces_) {}

  /// The text that `id` completes; empty while a character is unfinished. Throws like Tokenizer::Decode.
  std::string Push(int32_t id);
  /// The rest: the bytes of an unfinished character.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  SpecialTokens special_;
  size_t spaces_;  ///< spaces that are still to be removed at the start
  std::string unfinished_;
};

}  // namespace espalier
