#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "espalier/data/batch_loader.hpp"
#include "espalier/data/initial_weights.hpp"
#include "espalier/data/permutation.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// A folder of its own for each test, removed at its end.
class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "espalier-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  /// Paths without the folder.
  std::vector<std::string> Expand(const std::vector<std::string>& patterns) const {
    std::vector<std::string> full, names;
    for (const std::string& p : patterns) full.push_back(Path(p));
    for (const std::string& f : ExpandPaths(full)) names.push_back(f.substr(folder_.size() + 1));
    return names;
  }

  std::string folder_;
};

std::string Message(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

std::vector<int32_t> ReadSample(TokenSource& source, int64_t sample) {
  std::vector<int32_t> out(static_cast<size_t>(source.seq_len()) + 1);
  source.Read(sample, out);
  return out;
}

/// Tokens 1000 + 0, 1, 2, ..., so that a value says its place; may be told to fail or to be slow.
class CountingSource final : public TokenSource {
 public:
  CountingSource(int64_t samples, int64_t seq_len) : samples_(samples), seq_len_(seq_len) {}
  int64_t samples() const override { return samples_; }
  int64_t tokens() const override { return samples_ * seq_len_ + 1; }
  int64_t seq_len() const override { return seq_len_; }
  void Read(int64_t sample, std::span<int32_t> out) override {
    if (reads_.fetch_add(1) == fail_at_) throw UserError(ExitStatus::kData, "f: token 3 is 9");
    std::this_thread::sleep_for(delay_);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(1000 + sample * seq_len_ + int64_t(i));
  }
  int64_t fail_at_ = -1;
  std::chrono::microseconds delay_{0};
  std::atomic<int64_t> reads_{0};

 private:
  int64_t samples_, seq_len_;
};

TEST(InitialWeights, EveryBoxHoldsTheBitsOfTheWhole) {
  const Shape shape = {5, 7, 9};
  std::vector<float> whole(5 * 7 * 9);
  FillNormal(whole.data(), 1234, "w", shape, {{0, 5}, {0, 7}, {0, 9}}, 0.02);
  for (size_t e : {size_t{0}, size_t{100}, whole.size() - 1}) {
    EXPECT_EQ(whole[e], static_cast<float>(0.02 * NormalAt(1234, "w", int64_t(e))));
  }
  const std::vector<Box> boxes = {{{0, 5}, {2, 5}, {0, 9}}, {{1, 4}, {0, 7}, {0, 9}}, {{2, 3}, {3, 4}, {8, 9}},
                                  {{0, 5}, {0, 7}, {4, 9}}, {{1, 5}, {6, 7}, {1, 2}}, {{3, 3}, {0, 7}, {0, 9}}};
  for (const Box& box : boxes) {
    std::vector<float> part(static_cast<size_t>(Volume(ExtentsOf(box))) + 1, 99.0f);
    FillNormal(part.data(), 1234, "w", shape, box, 0.02);
    size_t i = 0;
    for (int64_t a = box[0].begin; a < box[0].end; ++a)
      for (int64_t b = box[1].begin; b < box[1].end; ++b)
        for (int64_t c = box[2].begin; c < box[2].end; ++c, ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), std::bit_cast<uint32_t>(whole[size_t((a * 7 + b) * 9 + c)]));
    EXPECT_EQ(part[i], 99.0f);
  }
}

