// Chat templates: any bytes are refused, as a template or when they render, or give text and spans inside it.
#include <nlohmann/json.hpp>

#include "espalier/text/chat_template.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {
namespace {

/// Limit of one rendering, values included.
constexpr int64_t kMaxBytes = int64_t{1} << 30;

void TryTemplate(const std::string& bytes) {
  static const auto conversation = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a b"},
      {"role": "assistant", "content": "c\n"}, {"role": "user", "content": "d"},
      {"role": "assistant", "content": "e", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}]})");
  Within(kMaxBytes, [&] {
    IsRefused(ExitStatus::kData, [&] {
      const ChatTemplate chat("fuzz", bytes, {{"bos_token", "<s>"}});
      const RenderedText rendered = chat.RenderMarked(conversation);
      ++tally.accepted;
      size_t end = 0;
      for (const TextSpan& span : rendered.spans) {
        Require(span.begin < span.end && span.end <= rendered.text.size(), "a span outside the text");
        Require(span.begin >= end || !chat.MarksItself(), "spans out of order");
        end = span.end;
      }
      Require(chat.Render(conversation) == rendered.text, "another text without marks");
    });
  });
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryTemplate(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
