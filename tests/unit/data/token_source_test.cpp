// Sources of tokens: patterns of paths, text, token files, fingerprints, damage.
#include "espalier/data/token_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "data_testing.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DataTest, GlobsFollowPython) {
  for (const char* name : {"b.txt", "a.txt", "c.md", ".hidden.txt", "x/d.txt", "x/y/e.txt", "x/.git/f.txt",
                           "x/y/z/g.md", "w1.txt", "w2.txt", "w3.txt", "[odd].txt"}) {
    Write(name, "text");
  }
  EXPECT_THAT(Expand({"*.txt"}), ElementsAre("[odd].txt", "a.txt", "b.txt", "w1.txt", "w2.txt", "w3.txt"));
  EXPECT_THAT(Expand({"**/*.txt"}),
              ElementsAre("[odd].txt", "a.txt", "b.txt", "w1.txt", "w2.txt", "w3.txt", "x/d.txt", "x/y/e.txt"));
  EXPECT_THAT(Expand({"x/**"}), ElementsAre("x/d.txt", "x/y/e.txt", "x/y/z/g.md"));
  EXPECT_THAT(Expand({"x/**/y/*"}), ElementsAre("x/y/e.txt"));
  EXPECT_THAT(Expand({"**/z/*.md"}), ElementsAre("x/y/z/g.md"));
  EXPECT_THAT(Expand({"w[12].txt"}), ElementsAre("w1.txt", "w2.txt"));
  EXPECT_THAT(Expand({"w[!12].txt"}), ElementsAre("w3.txt"));
  EXPECT_THAT(Expand({"?.md"}), ElementsAre("c.md"));
  EXPECT_THAT(Expand({".*.txt"}), ElementsAre(".hidden.txt"));
  EXPECT_THAT(Expand({"x/.git/*"}), ElementsAre("x/.git/f.txt"));
  EXPECT_THAT(Expand({"*/d.txt"}), ElementsAre("x/d.txt"));
  EXPECT_THAT(Expand({"[[]odd].txt"}), ElementsAre("[odd].txt"));
  EXPECT_THAT(Expand({"w2.txt", "w*.txt", "a.txt"}), ElementsAre("a.txt", "w1.txt", "w2.txt", "w3.txt"));
}

TEST_F(DataTest, GlobsFollowLinksButNotInCircles) {
  Write("a/b/t.txt", "text");
  Write("other/u.txt", "text");
  fs::create_directory_symlink(Path("a"), Path("a/b/up"));
  fs::create_directory_symlink(Path("other"), Path("a/side"));
  EXPECT_THAT(Expand({"a/**/*.txt"}), ElementsAre("a/b/t.txt", "a/side/u.txt"));
}

// Three folders, each with links to all three: 2^40 paths unless the walk remembers visited folders.
TEST_F(DataTest, M12AWalkOverLinksBetweenFoldersEnds) {
  for (const char* folder : {"x", "y", "z"}) {
    Write(fmt::format("{}/{}.txt", folder, folder), "text");
    for (const char* to : {"x", "y", "z"})
      fs::create_directory_symlink(Path(to), Path(fmt::format("{}/a-{}", folder, to)));
  }
  EXPECT_THAT(Expand({"**/*.txt"}), ElementsAre("x/x.txt", "y/y.txt", "z/z.txt"));
  EXPECT_THAT(Expand({"z/**/**/*.txt"}), ElementsAre("z/a-x/x.txt", "z/a-y/y.txt", "z/z.txt"));
  EXPECT_THAT(Expand({"y/**"}), ElementsAre("y/a-x/x.txt", "y/a-z/z.txt", "y/y.txt"));
}

// A folder with several paths counts once, by the path without links.
TEST_F(DataTest, M12AFolderWithTwoNamesCountsOnce) {
  Write("real/deep/t.txt", "text");
  fs::create_directory_symlink(Path("real/deep"), Path("a-link"));
  EXPECT_THAT(Expand({"**/*.txt"}), ElementsAre("real/deep/t.txt"));
  EXPECT_THAT(Expand({"*/*.txt"}), ElementsAre("a-link/t.txt"));
}

TEST_F(DataTest, M12AWalkAndAnOpeningCanBeEnded) {
  for (const char* name : {"a.txt", "b/b.txt", "b/c/c.txt"}) Write(name, "some text");
  int looks = 0;
  const auto give_up = [&looks](int most) {
    looks = 0;
    return [&looks, most] {
      if (++looks > most) throw UserError(ExitStatus::kData, "ended");
    };
  };
  EXPECT_THAT(Message([&] { ExpandPaths({Path("**/*.txt")}, give_up(2)); }), HasSubstr("ended"));
  EXPECT_EQ(looks, 3);
  const std::vector<std::string> files = {Path("a.txt"), Path("b/b.txt"), Path("b/c/c.txt")};
  EXPECT_THAT(Message([&] { OpenTokenSource({DataFormat::kText, files, 2, 256}, give_up(2)); }), HasSubstr("ended"));
}

