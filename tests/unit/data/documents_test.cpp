// jsonl, and text cut by a tokenizer: documents, indices, damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "checkpoint_testing.hpp"
#include "data_testing.hpp"
#include "espalier/text/tokenizer.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

/// Tokens: a, b, c, space and newline, "ab", and an end-of-text token.
std::shared_ptr<const Tokenizer> SmallTokenizer() {
  return Tokenizer::FromBytes("t.json", R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 6, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ċ": 4, "ab": 5}, "merges": ["a b"]}})");
}

class DocumentsTest : public DataTest {
 protected:
  DataSettings Settings(const std::string& name, int64_t seq_len = 4) const {
    return {DataFormat::kJsonl, {Path(name)}, seq_len, 256};
  }
  std::vector<std::string> Indices() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().extension() == ".index") names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Number of indices that the ranks made; all ranks agree on it.
  static int64_t Make(const DataSettings& settings, int ranks = 1) {
    std::vector<int64_t> made(static_cast<size_t>(ranks));
    EXPECT_THAT(OnRanks(ranks, [&](World& w) { made[static_cast<size_t>(w.Rank())] = MakeIndices(settings, w); }),
                testing::Each(""));
    EXPECT_THAT(made, testing::Each(made[0]));
    return made[0];
  }
  std::string Refusal(const std::string& text) const {
    Write("d.jsonl", text);
    return Message([&] { OpenTokenSource(Settings("d.jsonl")); });
  }
};

/// All tokens and all documents, sample by sample.
std::pair<std::vector<int32_t>, std::vector<int64_t>> ReadAll(TokenSource& source) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> documents;
  for (int64_t k = source.samples() - 1; k >= 0; --k) {
    Sample sample;
    source.Read(k, sample);
    tokens.insert(tokens.begin(), sample.tokens.begin(), sample.tokens.end() - 1);
    for (const int64_t begin : sample.documents)
      if (begin > 0 && begin < source.seq_len()) documents.push_back(k * source.seq_len() + begin);
  }
  std::ranges::sort(documents);
  return {tokens, documents};
}

TEST_F(DocumentsTest, ALineIsADocumentOfBytesAndAZero) {
  Write("d.jsonl", "{\"text\": \"h\\u00e9\", \"id\": 3}\n\n  \n{\"text\":\"\"}\r\n{\"id\":1,\"text\":\"xyz\"}");
  const auto source = OpenTokenSource(Settings("d.jsonl"));
  EXPECT_EQ(source->tokens(), 9);  // h, two bytes of e, 0 | 0 | x y z 0
  EXPECT_THAT(ReadSample(*source, 0), ElementsAre('h', 0xc3, 0xa9, 0, 0));
  EXPECT_THAT(ReadDocuments(*source, 0), ElementsAre(0, 4));
  EXPECT_THAT(ReadSample(*source, 1), ElementsAre(0, 'x', 'y', 'z', 0));
  EXPECT_THAT(ReadDocuments(*source, 1), ElementsAre(0, 1));
  EXPECT_EQ(source->files().size(), 1u) << "an index is no data";
  EXPECT_EQ(OpenTokenSource({DataFormat::kAuto, {Path("*")}, 4, 256})->tokens(), 9);
}

