#include "espalier/text/chat_template.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "espalier/text/tokenizer.hpp"
#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "text/json_reader.hpp"
#include "text/template/evaluate.hpp"

namespace espalier {
namespace {

/// ChatML. The assistant's text and the end of its turn are trained.
constexpr std::string_view kChatml =
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' -}}\n"
    "{%- if message.role == 'assistant' -%}\n"
    "{%- generation -%}{{- message.content + '<|im_end|>' -}}{%- endgeneration -%}\n"
    "{%- else -%}\n"
    "{{- message.content + '<|im_end|>' -}}\n"
    "{%- endif -%}\n"
    "{{- '\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

constexpr FileKind kTemplateFile = {"chat template", kMaxCompanionBytes,
                                    "data.chat_template is a file with a Jinja2 template, or \"chatml\""};

[[noreturn]] void RefuseTemplate(const std::string& name, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", name, what));
}

/// Runs `work`; errors get the template's name and line.
template <typename Work>
auto InTemplate(const std::string& name, Work work) {
  try {
    return work();
  } catch (const jinja::TemplateError& error) {
    RefuseTemplate(error.line > 0 ? fmt::format("{}:{}", name, error.line) : name, error.what);
  }
}

bool HasGeneration(const std::vector<jinja::Statement>& statements) {
  return std::ranges::any_of(statements, [](const jinja::Statement& s) {
    return s.kind == jinja::StatementKind::kGeneration || HasGeneration(s.body) || HasGeneration(s.otherwise);
  });
}

// A companion file of a tokenizer.

const TokenizerCompanion* Companion(const Tokenizer& tokenizer, std::string_view name) {
  const auto found = std::ranges::find(tokenizer.companions(), name, &TokenizerCompanion::name);
  return found == tokenizer.companions().end() ? nullptr : &*found;
}

/// A special token is a text, or an object with its content.
std::optional<std::string> TokenText(const JsonReader& json) {
  if (json.IsNull()) return std::nullopt;
  return json.value().is_object() ? json["content"].Text() : json.Text();
}

std::vector<std::pair<std::string, std::string>> SpecialTokensOf(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const TokenizerCompanion* companion = Companion(tokenizer, file);
    if (companion == nullptr || !tokens.empty()) continue;
    const nlohmann::json document = ParseDocument(companion->name, companion->bytes);
    const JsonReader json(companion->name, document);
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
      if (const std::optional<std::string> text = TokenText(json[name])) tokens.emplace_back(name, *text);
  }
  return tokens;
}

/// tokenizer_config.json has one template, or several with names.
std::optional<std::string> TemplateOfConfig(const TokenizerCompanion& config) {
  const nlohmann::json document = ParseDocument(config.name, config.bytes);
  const JsonReader chosen = JsonReader(config.name, document)["chat_template"];
  if (chosen.IsNull()) return std::nullopt;
  if (chosen.value().is_string()) return chosen.Text();
  for (const JsonReader& entry : chosen.Elements())
    if (entry["name"].Text() == "default") return entry["template"].Text();
  chosen.Refuse("none of its templates has the name \"default\"");
}

std::pair<std::string, std::string> TemplateBeside(const Tokenizer& tokenizer) {
  if (const TokenizerCompanion* file = Companion(tokenizer, "chat_template.jinja")) return {file->name, file->bytes};
  if (const TokenizerCompanion* config = Companion(tokenizer, "tokenizer_config.json"))
    if (std::optional<std::string> source = TemplateOfConfig(*config))
      return {"tokenizer_config.json: chat_template", *std::move(source)};
  throw UserError(ExitStatus::kData,
                  "no chat template is beside data.tokenizer (chat_template.jinja, or chat_template in "
                  "tokenizer_config.json): set data.chat_template to a file, or to \"chatml\"");
}

// Conversations.

/// Converts messages to the form that templates expect.
nlohmann::ordered_json MessagesOf(const nlohmann::ordered_json& object) {
  const auto refuse = [](const std::string& what) { throw UserError(ExitStatus::kData, what); };
  const bool shared = !object.contains("messages") && object.contains("conversations");
  const char* field = shared ? "conversations" : "messages";
  if (!object.contains(field)) refuse("has no field \"messages\" (nor \"conversations\")");
  nlohmann::ordered_json messages = object[field];
  if (!messages.is_array() || messages.empty()) refuse(fmt::format("field \"{}\" is no list of messages", field));
  const char* role = shared ? "from" : "role";
  for (nlohmann::ordered_json& message : messages) {
    if (!message.is_object() || !message.contains(role) || !message[role].is_string())
      refuse(fmt::format("a message of \"{}\" has no text \"{}\"", field, role));
    if (!shared) continue;
    if (!message.contains("value")) refuse("a message of \"conversations\" has no \"value\"");
    const std::string from = message["from"];
    message = {{"role", from == "human" ? "user" : from == "gpt" ? "assistant" : from}, {"content", message["value"]}};
  }
  return messages;
}

}  // namespace

