// SentencePiece's tokenizer.model, through its library.
#include <sentencepiece_processor.h>

#include <cmath>

#include "espalier/util/error.hpp"
#include "text/charsmap.hpp"
#include "text/formats.hpp"

namespace espalier {
namespace {

constexpr std::string_view kSpace = "\u2581";

/// A piece as text: U+2581 stands for a space.
std::string TextOf(const sentencepiece::SentencePieceProcessor& processor, int id) {
  if (processor.IsUnknown(id)) return " \u2047 ";
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsByte(id)) return std::string(1, static_cast<char>(std::stoi(piece.substr(1), nullptr, 16)));
  std::string text = piece;
  for (size_t at = 0; (at = text.find(kSpace, at)) != text.npos; ++at) text.replace(at, kSpace.size(), " ");
  return text;
}

/// Why the library does not load a model; empty if it does. It also throws the exceptions of its tries.
std::string LoadError(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    return status.ok() ? "" : status.ToString();
  } catch (const std::exception& error) {
    return error.what();
  }
}

class SentencePiece final : public Tokenizer {
 public:
  SentencePiece(const std::string& name, std::string bytes) : Tokenizer(std::move(bytes), "tokenizer.model") {
    CheckCharsmaps(name, this->bytes());
    if (const std::string error = LoadError(processor_, this->bytes()); !error.empty())
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: is neither a tokenizer.json nor a SentencePiece model: {}", name, error));
    const int count = processor_.GetPieceSize();
    std::vector<std::string> names, texts;
    std::vector<bool> special;
    for (int id = 0; id < count; ++id) {
      names.push_back(processor_.IdToPiece(id));
      texts.push_back(TextOf(processor_, id));
      special.push_back(processor_.IsControl(id));
    }
    strip_spaces_ = StripsSpace(count) ? 1 : 0;
    // The library does not report the kind of a model. The scores of a BPE model are the ranks of its merges.
    for (int id = 0; id < count; ++id)
      is_bpe_ = is_bpe_ && std::floor(processor_.GetScore(id)) == processor_.GetScore(id);
    SetTokens(std::move(names), std::move(texts), std::move(special));
    CheckNames(name);
    const auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
    end_of_text_ = known(processor_.eos_id());
    bos_ = known(processor_.bos_id());
    CheckDecoding(name);
  }

  bool IsLocal() const override { return is_bpe_; }

 private:
  void EncodeValid(std::string_view text, std::vector<int32_t>& ids) const override {
    std::vector<int> found;
    if (const auto status = processor_.Encode({text.data(), text.size()}, &found); !status.ok())
      throw UserError(ExitStatus::kData, fmt::format("SentencePiece cannot encode a text: {}", status.ToString()));
    ids.insert(ids.end(), found.begin(), found.end());
  }

  std::string LibraryDecode(const std::vector<int>& ids) const {
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    CHECK(status.ok(), "SentencePiece cannot decode: {}", status.ToString());
    return text;
  }

  /// Whether decoding removes the space that encoding puts before a text: the library does not report it, so this tests
  /// it.
  bool StripsSpace(int count) const {
    for (int id = 0; id < count; ++id)
      if (processor_.IdToPiece(id).starts_with(kSpace) && !processor_.IsControl(id) && !processor_.IsUnknown(id))
        return LibraryDecode({id}) + ' ' == TextOf(processor_, id) || !LibraryDecode({id}).starts_with(' ');
    return false;
  }

  void CheckNames(const std::string& name) const {
    for (int32_t id = 0; id < vocab(); ++id)
      if (const auto first = Find(Name(id)); first && *first != id)
        throw UserError(ExitStatus::kData,
                        fmt::format("{}: \"{}\" is the piece {} and the piece {}", name, Name(id), *first, id));
  }

  /// Models may put spaces after words, or denormalize: then tokens alone do not determine the text.
  void CheckDecoding(const std::string& name) const {
    for (const char* probe : {"Hello world", " a  b", "x1 23,\n\ty.", "\u00e9\u4e2d \U0001f600"}) {
      std::vector<int> ids;
      if (!processor_.Encode(probe, &ids).ok()) continue;
      const std::vector<int32_t> same(ids.begin(), ids.end());
      if (Decode(same) != LibraryDecode(ids))
        throw UserError(ExitStatus::kData,
                        fmt::format("{}: this model decodes \"{}\" as \"{}\", which its pieces do not spell: models "
                                    "that denormalize or have spaces after words are not supported",
                                    name, probe, LibraryDecode(ids)));
    }
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool is_bpe_ = true;
};

}  // namespace

std::shared_ptr<Tokenizer> ReadSentencePiece(const std::string& name, std::string bytes) {
  return std::make_shared<SentencePiece>(name, std::move(bytes));
}

}  // namespace espalier
