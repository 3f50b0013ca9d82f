// Chat templates: turn conversations into text and mark the parts that the assistant says. A template is a Jinja2
// program, as Hugging Face's tokenizers have; doc/finetune.md lists the supported parts of Jinja2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

class Tokenizer;

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

/// A text and parts of it, in rising order.
struct RenderedText {
  std::string text;
  std::vector<TextSpan> spans;
};

/// A template and the special tokens of its tokenizer. Immutable: any number of threads may share it. Unsupported
/// constructs throw UserError (kData) with the template's name and line.
class ChatTemplate {
 public:
  /// `tokens`: names such as "bos_token" and their texts.
  ChatTemplate(std::string name, std::string source, std::vector<std::pair<std::string, std::string>> tokens = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// "chatml", a file, or, if `choice` is empty, the tokenizer's own: chat_template.jinja in its folder, else the
  /// chat_template of tokenizer_config.json. `tokenizer` may be null.
  static std::shared_ptr<const ChatTemplate> Load(const std::string& choice, const Tokenizer* tokenizer);

  /// The text of an object with "messages" ({"role", "content"}) or "conversations" ({"from", "value"}).
  std::string Render(const nlohmann::ordered_json& object) const;
  /// The same, with the spans that the assistant says: the output of {% generation %} blocks, or, if the template has
  /// none, the text that an assistant's message adds to the messages before it.
  RenderedText RenderMarked(const nlohmann::ordered_json& object) const;
  /// Whether the template has {% generation %} blocks.
  bool MarksItself() const { return marks_itself_; }

  const std::string& name() const { return name_; }
  /// Differs for templates that render differently.
  const std::string& identity() const { return identity_; }

 private:
  struct Program;
  struct Messages;
  RenderedText Evaluate(const Messages& messages, size_t count, bool prompts) const;

  std::string name_, identity_;
  std::vector<std::pair<std::string, std::string>> tokens_;
  std::unique_ptr<const Program> program_;
  bool marks_itself_ = false;
};

/// Which tokens the end of a span includes: exact, or without the blanks after the special token that ends a turn.
enum class SpanEnds : uint8_t { kExact, kAtSpecialToken };

/// Appends the ids of a text, and for each id 1 if it overlaps a span, else 0. Without a tokenizer bytes are ids.
void EncodeMarked(const Tokenizer* tokenizer, const RenderedText& text, SpanEnds ends, std::vector<int32_t>& ids,
                  std::vector<uint8_t>& marked);

}  // namespace espalier