TEST_F(DataTest, EveryUnreadablePathIsNamed) {
  Write("a.txt", "text");
  const std::string message = Message([&] { ExpandPaths({Path("a.txt"), Path("none.txt"), Path("*.bin")}); });
  EXPECT_THAT(message, HasSubstr("none.txt: cannot read: No such file"));
  EXPECT_THAT(message, HasSubstr("*.bin: no file matches"));
  EXPECT_THAT(Message([&] { ExpandPaths({}); }), HasSubstr("empty"));
  EXPECT_THAT(Message([&] { OpenTokenSource({DataFormat::kText, {folder_}, 2, 256}); }), HasSubstr("is a directory"));
}

TEST_F(DataTest, TextIsBytesWithAZeroBetweenFiles) {
  const std::string b = Write("b", "\xff\x80z"), a = Write("a", "hello"), empty = Write("a0", "");
  // h e l l o 0 0 255 128 z: sorted, the empty file too, the duplicate once.
  const auto source = OpenTokenSource({DataFormat::kText, {b, a, Path("a*"), empty}, 3, 256});
  EXPECT_EQ(source->tokens(), 10);
  ASSERT_EQ(source->samples(), 3);
  EXPECT_THAT(ReadSample(*source, 0), ElementsAre('h', 'e', 'l', 'l'));
  EXPECT_THAT(ReadSample(*source, 2), ElementsAre(0, 255, 128, 'z'));
  EXPECT_THAT(ReadSample(*source, 1), ElementsAre('l', 'o', 0, 0));
  EXPECT_THROW(ReadSample(*source, 3), InvariantError);
}

TEST_F(DataTest, ATextIsADocumentAndEndTokensEndMore) {
  const std::vector<std::string> files = {Write("a", "hello"), Write("a0", ""), Write("b", "xyzxx")};
  // h e l l o 0 | 0 | x y z x x
  const auto source = OpenTokenSource({DataFormat::kText, files, 5, 256});
  EXPECT_THAT(ReadDocuments(*source, 0), ElementsAre(0));
  EXPECT_THAT(ReadDocuments(*source, 1), ElementsAre(0, 1, 2));  // 0 0 x y z x
  const auto more = OpenTokenSource({DataFormat::kText, files, 5, 256, 'x'});
  EXPECT_THAT(ReadDocuments(*more, 1), ElementsAre(0, 1, 2, 3));
  const auto zero = OpenTokenSource({DataFormat::kText, files, 11, 256, 0});
  EXPECT_THAT(ReadDocuments(*zero, 0), ElementsAre(0, 6, 7)) << "a file's end and an end token are one end";
  // Ids of token files end documents by themselves.
  WriteTokens(Path("one.tok"), std::vector<int32_t>{7, 9, 7, 7}, 10, TokenWidth::kU16);
  WriteTokens(Path("two.tok"), std::vector<int32_t>{9, 7, 9}, 10, TokenWidth::kU32);
  EXPECT_THAT(ReadDocuments(*OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 6, 10}), 0), ElementsAre(0));
  EXPECT_THAT(ReadDocuments(*OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 6, 10, 9}), 0),
              ElementsAre(0, 2, 5));
}

TEST_F(DataTest, TooLittleTextIsRefused) {
  const std::string a = Write("a", "abcd");
  EXPECT_EQ(OpenTokenSource({DataFormat::kText, {a}, 3, 256})->samples(), 1);
  const std::string message = Message([&] { OpenTokenSource({DataFormat::kText, {a}, 4, 256}); });
  EXPECT_THAT(message, HasSubstr("a: 4 tokens in all; one sample needs 5"));
  EXPECT_THAT(Message([&] { OpenTokenSource({DataFormat::kText, {a}, 3, 255}); }), HasSubstr("vocab >= 256"));
}

TEST_F(DataTest, AFileThatShrinksIsReported) {
  const std::string a = Write("a", std::string(100, 'x'));
  const auto source = OpenTokenSource({DataFormat::kText, {a}, 9, 256});
  fs::resize_file(a, 35);
  EXPECT_EQ(ReadSample(*source, 2).back(), 'x');
  EXPECT_THAT(Message([&] { ReadSample(*source, 3); }), HasSubstr("a: ends at byte 35"));
  fs::remove(a);
  const auto missing = [&] { OpenTokenSource({DataFormat::kText, {a}, 9, 256}); };
  EXPECT_THAT(Message(missing), HasSubstr("cannot read"));
}