TEST(InitialWeights, VectorsAndScalars) {
  float x[4];
  FillNormal(x, 1, "v", {7}, {{3, 7}}, 2.0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(x[i], static_cast<float>(2.0 * NormalAt(1, "v", 3 + i)));
  FillNormal(x, 1, "s", {}, {}, 1.0);
  EXPECT_EQ(x[0], static_cast<float>(NormalAt(1, "s", 0)));
  EXPECT_THROW(FillNormal(x, 1, "v", {7}, {{3, 8}}, 1.0), InvariantError);
}

TEST(PermutationTest, IsABijection) {
  for (int64_t n : {1, 2, 3, 5, 13, 64, 65, 1001, 4097}) {
    const Permutation permutation(n, 42, 3);
    std::vector<int> hits(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) ++hits[static_cast<size_t>(permutation(i))];
    EXPECT_EQ(std::count(hits.begin(), hits.end(), 1), n) << n;
  }
}

// Computed with Python's integers from doc/numerics.md.
TEST(PermutationTest, IsThatOfTheDocument) {
  const auto all = [](int64_t epoch) {
    std::vector<int64_t> images;
    for (int64_t i = 0; i < 13; ++i) images.push_back(Permutation(13, 7, epoch)(i));
    return images;
  };
  EXPECT_THAT(all(0), ElementsAre(9, 1, 11, 8, 2, 6, 5, 12, 10, 3, 0, 7, 4));
  EXPECT_THAT(all(1), ElementsAre(0, 2, 7, 3, 1, 11, 5, 4, 8, 6, 12, 9, 10));
}

TEST(PermutationTest, ScattersEvenly) {
  // Of 1001 samples the first 100 positions of each of 200 epochs: every sample comes up about 20 times.
  std::vector<int> hits(1001);
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const Permutation permutation(1001, 5, epoch);
    for (int64_t i = 0; i < 100; ++i) ++hits[static_cast<size_t>(permutation(i))];
  }
  double chi2 = 0;
  for (int h : hits) chi2 += (h - 19.98) * (h - 19.98) / 19.98;
  // Without replacement inside an epoch: mean 1000 * 0.9, standard deviation about 40.
  EXPECT_NEAR(chi2, 900.0, 200.0);
}

TEST(PermutationTest, HandlesLargeCounts) {
  const int64_t n = (int64_t{1} << 40) + 3;
  const Permutation permutation(n, 1, 0);
  EXPECT_NE(permutation(0), permutation(n - 1));
  EXPECT_LT(permutation(n - 1), n);
  EXPECT_THROW(permutation(n), InvariantError);
}

TEST(SampleIndexTest, WrapsByEpoch) {
  EXPECT_EQ(SampleIndex(16, 7, 1, Order::kSequential), 2);
  EXPECT_EQ(SampleIndex(16, 7, 1, Order::kShuffled), Permutation(7, 1, 2)(2));
  EXPECT_THROW(SampleIndex(-1, 7, 1, Order::kSequential), InvariantError);
}

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

// Three folders, each with links to all three: 2^40 paths without a memory of where the walk has been.
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
  EXPECT_THAT(Message([&] { OpenTokenSource("text", files, 2, 256, give_up(2)); }), HasSubstr("ended"));
}

TEST_F(DataTest, EveryUnreadablePathIsNamed) {
  Write("a.txt", "text");
  const std::string message = Message([&] { ExpandPaths({Path("a.txt"), Path("none.txt"), Path("*.bin")}); });
  EXPECT_THAT(message, HasSubstr("none.txt: cannot read: No such file"));
  EXPECT_THAT(message, HasSubstr("*.bin: no file matches"));
  EXPECT_THAT(Message([&] { ExpandPaths({}); }), HasSubstr("empty"));
  EXPECT_THAT(Message([&] { OpenTokenSource("text", {folder_}, 2, 256); }), HasSubstr("is a directory"));
}

TEST_F(DataTest, TextIsBytesWithAZeroBetweenFiles) {
  const std::string b = Write("b", "\xff\x80z"), a = Write("a", "hello"), empty = Write("a0", "");
  // h e l l o 0 0 255 128 z: sorted, the empty file too, the duplicate once.
  const auto source = OpenTokenSource("text", {b, a, Path("a*"), empty}, 3, 256);
  EXPECT_EQ(source->tokens(), 10);
  ASSERT_EQ(source->samples(), 3);
  EXPECT_THAT(ReadSample(*source, 0), ElementsAre('h', 'e', 'l', 'l'));
  EXPECT_THAT(ReadSample(*source, 2), ElementsAre(0, 255, 128, 'z'));
  EXPECT_THAT(ReadSample(*source, 1), ElementsAre('l', 'o', 0, 0));
  EXPECT_THROW(ReadSample(*source, 3), InvariantError);
}