struct ChatTemplate::Program {
  std::vector<jinja::Statement> statements;
};

struct ChatTemplate::Messages {
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  ///< null: none
};

ChatTemplate::ChatTemplate(std::string name, std::string source,
                           std::vector<std::pair<std::string, std::string>> tokens)
    : name_(std::move(name)), tokens_(std::move(tokens)) {
  if (FindBadUtf8(source)) RefuseTemplate(name_, "is not UTF-8");
  program_ = InTemplate(name_, [&] { return std::make_unique<const Program>(Program{jinja::Parse(source)}); });
  marks_itself_ = HasGeneration(program_->statements);
  identity_ = source;
  for (const auto& [token, text] : tokens_) identity_ += fmt::format("\n{} {} {}", token, text.size(), text);
}

ChatTemplate::~ChatTemplate() = default;

std::shared_ptr<const ChatTemplate> ChatTemplate::Load(const std::string& choice, const Tokenizer* tokenizer) {
  auto tokens = tokenizer != nullptr ? SpecialTokensOf(*tokenizer) : decltype(tokens_)();
  std::pair<std::string, std::string> named;
  if (choice == "chatml")
    named = {"chatml", std::string(kChatml)};
  else if (!choice.empty())
    named = {choice, ReadFile(choice, kTemplateFile)};
  else if (tokenizer != nullptr)
    named = TemplateBeside(*tokenizer);
  else
    throw UserError(ExitStatus::kData, "without data.tokenizer there is no chat template: set data.chat_template");
  return std::make_shared<const ChatTemplate>(named.first, named.second, std::move(tokens));
}

/// The first `count` messages; `prompts`: followed by the prompt for the assistant.
RenderedText ChatTemplate::Evaluate(const Messages& messages, size_t count, bool prompts) const {
  return InTemplate(name_, [&] {
    std::vector<std::pair<std::string, jinja::Value>> variables;
    for (const auto& [token, text] : tokens_) variables.emplace_back(token, jinja::Value{text});
    std::vector<jinja::Value> first;
    for (size_t i = 0; i < count; ++i) first.push_back(jinja::FromJson(messages.messages[i]));
    variables.emplace_back("messages", jinja::MakeList(std::move(first)));
    variables.emplace_back("tools", jinja::FromJson(messages.tools));
    variables.emplace_back("documents", jinja::Value{jinja::None{}});
    variables.emplace_back("add_generation_prompt", jinja::Value{prompts});
    return jinja::Evaluate(program_->statements, std::move(variables));
  });
}

std::string ChatTemplate::Render(const nlohmann::ordered_json& object) const {
  const Messages all{MessagesOf(object), object.value("tools", nlohmann::ordered_json())};
  return Evaluate(all, all.messages.size(), false).text;
}

RenderedText ChatTemplate::RenderMarked(const nlohmann::ordered_json& object) const {
  const Messages all{MessagesOf(object), object.value("tools", nlohmann::ordered_json())};
  RenderedText whole = Evaluate(all, all.messages.size(), false);
  if (marks_itself_) return whole;
  const auto prefix = [&](size_t count, bool prompts) {
    const std::string text = Evaluate(all, count, prompts).text;
    if (whole.text.starts_with(text)) return text.size();
    RefuseTemplate(name_, fmt::format("renders messages 1 to {} in another way when more follow, so that the words of "
                                      "the assistant cannot be found in the text: mark them with {{% generation %}} in "
                                      "a copy of the template (data.chat_template = FILE), or set data.chat_template = "
                                      "\"chatml\", or data.train_on = \"all\"",
                                      count));
  };
  for (size_t i = 0; i < all.messages.size(); ++i) {
    if (all.messages[i]["role"] != "assistant") continue;
    const TextSpan span{prefix(i, true), i + 1 < all.messages.size() ? prefix(i + 1, false) : whole.text.size()};
    if (span.begin < span.end) whole.spans.push_back(span);
  }
  return whole;
}