TEST_F(DataTest, TokenFilesRoundTrip) {
  std::vector<int32_t> low(11), high(6);
  std::iota(low.begin(), low.end(), 65525);
  std::iota(high.begin(), high.end(), 100000);
  WriteTokens(Path("a.tok"), low, 65536, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), high, 128256, TokenWidth::kU32);
  EXPECT_EQ(fs::file_size(Path("a.tok")), 32u + 22u);
  const auto source = OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 4, 128256});
  EXPECT_EQ(source->tokens(), 17);
  ASSERT_EQ(source->samples(), 4);
  EXPECT_THAT(ReadSample(*source, 2), ElementsAre(65533, 65534, 65535, 100000, 100001));
  EXPECT_THAT(ReadSample(*source, 3), ElementsAre(100001, 100002, 100003, 100004, 100005));
}

TEST_F(DataTest, TokenIdsOutOfRangeAreNotWritten) {
  std::vector<int32_t> ids(1000, 7);
  ids[777] = 300;
  WriteTokens(Path("a.tok"), ids, 301, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), {ids.data(), 700}, 301, TokenWidth::kU16);
  WriteTokens(Path("c.tok"), ids, 301, TokenWidth::kU32);
  EXPECT_EQ(OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 8, 301})->tokens(), 2700);
  EXPECT_THAT(Message([&] { WriteTokens(Path("d"), ids, 300, TokenWidth::kU16); }), HasSubstr("token 777 is 300"));
  EXPECT_THAT(Message([&] { WriteTokens(Path("d"), ids, 70000, TokenWidth::kU16); }), HasSubstr("1 to 65536"));
  EXPECT_THAT(Message([&] { WriteTokens(Path("no/d"), ids, 301, TokenWidth::kU16); }, ExitStatus::kFault),
              HasSubstr("cannot write: No such file"));
}

/// Bytes that this process has read by system calls.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

int64_t OpenDescriptors() { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); }

// No rank reads the corpus at the start: the bytes read do not grow with it, and an id out of range is found when it is
// read.
TEST_F(DataTest, MissionDIdsAreCheckedWhenTheyAreRead) {
  std::vector<int32_t> ids(1000, 7);
  WriteTokens(Path("a.tok"), ids, 301, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), {ids.data(), 700}, 301, TokenWidth::kU32);
  std::fstream(Path("b.tok"), std::ios::in | std::ios::out | std::ios::binary).seekp(32 + 4 * 555).write("\x2d\x01", 2);
  const auto source = OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 9, 301});
  EXPECT_EQ(source->tokens(), 1700);
  EXPECT_THAT(ReadSample(*source, 171), testing::Each(7));  // tokens 1539 to 1548
  EXPECT_THAT(Message([&] { ReadSample(*source, 172); }),
              HasSubstr("b.tok: token 555 (byte 2252) is 301; allowed: 0 to 300"));
  EXPECT_THAT(Message([&] { ReadSample(*source, 172); }), HasSubstr("token 555"));
  EXPECT_THAT(ReadSample(*source, 173), testing::Each(7));
}

TEST_F(DataTest, MissionDAStartReadsABoundedPartOfTheData) {
  constexpr int64_t kBytes = int64_t{5} << 30;
  const std::string sparse = Write("a", "begin");
  fs::resize_file(sparse, kBytes + 3);
  const int64_t before = BytesRead();
  const auto source = OpenTokenSource({DataFormat::kText, {sparse}, 1000, 256});
  const int64_t read = BytesRead() - before;
  EXPECT_EQ(source->tokens(), kBytes + 3);
  EXPECT_GT(read, 1 << 22);
  EXPECT_LT(read, 1 << 23);
  EXPECT_THAT(ReadSample(*source, source->samples() - 1), testing::Each(0));
}

TEST_F(DataTest, MissionDFilesStayOpenUpToALimit) {
  constexpr int kFiles = 150, kTokens = 20;
  for (int i = 0; i < kFiles; ++i) Write(fmt::format("{:03}", i), std::string(kTokens, static_cast<char>(i)));
  const int64_t before = OpenDescriptors();
  const auto source = OpenTokenSource({DataFormat::kText, {Path("*")}, kTokens + 1, 256});
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < kFiles - 1; ++i) {
      const int k = round == 0 ? i : i * 37 % (kFiles - 1);
      const std::vector<int32_t> tokens = ReadSample(*source, k);
      EXPECT_EQ(tokens.front(), k);
      EXPECT_EQ(tokens[kTokens - 1], k);
      EXPECT_EQ(tokens[kTokens], 0);
      EXPECT_EQ(tokens.back(), k + 1);
      ASSERT_LE(OpenDescriptors() - before, 64);
    }
  EXPECT_GT(OpenDescriptors() - before, 0);
  // A file that stays open is read although its name is gone.
  ReadSample(*source, 3);
  fs::remove(Path("003"));
  EXPECT_EQ(ReadSample(*source, 3).front(), 3);
}