TEST_F(DataTest, TooLittleTextIsRefused) {
  const std::string a = Write("a", "abcd");
  EXPECT_EQ(OpenTokenSource("text", {a}, 3, 256)->samples(), 1);
  const std::string message = Message([&] { OpenTokenSource("text", {a}, 4, 256); });
  EXPECT_THAT(message, HasSubstr("a: 4 tokens in all; one sample needs 5"));
  EXPECT_THAT(Message([&] { OpenTokenSource("text", {a}, 3, 255); }), HasSubstr("vocab >= 256"));
  EXPECT_THAT(Message([&] { OpenTokenSource("hdf5", {a}, 3, 256); }), HasSubstr("\"tokens\""));
}

TEST_F(DataTest, AFileThatShrinksIsReported) {
  const std::string a = Write("a", std::string(100, 'x'));
  const auto source = OpenTokenSource("text", {a}, 9, 256);
  fs::resize_file(a, 35);
  EXPECT_EQ(ReadSample(*source, 2).back(), 'x');
  EXPECT_THAT(Message([&] { ReadSample(*source, 3); }), HasSubstr("a: ends at byte 35"));
  fs::remove(a);
  const auto missing = [&] { OpenTokenSource("text", {a}, 9, 256); };
  EXPECT_THAT(Message(missing), HasSubstr("cannot read"));
}

TEST_F(DataTest, TokenFilesRoundTrip) {
  std::vector<int32_t> low(11), high(6);
  std::iota(low.begin(), low.end(), 65525);
  std::iota(high.begin(), high.end(), 100000);
  WriteTokens(Path("a.tok"), low, 65536, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), high, 128256, TokenWidth::kU32);
  EXPECT_EQ(fs::file_size(Path("a.tok")), 32u + 22u);
  const auto source = OpenTokenSource("tokens", {Path("*.tok")}, 4, 128256);
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
  EXPECT_EQ(OpenTokenSource("tokens", {Path("*.tok")}, 8, 301)->tokens(), 2700);
  EXPECT_THAT(Message([&] { WriteTokens(Path("d"), ids, 300, TokenWidth::kU16); }), HasSubstr("token 777 is 300"));
  EXPECT_THAT(Message([&] { WriteTokens(Path("d"), ids, 70000, TokenWidth::kU16); }), HasSubstr("1 to 65536"));
  EXPECT_THAT(Message([&] { WriteTokens(Path("no/d"), ids, 301, TokenWidth::kU16); }), HasSubstr("cannot write"));
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

// No rank reads the corpus at the start: what is read does not grow with it, and an id out of range is found when it is
// read.
TEST_F(DataTest, MissionDIdsAreCheckedWhenTheyAreRead) {
  std::vector<int32_t> ids(1000, 7);
  WriteTokens(Path("a.tok"), ids, 301, TokenWidth::kU16);
  WriteTokens(Path("b.tok"), {ids.data(), 700}, 301, TokenWidth::kU32);
  std::fstream(Path("b.tok"), std::ios::in | std::ios::out | std::ios::binary).seekp(32 + 4 * 555).write("\x2d\x01", 2);
  const auto source = OpenTokenSource("tokens", {Path("*.tok")}, 9, 301);
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
  const auto source = OpenTokenSource("text", {sparse}, 1000, 256);
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
  const auto source = OpenTokenSource("text", {Path("*")}, kTokens + 1, 256);
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
  const std::string message = Message([&] { OpenTokenSource("tokens", {Path("*.tok")}, 8, 301); });
  EXPECT_THAT(message, HasSubstr("a.tok: its vocabulary is 50257 (byte 16), larger than model.vocab = 301"));
  EXPECT_THAT(message, testing::Not(HasSubstr("b.tok")));
  EXPECT_EQ(OpenTokenSource("tokens", {Path("*.tok")}, 8, 50257)->tokens(), 200);
}