// Tokens.

namespace {

/// How the tokens of a part of a text relate to an offset.
struct Crossing {
  size_t before = 0;   ///< tokens that are before the offset
  size_t through = 0;  ///< the same, plus a token on both sides, if any
};

Crossing CrossingAt(const Tokenizer& tokenizer, std::string_view before, const std::vector<int32_t>& ids) {
  const std::vector<int32_t> alone = tokenizer.Encode(before);
  const auto same = static_cast<size_t>(std::ranges::mismatch(alone, ids).in1 - alone.begin());
  return {same, std::min(same + (same < alone.size() ? 1 : 0), ids.size())};
}

/// `end` without tokens of blanks, if a special token precedes them.
size_t EndAtSpecialToken(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t begin, size_t end) {
  const auto is_blank = [&](int32_t id) {
    return !tokenizer.IsSpecial(id) && tokenizer.Decode({&id, 1}).find_first_not_of(" \t\r\n") == std::string::npos;
  };
  size_t last = end;
  while (last > begin && is_blank(ids[last - 1])) --last;
  return last > begin && tokenizer.IsSpecial(ids[last - 1]) ? last : end;
}

/// Encodes part by part, and records which tokens are at the ends of spans.
class MarkedEncoder {
 public:
  MarkedEncoder(const Tokenizer& tokenizer, const RenderedText& text, std::vector<int32_t>& ids)
      : tokenizer_(tokenizer), text_(text), ids_(ids), spans_(text.spans.size(), {ids.size(), ids.size()}) {}

  /// Returns, for each span, its first token and the one after its last.
  std::vector<TextSpan> Run() {
    const std::string_view text = text_.text;
    size_t begin = 0;
    for (const size_t end : tokenizer_.CutsOf(text)) Part(std::exchange(begin, end), end);
    Part(begin, text.size());
    return std::move(spans_);
  }

 private:
  void Part(size_t begin, size_t end) {
    const std::string_view part = std::string_view(text_.text).substr(begin, end - begin);
    const std::vector<int32_t> ids = tokenizer_.Encode(part);
    const auto crossing = [&](size_t offset) {
      return offset >= end ? Crossing{ids.size(), ids.size()}
                           : CrossingAt(tokenizer_, part.substr(0, offset - begin), ids);
    };
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (text_.spans[i].begin >= begin && text_.spans[i].begin <= end)
        spans_[i].begin = ids_.size() + crossing(text_.spans[i].begin).before;
      if (text_.spans[i].end > begin && text_.spans[i].end <= end)
        spans_[i].end = ids_.size() + crossing(text_.spans[i].end).through;
    }
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  const Tokenizer& tokenizer_;
  const RenderedText& text_;
  std::vector<int32_t>& ids_;
  std::vector<TextSpan> spans_;
};

void EncodeBytes(const RenderedText& text, std::vector<int32_t>& ids, std::vector<uint8_t>& marked) {
  const size_t first = marked.size();
  for (const char c : text.text) ids.push_back(static_cast<uint8_t>(c));
  marked.resize(ids.size());
  for (const TextSpan& span : text.spans)
    std::fill(marked.begin() + static_cast<std::ptrdiff_t>(first + span.begin),
              marked.begin() + static_cast<std::ptrdiff_t>(first + span.end), uint8_t{1});
}

}  // namespace

void EncodeMarked(const Tokenizer* tokenizer, const RenderedText& text, SpanEnds ends, std::vector<int32_t>& ids,
                  std::vector<uint8_t>& marked) {
  CHECK(ids.size() == marked.size(), "{} ids, {} marks", ids.size(), marked.size());
  if (tokenizer == nullptr) return EncodeBytes(text, ids, marked);
  const std::vector<TextSpan> spans = MarkedEncoder(*tokenizer, text, ids).Run();
  marked.resize(ids.size());
  for (const TextSpan& span : spans) {
    const size_t end = ends == SpanEnds::kExact ? span.end : EndAtSpecialToken(*tokenizer, ids, span.begin, span.end);
    std::fill(marked.begin() + static_cast<std::ptrdiff_t>(span.begin),
              marked.begin() + static_cast<std::ptrdiff_t>(std::max(span.begin, end)), uint8_t{1});
  }
}

}  // namespace espalier