TEST_F(DataTest, C9AVocabularyLargerThanTheModelsIsRefused) {
  const std::vector<int32_t> ids(100, 7);
  WriteTokens(Path("a.tok"), ids, 50257, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), ids, 301, TokenWidth::kU16);
  const std::string message = Message([&] { OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 8, 301}); });
  EXPECT_THAT(message, HasSubstr("a.tok: its vocabulary is 50257 (byte 16), larger than model.vocab = 301"));
  EXPECT_THAT(message, testing::Not(HasSubstr("b.tok")));
  EXPECT_EQ(OpenTokenSource({DataFormat::kTokens, {Path("*.tok")}, 8, 50257})->tokens(), 200);
}

TEST_F(DataTest, H6AFingerprintTellsSizesContentsAndOrder) {
  const auto print = [&](const std::vector<std::string>& paths) {
    return OpenTokenSource({DataFormat::kText, paths, 7, 256})->Fingerprint();
  };
  const std::string text = "a text of some length, in the middle of which a letter changes";
  const std::string a = Write("one/a", text), b = Write("one/b", text + "!");
  const uint64_t first = print({a, b});
  EXPECT_EQ(print({a, b}), first);
  fs::copy(Path("one"), Path("two"), fs::copy_options::recursive);
  EXPECT_EQ(print({Path("two/a"), Path("two/b")}), first) << "paths do not count";
  EXPECT_NE(print({a}), first);
  std::string changed = text;
  changed[31] = 'X';
  Write("two/a", changed);
  EXPECT_NE(print({Path("two/*")}), first);
  Write("two/a", text + "!");
  Write("two/b", text);
  EXPECT_NE(print({Path("two/*")}), first);
}

// Files up to 4 MiB are read whole; of larger ones both ends and 64 blocks.
TEST_F(DataTest, H6AFingerprintSeesEveryByteOfASmallCorpus) {
  std::string bytes(900001, 'x');
  const std::string a = Write("a", bytes);
  Write("b", std::string(70001, 'y'));
  const auto print = [&] { return OpenTokenSource({DataFormat::kText, {Path("*")}, 7, 256})->Fingerprint(); };
  const uint64_t first = print();
  for (const size_t at : {size_t{0}, size_t{65535}, size_t{65536}, size_t{500003}, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[at] = 'X';
    Write("a", changed);
    EXPECT_NE(print(), first) << at;
  }
}

TEST_F(DataTest, H6TheEndsOfEveryFileCount) {
  constexpr int kFiles = 300;
  for (int i = 0; i < kFiles; ++i) Write(fmt::format("{:03}", i), std::string(100000, 'x'));
  const auto source = OpenTokenSource({DataFormat::kText, {Path("*")}, 7, 256});
  const int64_t before = BytesRead();
  const auto again = OpenTokenSource({DataFormat::kText, {Path("*")}, 7, 256});
  EXPECT_LT(BytesRead() - before, 9 << 20);
  Write("211", std::string(99999, 'x') + 'y');
  const auto changed = OpenTokenSource({DataFormat::kText, {Path("*")}, 7, 256});
  for (size_t i = 0; i < kFiles; ++i) {
    EXPECT_EQ(source->files()[i].sample, again->files()[i].sample);
    EXPECT_EQ(source->files()[i].sample == changed->files()[i].sample, i != 211) << i;
  }
}

TEST_F(DataTest, DamagedTokenFilesAreRefused) {
  const std::vector<int32_t> ids(10, 3);
  WriteTokens(Path("a.tok"), ids, 300, TokenWidth::kU16);
  const auto refusal = [&] {
    return Message([&] { OpenTokenSource({DataFormat::kTokens, {Path("a.tok")}, 4, 300}); });
  };
  const auto poke = [&](std::streamoff offset, char byte) {
    std::fstream file(Path("a.tok"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(byte);
  };
  fs::resize_file(Path("a.tok"), 51);
  EXPECT_THAT(refusal(), HasSubstr("has 19 bytes of tokens; its header says 10 tokens of 2 bytes"));
  fs::resize_file(Path("a.tok"), 54);
  EXPECT_THAT(refusal(), HasSubstr("22 bytes"));
  fs::resize_file(Path("a.tok"), 52);
  poke(12, 3);
  EXPECT_THAT(refusal(), HasSubstr("3 bytes a token; allowed: 2 or 4"));
  poke(8, 2);
  EXPECT_THAT(refusal(), HasSubstr("version 2"));
  poke(0, 'X');
  EXPECT_THAT(refusal(), HasSubstr("is not a token file"));
  fs::resize_file(Path("a.tok"), 31);
  EXPECT_THAT(refusal(), HasSubstr("31 bytes are too few"));
}

}  // namespace
}  // namespace espalier
