// Hugging Face's tokenizer.json with a BPE model.
#include <mutex>
#include <optional>

#include "espalier/util/error.hpp"
#include "text/added_tokens.hpp"
#include "text/decoder.hpp"
#include "text/formats.hpp"
#include "text/json_reader.hpp"
#include "text/normalizer.hpp"
#include "text/read_bpe.hpp"
#include "text/splitter.hpp"

namespace espalier {
namespace {

std::vector<AddedToken> ReadAddedTokens(const JsonReader& json) {
  std::vector<AddedToken> tokens;
  if (json.IsNull()) return tokens;
  for (const JsonReader& entry : json.Elements()) {
    entry.RequireObject({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<int32_t>(entry["id"].Integer(0, int64_t{1} << 30));
    token.content = entry["content"].Text();
    if (token.content.empty()) entry["content"].Refuse("must not be empty");
    token.single_word = entry["single_word"].BoolOr(false);
    token.lstrip = entry["lstrip"].BoolOr(false);
    token.rstrip = entry["rstrip"].BoolOr(false);
    token.special = entry["special"].BoolOr(false);
    token.normalized = entry["normalized"].BoolOr(!token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// Gives added tokens their ids. Hugging Face counts them up from the size of the vocabulary; a file with other ids is
/// refused, because programs would read it differently.
void AddNames(const JsonReader& json, const std::vector<AddedToken>& added, TokenIds& names) {
  std::unordered_map<int32_t, std::string> by_id;
  for (const auto& [name, id] : names) by_id.emplace(id, name);
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    const auto [name, is_new] = names.emplace(token.content, token.id);
    const auto [id, id_is_new] = by_id.emplace(token.id, token.content);
    if (name->second != token.id || id->second != token.content)
      json.Elements()[i]["id"].Refuse(
          fmt::format("\"{}\" has the id {} and id {} is \"{}\"", token.content, name->second, token.id, id->second));
    if (is_new && token.id > static_cast<int32_t>(8 * names.size() + 1024))
      json.Elements()[i]["id"].Refuse("is far above the number of tokens");
  }
}

/// The tokens before and after a text, if the post-processor adds any.
struct Around {
  std::optional<int32_t> before, after;
};

void ReadTemplate(const JsonReader& json, Around& around) {
  json.RequireObject({"type", "single", "pair", "special_tokens"});
  bool after = false;
  for (const JsonReader& part : json["single"].Elements()) {
    part.RequireObject({"SpecialToken", "Sequence"});
    const JsonReader token = part["SpecialToken"];
    if (token.IsNull()) {
      after = true;
      continue;
    }
    const std::vector<JsonReader> ids = json["special_tokens"][token["id"].Text()]["ids"].Elements();
    if (ids.size() != 1) token["id"].Refuse("must stand for one token in special_tokens");
    const auto id = static_cast<int32_t>(ids[0].Integer(0, int64_t{1} << 30));
    (after ? around.after : around.before) = id;
  }
}

void ReadPostProcessor(const JsonReader& json, Around& around) {
  if (json.IsNull()) return;
  const std::string type = json["type"].Text();
  if (type == "Sequence") {
    for (const JsonReader& part : json["processors"].Elements()) ReadPostProcessor(part, around);
  } else if (type == "TemplateProcessing") {
    ReadTemplate(json, around);
  } else if (type == "RobertaProcessing") {
    const auto id = [&](const char* key) {
      const std::vector<JsonReader> pair = json[key].Elements();
      if (pair.size() != 2) json[key].Refuse("must be a token and its id");
      return static_cast<int32_t>(pair[1].Integer(0, int64_t{1} << 30));
    };
    around = {id("cls"), id("sep")};
  } else if (type != "ByteLevel") {
    json["type"].Refuse("is not supported (supported: TemplateProcessing, RobertaProcessing, ByteLevel, Sequence)");
  }
}

/// The memory that one thread needs to encode.
struct Workspace {
  explicit Workspace(const BpeModel& model) : bpe(model) {}
  BpeEncoder bpe;
  std::vector<Section> sections, parts;
};

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string bytes, const JsonReader& json)
      : Tokenizer(std::move(bytes), "tokenizer.json"),
        normalizer_(ReadNormalizer(json["normalizer"])),
        splitter_(ReadSplitter(json["pre_tokenizer"])) {
    json.RequireObject({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                        "post_processor", "decoder", "model"});
    for (const char* key : {"truncation", "padding"})
      if (!json[key].IsNull()) notes_.push_back(fmt::format("{} of the file is not applied", key));
    NamedBpe bpe = ReadBpe(json["model"], splitter_.bytes, notes_);
    bpe_ = std::move(bpe.model);
    const std::vector<AddedToken> added = ReadAddedTokens(json["added_tokens"]);
    AddNames(json["added_tokens"], added, bpe.names);
    SetAdded(added);
    Name(json, added, bpe.names);
    SetEnds(json["post_processor"]);
  }

 private:
  void EncodeValid(std::string_view text, std::vector<int32_t>& ids) const override {
    std::unique_ptr<Workspace> workspace = Borrow();
    workspace->sections.clear();
    added_->Split(text, workspace->sections);
    for (const Section& section : workspace->sections) {
      if (section.id >= 0) {
        ids.push_back(section.id);
      } else {
        EncodeSection(section.text, section.text.data() == text.data(), *workspace, ids);
      }
    }
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  /// Text from an added token on does not depend on the text before it.
  std::vector<size_t> CutsOf(std::string_view text) const override {
    std::vector<Section> sections;
    added_->Split(text, sections);
    std::vector<size_t> cuts;
    for (const Section& section : sections)
      if (section.id >= 0 && section.text.data() != text.data())
        cuts.push_back(static_cast<size_t>(section.text.data() - text.data()));
    return cuts;
  }

  /// Text between added tokens; `first`: the whole text begins with it.
  void EncodeSection(std::string_view text, bool first, Workspace& workspace, std::vector<int32_t>& ids) const {
    std::string normalized;
    if (!normalizer_.empty()) {
      normalized = text;
      for (const TextChange& change : normalizer_) change(normalized);
      text = normalized;
    }
    workspace.parts.clear();
    normalized_added_->Split(text, workspace.parts);
    for (const Section& part : workspace.parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      Words words{{{part.text, first && part.text.data() == text.data()}}, {}};
      for (const SplitStep& step : splitter_.steps) step(words);
      for (const Word& word : words.list)
        if (!word.text.empty()) workspace.bpe.Encode(word.text, ids);
    }
  }

  std::unique_ptr<Workspace> Borrow() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>(bpe_);
    std::unique_ptr<Workspace> workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }

  void SetAdded(const std::vector<AddedToken>& added) {
    std::vector<AddedToken> plain, normalized;
    for (const AddedToken& token : added) (token.normalized ? normalized : plain).push_back(token);
    for (AddedToken& token : normalized)
      for (const TextChange& change : normalizer_) change(token.content);
    added_ = std::make_unique<AddedTokens>(std::move(plain));
    normalized_added_ = std::make_unique<AddedTokens>(std::move(normalized));
  }

  void Name(const JsonReader& json, const std::vector<AddedToken>& added, const TokenIds& names) {
    int32_t last = -1;
    for (const auto& [name, id] : names) last = std::max(last, id);
    const auto count = static_cast<size_t>(last) + 1;
    std::vector<std::string> by_id(count), texts(count);
    std::vector<bool> special(count, false);
    const Decoder decoder = ReadDecoder(json["decoder"]);
    for (const auto& [name, id] : names) {
      by_id[static_cast<size_t>(id)] = name;
      texts[static_cast<size_t>(id)] = decoder.text_of(name);
    }
    for (const AddedToken& token : added) {
      special[static_cast<size_t>(token.id)] = token.special;
      std::string content = token.content;  // decoded unchanged
      for (size_t i = 0; token.normalized && i < normalizer_.size(); ++i) normalizer_[i](content);
      texts[static_cast<size_t>(token.id)] = decoder.text_of(content);
    }
    strip_spaces_ = decoder.strip_spaces;
    SetTokens(std::move(by_id), std::move(texts), std::move(special));
    if (count == 0) json["model"]["vocab"].Refuse("has no token");
  }

  void SetEnds(const JsonReader& post_processor) {
    Around around;
    ReadPostProcessor(post_processor, around);
    for (const std::optional<int32_t>& id : {around.before, around.after})
      if (id && *id >= vocab()) post_processor.Refuse(fmt::format("there is no token {}", *id));
    bos_ = around.before;
    FindUsualTokens();
    if (!end_of_text_) end_of_text_ = around.after;
  }

  std::vector<TextChange> normalizer_;
  Splitter splitter_;
  BpeModel bpe_;
  std::unique_ptr<AddedTokens> added_, normalized_added_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

std::shared_ptr<Tokenizer> ReadTokenizerJson(const std::string& name, std::string bytes) {
  const nlohmann::json document = ParseDocument(name, bytes);
  return std::make_shared<JsonTokenizer>(std::move(bytes), JsonReader(name, document));
}

}  // namespace espalier
