// Tokenizers: ids by hand for a small vocabulary, patterns where PCRE2 and Oniguruma differ, decoding of unfinished
// characters, and what is refused. tests/reference compares with Hugging Face's library.
#include "espalier/text/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"
#include "text/pattern.hpp"

namespace espalier {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// Tokens: the bytes a, b, c, space (Ġ), newline (Ċ) and the two bytes of é (Ã ©), and three merges.
json Small() {
  return json::parse(R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 10, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 11, "content": "<word>", "single_word": true, "lstrip": true, "rstrip": false, "normalized": true,
       "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ċ": 4, "Ã": 5, "©": 6, "ab": 7, "Ġab": 8, "bc": 9},
      "merges": ["a b", ["Ġ", "ab"], "b c"]}})");
}

std::shared_ptr<const Tokenizer> Make(const json& file) { return Tokenizer::FromBytes("t.json", file.dump()); }

std::string Refusal(const json& file) {
  try {
    Make(file);
    return "";
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
}

TEST(Tokenizer, MergesTheSmallestRankFirst) {
  const auto tokenizer = Make(Small());
  EXPECT_THAT(tokenizer->Encode("abc"), ElementsAre(7, 2));  // ab before bc
  EXPECT_THAT(tokenizer->Encode("cbc"), ElementsAre(2, 9));
  EXPECT_THAT(tokenizer->Encode("ab ab"), ElementsAre(7, 8));  // the space belongs to its word
  EXPECT_THAT(tokenizer->Encode("a\n\nb"), ElementsAre(0, 4, 4, 1));
  EXPECT_THAT(tokenizer->Encode("\u00e9"), ElementsAre(5, 6));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->vocab(), 12);
  EXPECT_EQ(tokenizer->Name(8), "Ġab");
  EXPECT_EQ(tokenizer->Find("bc"), 9);
  EXPECT_EQ(tokenizer->Find("bcd"), std::nullopt);
  EXPECT_EQ(tokenizer->end_of_text(), 10);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
}

TEST(Tokenizer, FindsAddedTokensFirst) {
  const auto tokenizer = Make(Small());
  EXPECT_THAT(tokenizer->Encode("a<|endoftext|>b"), ElementsAre(0, 10, 1));
  EXPECT_THAT(tokenizer->Encode("a \n<word> b"), ElementsAre(0, 11, 3, 1));  // takes the white space before it
  EXPECT_THAT(tokenizer->Encode("<word>").size(), 1);
  EXPECT_EQ(tokenizer->Encode("a<word>").size(), 1);  // is not a separate word, and its characters have no tokens
}

TEST(Tokenizer, SaysThatBytesAreDropped) {
  EXPECT_THAT(Make(Small())->notes(), ElementsAre(HasSubstr("249 of 256 bytes have no token")));
}

TEST(Tokenizer, AWordThatIsATokenNeedsNoMerges) {
  json file = Small();
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["cab"] = 12;
  EXPECT_THAT(Make(file)->Encode("cab"), ElementsAre(12));
  file["model"]["ignore_merges"] = false;
  EXPECT_THAT(Make(file)->Encode("cab"), ElementsAre(2, 7));
}

TEST(Tokenizer, DecodesWholeCharactersOnly) {
  const auto tokenizer = Make(Small());
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{7, 8, 10, 5, 6}), "ab ab\u00e9");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{7, 10}, SpecialTokens::kShow), "ab<|endoftext|>");
  TextStream stream(*tokenizer);
  EXPECT_EQ(stream.Push(5), "");
  EXPECT_EQ(stream.Push(6), "\u00e9");
  EXPECT_EQ(stream.Push(5), "");
  EXPECT_EQ(stream.Finish(), "\xc3");
  EXPECT_THROW(tokenizer->Decode(std::vector<int32_t>{12}), UserError);
}

