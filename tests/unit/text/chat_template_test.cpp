// Chat templates: rendered text and marks, which tokens are the assistant's, what is refused and where.
// tests/reference/chat_templates.py compares with Jinja2.
#include "espalier/text/chat_template.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "espalier/text/tokenizer.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

ordered_json Conversation() {
  return ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "ab"}]})");
}

std::vector<std::string> Marked(const RenderedText& text) {
  std::vector<std::string> parts;
  for (const TextSpan& span : text.spans) parts.push_back(text.text.substr(span.begin, span.end - span.begin));
  return parts;
}

std::string Refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

std::string Rendered(const std::string& source) { return ChatTemplate("t", source).Render(Conversation()); }

/// Bytes a, b, c, space and newline, "ab", and two special tokens.
std::shared_ptr<const Tokenizer> SmallTokenizer(std::vector<TokenizerCompanion> companions = {}) {
  const auto special = [](int id, const char* text) {
    return ordered_json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                        {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const ordered_json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {special(6, "<u>"), special(7, "<e>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"Ġ", 3}, {"Ċ", 4}, {"ab", 5}}},
        {"merges", {"a b"}}}}};
  return Tokenizer::FromBytes("t.json", file.dump(), std::move(companions));
}

std::pair<std::vector<int32_t>, std::vector<int>> Encoded(const RenderedText& text, SpanEnds ends) {
  std::vector<int32_t> ids;
  std::vector<uint8_t> marked;
  EncodeMarked(SmallTokenizer().get(), text, ends, ids, marked);
  return {ids, std::vector<int>(marked.begin(), marked.end())};
}

TEST(ChatTemplate, ChatmlMarksTheAssistantAndTheEndOfItsTurn) {
  const auto chatml = ChatTemplate::Load("chatml", nullptr);
  EXPECT_TRUE(chatml->MarksItself());
  const RenderedText text = chatml->RenderMarked(Conversation());
  EXPECT_EQ(text.text,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n");
  EXPECT_THAT(Marked(text), ElementsAre("b<|im_end|>", "ab<|im_end|>"));
  EXPECT_EQ(chatml->Render(Conversation()), text.text);
}

TEST(ChatTemplate, WithoutMarksTheTextOfTheMessagesBeforeTellsWhatTheAssistantSays) {
  const ChatTemplate plain("t",
                           "{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>\n{% endfor %}"
                           "{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_FALSE(plain.MarksItself());
  EXPECT_THAT(Marked(plain.RenderMarked(Conversation())), ElementsAre("b<e>\n", "ab<e>\n"));
  const ChatTemplate forgets("t",
                             "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}"
                             "{% endif %}{% endfor %}");
  EXPECT_THAT(Refusal([&] { forgets.RenderMarked(Conversation()); }),
              testing::AllOf(HasSubstr("t: renders messages 1 to 2 in another way when more follow"),
                             HasSubstr("{% generation %}"), HasSubstr("data.train_on = \"all\"")));
  EXPECT_EQ(forgets.Render(Conversation()), "acab");
}

TEST(ChatTemplate, ReadsConversationsOfSharegptToo) {
  const auto object = ordered_json::parse(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
      {"from": "tool", "value": "c"}]})");
  EXPECT_EQ(ChatTemplate("t", "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}").Render(object),
            "user=a;assistant=b;tool=c;");
}

TEST(ChatTemplate, IsFoundBesideATokenizer) {
  const std::string config = R"({"bos_token": {"content": "<u>"}, "eos_token": "<e>", "pad_token": null,
    "chat_template": [{"name": "tool_use", "template": "x"}, 
      {"name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}"}]})";
  const auto of = [](std::vector<TokenizerCompanion> companions) {
    return ChatTemplate::Load("", SmallTokenizer(std::move(companions)).get());
  };
  EXPECT_EQ(of({{"tokenizer_config.json", config}})->Render(Conversation()), "<u><e>");
  const auto file = of({{"chat_template.jinja", "{{ eos_token }}!"}, {"tokenizer_config.json", config}});
  EXPECT_EQ(file->Render(Conversation()), "<e>!");
  EXPECT_EQ(file->name(), "chat_template.jinja");
  EXPECT_NE(file->identity(), of({{"chat_template.jinja", "{{ eos_token }}!"}})->identity());
  EXPECT_THAT(Refusal([&] { of({}); }), HasSubstr("no chat template is beside data.tokenizer"));
  EXPECT_THAT(Refusal([&] {
                of({{"tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": ""}]})"}});
              }),
              HasSubstr("none of its templates has the name \"default\""));
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_THAT(Refusal([] { ChatTemplate("t", "a\n{% include 'x' %}"); }),
              HasSubstr("t:2: the tag {% include %} is not supported; supported are if, for, set, macro"));
  EXPECT_THAT(Refusal([] { ChatTemplate("t", "a\n\n{{ x "); }), HasSubstr("t:3: a tag without an end"));
  EXPECT_THAT(Refusal([] { ChatTemplate("t", "{% if x %}\n"); }), HasSubstr("{% endif %} is missing"));
  EXPECT_THAT(Refusal([] { Rendered("\n\n{{ messages\n  |sort }}"); }),
              HasSubstr("t:4: the filter sort is not supported"));
  EXPECT_THAT(Refusal([] { Rendered("{{ raise_exception('no system') }}"); }),
              HasSubstr("t:1: the template refuses this conversation: no system"));
  EXPECT_THAT(Refusal([] { Rendered("{{ x.y }}"); }), HasSubstr("t:1: x is undefined"));
  EXPECT_THAT(
      Refusal([] { Rendered("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"); }),
      HasSubstr("the template takes too long"));
  EXPECT_THAT(Refusal([] { Rendered("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"); }),
              HasSubstr("the template calls itself too deep"));
  EXPECT_THAT(Refusal([] { ChatTemplate("t", "\xff"); }), HasSubstr("t: is not UTF-8"));
}