TEST_F(DataTest, H6AFingerprintTellsSizesContentsAndOrder) {
  const auto print = [&](const std::vector<std::string>& paths) {
    return DataFingerprint(*OpenTokenSource("text", paths, 7, 256));
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

// Up to 4 MiB are read whole; of more both ends and 64 blocks.
TEST_F(DataTest, H6AFingerprintSeesEveryByteOfASmallCorpus) {
  std::string bytes(900001, 'x');
  const std::string a = Write("a", bytes);
  Write("b", std::string(70001, 'y'));
  const auto print = [&] { return DataFingerprint(*OpenTokenSource("text", {Path("*")}, 7, 256)); };
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
  const auto source = OpenTokenSource("text", {Path("*")}, 7, 256);
  const int64_t before = BytesRead();
  const auto again = OpenTokenSource("text", {Path("*")}, 7, 256);
  EXPECT_LT(BytesRead() - before, 9 << 20);
  Write("211", std::string(99999, 'x') + 'y');
  const auto changed = OpenTokenSource("text", {Path("*")}, 7, 256);
  for (size_t i = 0; i < kFiles; ++i) {
    EXPECT_EQ(source->files()[i].sample, again->files()[i].sample);
    EXPECT_EQ(source->files()[i].sample == changed->files()[i].sample, i != 211) << i;
  }
}

TEST_F(DataTest, DamagedTokenFilesAreRefused) {
  const std::vector<int32_t> ids(10, 3);
  WriteTokens(Path("a.tok"), ids, 300, TokenWidth::kU16);
  const auto refusal = [&] { return Message([&] { OpenTokenSource("tokens", {Path("a.tok")}, 4, 300); }); };
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

BatchLayout Layout(int64_t microbatches, int64_t rows, Range mine, std::vector<int64_t> positions) {
  return {microbatches, rows, mine, std::move(positions)};
}

TEST(LoadBatchTest, RowsOfStepsAndMicrobatches) {
  CountingSource source(11, 3);
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {0, 3}, AllPositions(3)), 1, batch);
  ASSERT_EQ(batch.microbatches.size(), 2u);
  // Samples 6, 7, 8 and 9, 10, 0: the second epoch begins.
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1018, 1019, 1020, 1021, 1022, 1023, 1024, 1025, 1026));
  EXPECT_THAT(batch.microbatches[1].ids, ElementsAre(1027, 1028, 1029, 1030, 1031, 1032, 1000, 1001, 1002));
  EXPECT_THAT(batch.microbatches[1].targets, ElementsAre(1028, 1029, 1030, 1031, 1032, 1033, 1001, 1002, 1003));
}

TEST(LoadBatchTest, ARankHoldsItsRowsAndPositions) {
  CountingSource source(11, 4);
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {1, 3}, {3, 0}), 0, batch);
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1007, 1004, 1011, 1008));
  EXPECT_THAT(batch.microbatches[0].targets, ElementsAre(1008, 1005, 1012, 1009));
  EXPECT_THAT(batch.microbatches[1].ids, ElementsAre(1019, 1016, 1023, 1020));
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {3, 3}, AllPositions(4)), 0, batch);
  EXPECT_TRUE(batch.microbatches[1].ids.empty());
  EXPECT_THROW(LoadBatch(source, {}, Layout(2, 3, {1, 4}, AllPositions(4)), 0, batch), InvariantError);
  EXPECT_THROW(LoadBatch(source, {}, Layout(2, 3, {1, 3}, {4}), 0, batch), InvariantError);
}