TEST(Tokenizer, FallsBackToBytesAndUnknownTokens) {
  const auto file = json::parse(R"({"added_tokens": [], "pre_tokenizer": null,
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "_": 1, "a": 2, "_a": 3, "<0xC3>": 4, "<0xA9>": 5}, "merges": [["_", "a"]]}})");
  const auto tokenizer = Make(file);
  EXPECT_THAT(tokenizer->Encode("a a\u00e9"), ElementsAre(3, 3, 4, 5));
  EXPECT_THAT(tokenizer->Encode("xyza"), ElementsAre(1, 0, 2));  // neighbours are fused
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3, 3, 4, 5}), "a a\u00e9");
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const auto with = [](const char* place, const json& value) {
    json file = Small();
    file[json::json_pointer(place)] = value;
    return Refusal(file);
  };
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("model.type = \"WordPiece\": is not supported"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout = 0.1"));
  EXPECT_THAT(with("/model/novelty", 1), HasSubstr("model.novelty = 1: is not supported"));
  EXPECT_THAT(with("/model/merges/1", "a x"), HasSubstr("model.merges[1] = \"a x\": model.vocab has no token \"x\""));
  EXPECT_THAT(with("/model/vocab/b", 0), HasSubstr("another token has this id"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Punctuation"), HasSubstr("pre_tokenizer.type = \"Punctuation\""));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer.type = \"Lowercase\""));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder.type"));
  EXPECT_THAT(with("/added_tokens/0/id", 3), HasSubstr("added_tokens[0].id"));
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(with("/pre_tokenizer", split), HasSubstr("pre_tokenizer.pattern.Regex = \"\\\\w+\": is not supported"));
  EXPECT_THROW(Tokenizer::FromBytes("t", "\x01\x02 no model"), UserError);
  EXPECT_THROW(Tokenizer::FromBytes("t", ""), UserError);
  EXPECT_THROW(Tokenizer::FromBytes("t", "{\"model\": "), UserError);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  try {
    Make(Small())->Encode("ab\xff");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("byte 2 is 0xff"));
  }
}

std::vector<std::string> Matches(const char* pattern, std::string_view text) {
  std::vector<Part> parts;
  Pattern(pattern).Split(text, parts);
  std::vector<std::string> matches;
  for (const Part& part : parts)
    if (part.matches) matches.emplace_back(part.text);
  return matches;
}

TEST(Pattern, MeansWhatOnigurumaMeans) {
  EXPECT_THAT(Matches("\\s+", "a\u0085\u3000b\u180ec\v"), ElementsAre("\u0085\u3000", "\v"));  // U+180E is not a space
  EXPECT_THAT(Matches("[^\\s]+", "a\u0085b\u180e"), ElementsAre("a", "b\u180e"));
  EXPECT_THAT(Matches("\\v", "\n\v"), ElementsAre("\v"));
  EXPECT_THAT(Matches("\\p{Han}+", "\u4e2d\u3001\u6587"), ElementsAre("\u4e2d", "\u6587"));  // U+3001 has several
                                                                                             // scripts
  EXPECT_THAT(Matches("\\u0041\\x{42}", "AB"), ElementsAre("AB"));
  EXPECT_THAT(Matches("(?i:'s)", "'S'\u017f"), ElementsAre("'S", "'\u017f"));
  EXPECT_THAT(Matches("\\s+(?!\\S)|\\s+", "a   b  "), ElementsAre("  ", " ", "  "));
  EXPECT_THAT(Matches("x*", "axb"), ElementsAre("x"));  // an empty match cuts, but is not a part
  for (const char* refused : {"\\w", "\\bx", "^x", "x$", "[a&&b]", "[[a]]", "(?<=x)y", "(?i)x", "\\h", "x{2}+", "[\\S]",
                              "\\1", "\\p{script=Han}"})
    EXPECT_THROW(Pattern{refused}, std::invalid_argument) << refused;
}

TEST(Pattern, LongRunsNeedNoLongStack) {
  EXPECT_THAT(Matches("\\s+(?!\\S)|\\s+", std::string(3000000, ' ') + "x").size(), 2);
  EXPECT_THAT(Matches("(?:a|b)+", std::string(300000, 'a')).size(), 1);
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(FindBadUtf8("plain text, \u00e9\u4e2d\U0001f600"), std::nullopt);
  EXPECT_EQ(FindBadUtf8("0123456789\xc0\x80"), 10);  // overlong
  EXPECT_EQ(FindBadUtf8("a\xed\xa0\x80"), 1);        // a surrogate
  EXPECT_EQ(FindBadUtf8("\xf4\x90\x80\x80"), 0);     // above U+10FFFF
  EXPECT_EQ(FindBadUtf8("ab\xe4\xb8"), 2);           // ends too early
  EXPECT_EQ(UnfinishedBytes("ab\xe4\xb8"), 2);
  EXPECT_EQ(UnfinishedBytes("ab\xe4\xb8\xad"), 0);
  EXPECT_EQ(UnfinishedBytes("ab\xff"), 0);
  EXPECT_EQ(UnfinishedBytes("\xb8"), 0);
}

}  // namespace
}  // namespace espalier