TEST(ChatTemplate, ConversationsAreChecked) {
  const ChatTemplate any("t", "x");
  const auto refusal = [&](const char* object) { return Refusal([&] { any.Render(ordered_json::parse(object)); }); };
  EXPECT_THAT(refusal("{\"text\": \"a\"}"), HasSubstr("has no field \"messages\" (nor \"conversations\")"));
  EXPECT_THAT(refusal("{\"messages\": []}"), HasSubstr("field \"messages\" is no list of messages"));
  EXPECT_THAT(refusal("{\"messages\": [{\"content\": \"a\"}]}"), HasSubstr("has no text \"role\""));
  EXPECT_THAT(refusal("{\"conversations\": [{\"from\": \"gpt\"}]}"), HasSubstr("has no \"value\""));
}

TEST(EncodeMarked, TokensOfASpanAreMarked) {
  // "<u>" | "c" | "a" "b" merged | "<e>" | newline
  const auto [ids, marked] = Encoded({"<u>cab<e>\n<u>a", {{4, 10}}}, SpanEnds::kExact);
  EXPECT_THAT(ids, ElementsAre(6, 2, 5, 7, 4, 6, 0));
  EXPECT_THAT(marked, ElementsAre(0, 0, 1, 1, 1, 0, 0));
  EXPECT_THAT(Encoded({"<u>cab<e>\n<u>a", {{4, 10}}}, SpanEnds::kAtSpecialToken).second,
              ElementsAre(0, 0, 1, 1, 0, 0, 0))
      << "the newline after the end of the turn";
  EXPECT_THAT(Encoded({"<u>ab\n", {{3, 6}}}, SpanEnds::kAtSpecialToken).second, ElementsAre(0, 1, 1))
      << "nothing ends this turn";
}

TEST(EncodeMarked, ATokenOnBothSidesOfAnEdgeIsInTheSpan) {
  EXPECT_THAT(Encoded({"cabc", {{2, 4}}}, SpanEnds::kExact), testing::Pair(ElementsAre(2, 5, 2), ElementsAre(0, 1, 1)));
  EXPECT_THAT(Encoded({"cabc", {{0, 2}}}, SpanEnds::kExact), testing::Pair(ElementsAre(2, 5, 2), ElementsAre(1, 1, 0)));
}

TEST(EncodeMarked, BytesAreTokensWithoutATokenizer) {
  std::vector<int32_t> ids = {9};
  std::vector<uint8_t> marked = {0};
  EncodeMarked(nullptr, {"abc", {{1, 2}}}, SpanEnds::kExact, ids, marked);
  EXPECT_THAT(ids, ElementsAre(9, 'a', 'b', 'c'));
  EXPECT_THAT(marked, ElementsAre(0, 0, 1, 0));
}

}  // namespace
}  // namespace espalier