// Two layouts of the same global batch: 4 microbatches of 3 rows on one rank, 2 of 6 on three ranks.
TEST(LoadBatchTest, EveryLayoutSeesTheSameSamples) {
  CountingSource source(101, 5);
  const auto ids_of = [&](int64_t microbatches, int64_t rows, int64_t ranks, int64_t step) {
    std::vector<std::vector<int32_t>> found(static_cast<size_t>(microbatches));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Batch batch;
      const int64_t mine = rows / ranks;
      LoadBatch(source, {9, Order::kShuffled},
                Layout(microbatches, rows, {rank * mine, (rank + 1) * mine}, AllPositions(5)), step, batch);
      for (size_t j = 0; j < found.size(); ++j)
        found[j].insert(found[j].end(), batch.microbatches[j].ids.begin(), batch.microbatches[j].ids.end());
    }
    std::vector<int32_t> ids;
    for (const auto& microbatch : found) ids.insert(ids.end(), microbatch.begin(), microbatch.end());
    return ids;
  };
  for (int64_t step : {0, 7, 8, 9}) {
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(2, 6, 3, step));
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(1, 12, 4, step));
  }
  EXPECT_NE(ids_of(4, 3, 1, 0), ids_of(4, 3, 1, 1));
}

TEST(LoadBatchTest, ValidationIsSequential) {
  CountingSource source(7, 2);
  const Batch batch = ValidationBatch(source, Layout(1, 4, {2, 4}, AllPositions(2)), 1);
  // Positions 6 and 7: the last sample and, again, the first.
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1012, 1013, 1000, 1001));
}

TEST(BatchLoaderTest, GivesEveryStepInOrderFromAnyStart) {
  const BatchLayout layout = Layout(3, 2, {1, 2}, AllPositions(3));
  BatchLoader loader(std::make_unique<CountingSource>(13, 3), {5, Order::kShuffled}, layout, 4);
  CountingSource plain(13, 3);
  for (int64_t step = 4; step < 40; ++step) {
    Batch expected;
    LoadBatch(plain, {5, Order::kShuffled}, layout, step, expected);
    const Batch& batch = loader.Next();
    ASSERT_EQ(batch.step, step);
    for (size_t j = 0; j < 3; ++j) {
      ASSERT_EQ(batch.microbatches[j].ids, expected.microbatches[j].ids);
      ASSERT_EQ(batch.microbatches[j].targets, expected.microbatches[j].targets);
    }
  }
}

TEST(BatchLoaderTest, ABatchStaysWhileTheNextIsRead) {
  auto source = std::make_unique<CountingSource>(50, 2);
  CountingSource& reads = *source;
  BatchLoader loader(std::move(source), {0, Order::kSequential}, Layout(1, 2, {0, 2}, AllPositions(2)), 0);
  const Batch& batch = loader.Next();
  // Two rows a batch: batch 1 is read while batch 0 is in use, and no more than that.
  while (reads.reads_ < 4) std::this_thread::yield();
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1000, 1001, 1002, 1003));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.reads_, 4);
  EXPECT_THAT(loader.Next().microbatches[0].ids, ElementsAre(1004, 1005, 1006, 1007));
  EXPECT_GE(loader.wait_ms(), 0.0);
}

TEST(BatchLoaderTest, EndsWhileReadingAndWhileWaiting) {
  for (int i = 0; i < 20; ++i) {
    auto source = std::make_unique<CountingSource>(50, 2);
    source->delay_ = std::chrono::microseconds(300 * (i % 3));
    BatchLoader loader(std::move(source), {1, Order::kShuffled}, Layout(1, 3, {0, 3}, AllPositions(2)), 0);
    for (int n = 0; n < i % 4; ++n) loader.Next();
  }
}

TEST(BatchLoaderTest, ErrorsReachTheCallerAfterTheGoodBatches) {
  auto source = std::make_unique<CountingSource>(50, 2);
  source->fail_at_ = 5;
  BatchLoader loader(std::move(source), {1, Order::kShuffled}, Layout(1, 2, {0, 2}, AllPositions(2)), 0);
  EXPECT_EQ(loader.Next().step, 0);
  EXPECT_EQ(loader.Next().step, 1);
  EXPECT_THAT(Message([&] { loader.Next(); }), HasSubstr("token 3 is 9"));
  EXPECT_THAT(Message([&] { loader.Next(); }), HasSubstr("token 3 is 9"));
}

}  // namespace
}  // namespace espalier