TEST_F(DocumentsTest, EveryDocumentOfManyBlocksIsWhereItBelongs) {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<int64_t> documents;
  for (int i = 0; i < 3000; ++i) {
    const std::string document(static_cast<size_t>(i * 37 % 301), static_cast<char>('a' + i % 26));
    text += nlohmann::json({{"body", document}, {"n", i}}).dump() + "\n";
    documents.push_back(std::ssize(tokens));
    tokens.insert(tokens.end(), document.begin(), document.end());
    tokens.push_back(0);
  }
  // A line longer than one read.
  text += nlohmann::json({{"body", std::string(700'000, '#')}}).dump() + "\n";
  documents.push_back(std::ssize(tokens));
  tokens.insert(tokens.end(), 700'000, '#');
  tokens.push_back(0);
  Write("many.jsonl", text);
  DataSettings settings = Settings("many.jsonl", 997);
  settings.text_field = "body";
  const auto source = OpenTokenSource(settings);
  ASSERT_EQ(source->tokens(), std::ssize(tokens));
  const auto [read, begins] = ReadAll(*source);
  tokens.resize(read.size());
  EXPECT_TRUE(read == tokens);
  std::erase_if(documents, [](int64_t begin) { return begin % 997 == 0; });
  EXPECT_TRUE(begins == documents);
}

TEST_F(DocumentsTest, ATokenizerCutsLinesAndTexts) {
  std::string text, lines;
  std::vector<int32_t> of_text, of_lines;
  const auto tokenizer = SmallTokenizer();
  for (int i = 0; i < 20'000; ++i) {
    const std::string words = i % 3 == 0 ? "ab ca" : i % 3 == 1 ? "c" : "abab";
    text += words + "\n";
    lines += "{\"text\": \"" + words + "\"}\n";
    tokenizer->Encode(words, of_lines);
    of_lines.push_back(6);
  }
  tokenizer->Encode(text, of_text);
  of_text.push_back(6);
  Write("t.txt", text);
  Write("t.jsonl", lines);
  DataSettings settings{DataFormat::kAuto, {Path("t.txt")}, 100, 7};
  settings.tokenizer = tokenizer;
  for (const auto& [name, ids] : {std::pair{"t.txt", of_text}, {"t.jsonl", of_lines}}) {
    settings.paths = {Path(name)};
    const auto source = OpenTokenSource(settings);
    ASSERT_EQ(source->tokens(), std::ssize(ids)) << name;
    const auto [read, documents] = ReadAll(*source);
    EXPECT_THAT(read, ElementsAreArray(ids.begin(), ids.begin() + std::ssize(read))) << name;
    EXPECT_EQ(documents.empty(), name == std::string("t.txt"));
  }
  settings.vocab = 6;
  EXPECT_THAT(Message([&] { OpenTokenSource(settings); }),
              HasSubstr("its vocabulary is 7, larger than model.vocab = 6"));
}

TEST_F(DocumentsTest, AnIndexIsMadeOnceAndFollowsItsFile) {
  Write("d.jsonl", "{\"text\": \"some text\"}\n");
  EXPECT_EQ(Make(Settings("d.jsonl")), 1);
  EXPECT_EQ(Make(Settings("d.jsonl")), 0);
  ASSERT_EQ(Indices().size(), 1u);
  EXPECT_EQ(OpenTokenSource(Settings("d.jsonl"))->tokens(), 10);
  EXPECT_EQ(OpenTokenSource({DataFormat::kText, {Path("*")}, 4, 256})->files().size(), 1u) << "globs do not see it";
  // Damage is found, and the index is remade.
  const std::string index = Path(Indices()[0]);
  for (const int byte : {3, 9, 33, 41, 57}) {
    std::fstream(index, std::ios::in | std::ios::out | std::ios::binary).seekp(byte).put('\x55');
    EXPECT_EQ(Make(Settings("d.jsonl")), 1) << byte;
  }
  fs::resize_file(index, 70);
  EXPECT_EQ(Make(Settings("d.jsonl")), 1);
  // Other contents, or another field, give another index.
  Write("d.jsonl", "{\"text\": \"some text!\", \"body\": \"b of it\"}\n");
  EXPECT_EQ(OpenTokenSource(Settings("d.jsonl"))->tokens(), 11);
  DataSettings body = Settings("d.jsonl");
  body.text_field = "body";
  EXPECT_EQ(OpenTokenSource(body)->tokens(), 8);
  EXPECT_EQ(Indices().size(), 3u);
}

TEST_F(DocumentsTest, RanksShareTheFiles) {
  for (int i = 0; i < 7; ++i) Write(fmt::format("{}.jsonl", i), "{\"text\": \"some text\"}\n");
  Write("empty.jsonl", "");
  DataSettings settings = Settings("*.jsonl");
  EXPECT_EQ(Make(settings, 3), 8);
  EXPECT_EQ(Make(settings, 2), 0);
  EXPECT_EQ(OpenTokenSource(settings)->tokens(), 70);
  settings.index_dir = Path("elsewhere/deep");
  EXPECT_EQ(Make(settings), 8);
  EXPECT_EQ(std::distance(fs::directory_iterator(Path("elsewhere/deep")), fs::directory_iterator()), 8);
  EXPECT_EQ(OpenTokenSource(settings)->tokens(), 70);
  Write("blocked", "a file");
  settings.index_dir = Path("blocked");
  EXPECT_THAT(Message([&] { OpenTokenSource(settings); }), HasSubstr("data.index_dir names a folder for it"));
  EXPECT_THAT(OnRanks(2, [&](World& world) { MakeIndices(settings, world); }),
              testing::Each(HasSubstr("data.index_dir names a folder for it")));
}

/// Lines of odd lengths: with carriage returns, empty, longer than a block, and one longer than the share of a rank.
/// Appends the expected tokens, with a zero after each text, to `tokens`. The last line has no newline.
std::string OddLines(std::vector<int32_t>& tokens) {
  std::string lines;
  for (int i = 0; i < 900; ++i) {
    const size_t length = i == 300 ? 400'001 : i % 97 == 5 ? 70'003 : static_cast<size_t>(i * 37 % 901);
    const std::string text(length, static_cast<char>('a' + i % 26));
    lines += fmt::format("{{\"text\": \"{}\"}}{}", text, i == 899 ? "" : i % 3 == 0 ? "\r\n" : "\n");
    if (i % 11 == 0) lines += "\n \r\n";
    tokens.insert(tokens.end(), text.begin(), text.end());
    tokens.push_back(0);
  }
  return lines;
}

TEST_F(DocumentsTest, TheIndexIsTheSameForAnyNumberOfRanks) {
  std::vector<int32_t> tokens;
  const std::string lines = OddLines(tokens);
  const DataSettings settings = Settings("odd*.jsonl", 1009);
  std::vector<std::string> texts;
  for (const char* ending : {"", "\n", "\n\n\n", "\r\n  "}) texts.push_back(lines + ending);
  // Ends at a multiple of a block, and one byte before and after.
  const size_t to_end = 32768 - lines.size() % 32768;
  for (const size_t spaces : {to_end - 1, to_end, to_end + 1}) texts.push_back(std::string(spaces, ' ') + lines);
  for (const std::string& text : texts) {
    Write("odd.jsonl", text);
    Write("odd2.jsonl", "{\"text\": \"b\"}");
    std::string alone;
    for (const int ranks : {1, 2, 3, 5, 60}) {
      for (const std::string& index : Indices()) fs::remove(Path(index));
      ASSERT_EQ(Make(settings, ranks), 2);
      std::string bytes;
      for (const std::string& index : Indices()) bytes += Read(index);
      if (ranks == 1) alone = bytes;
      ASSERT_TRUE(bytes == alone) << ranks << " ranks";
    }
    const auto source = OpenTokenSource(settings);
    ASSERT_EQ(source->tokens(), std::ssize(tokens) + 2);
    const auto read = ReadAll(*source).first;
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens.begin()));
  }
}

TEST_F(DocumentsTest, ATokenizedTextHasTheSameIndexForAnyNumberOfRanks) {
  std::string text;
  for (int i = 0; i < 9000; ++i) text += std::string(static_cast<size_t>(i * 13 % 101), "abc "[i % 4]) + "ab\n";
  Write("t.txt", text + std::string(100'000, 'c'));
  DataSettings settings{DataFormat::kText, {Path("t.txt")}, 100, 7};
  settings.tokenizer = SmallTokenizer();
  std::string alone;
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::string& index : Indices()) fs::remove(Path(index));
    ASSERT_EQ(Make(settings, ranks), 1);
    if (ranks == 1) alone = Read(Indices()[0]);
    EXPECT_TRUE(Read(Indices()[0]) == alone) << ranks;
  }
  std::vector<int32_t> ids = SmallTokenizer()->Encode(text + std::string(100'000, 'c'));
  ids.push_back(6);
  EXPECT_EQ(OpenTokenSource(settings)->tokens(), std::ssize(ids)) << "it ends once";
}

TEST_F(DocumentsTest, EveryRankNamesTheLine) {
  std::vector<int32_t> tokens;
  const std::string lines = OddLines(tokens);
  for (const size_t at : {size_t{0}, size_t{200'000}, size_t{700'000}, lines.size()}) {
    const size_t begin = at == lines.size() ? at : at == 0 ? 0 : lines.find('\n', at) + 1;
    Write("d.jsonl",
          lines.substr(0, begin) + (at == lines.size() ? "\n" : "") + "{\"text\": 7}\n" + lines.substr(begin));
    const auto line = std::count(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(begin), '\n') + 1 +
                      (at == lines.size() ? 1 : 0);
    for (const int ranks : {1, 2, 3, 5})
      EXPECT_THAT(OnRanks(ranks, [&](World& world) { MakeIndices(Settings("d.jsonl"), world); }),
                  testing::Each(testing::EndsWith(
                      fmt::format("d.jsonl: line {}: field \"text\" is a number, not a string", line))));
    EXPECT_THAT(Indices(), testing::IsEmpty());
  }
  // The first of several errors is reported.
  Write("d.jsonl", lines + "\n[]\n" + lines + "\n[]\n");
  for (const int ranks : {1, 2, 3, 5})
    EXPECT_THAT(OnRanks(ranks, [&](World& world) { MakeIndices(Settings("d.jsonl"), world); }),
                testing::Each(
                    testing::EndsWith(fmt::format("line {}: is no JSON object", std::ranges::count(lines, '\n') + 2))));
}

TEST_F(DocumentsTest, ErrorsNameFileAndLine) {
  const std::string good = "{\"text\": \"some text\"}\n";
  EXPECT_THAT(Refusal(good + good + "{\"text\": 3}\n"),
              HasSubstr("d.jsonl: line 3: field \"text\" is a number, not a string"));
  EXPECT_THAT(Refusal(good + "{\"body\": \"x\"}"),
              HasSubstr("d.jsonl: line 2: has no field \"text\" (data.text_field)"));
  EXPECT_THAT(Refusal(good + "\n[1]\n"), HasSubstr("d.jsonl: line 3: is no JSON object"));
  EXPECT_THAT(Refusal(good + "{\"text\": \"x\"\n"), HasSubstr("d.jsonl: line 2 is no JSON object: "));
  EXPECT_THAT(Refusal("{\"text\": \"\xff\xfe\"}\n"), HasSubstr("d.jsonl: line 1 is no JSON object: "));
  EXPECT_THAT(Indices(), testing::IsEmpty());
  EXPECT_THAT(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "nothing is left over";
  EXPECT_THAT(Refusal("{\"text\": \"x\"}\n"), HasSubstr("2 tokens in all"));
}

TEST_F(DocumentsTest, AFileThatChangesLaterIsReported) {
  Write("d.jsonl", "{\"text\": \"some text\"}\n");
  const auto source = OpenTokenSource(Settings("d.jsonl"));
  Write("d.jsonl", "{\"text\": \"sometext\"} \n");
  EXPECT_THAT(Message([&] { ReadSample(*source, 0); }), HasSubstr("has it changed since the start?"));
}

}  // namespace
}  // namespace espalier
