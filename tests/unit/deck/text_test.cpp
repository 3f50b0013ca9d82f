// Decks as text and as files: TOML, damage, includes, encodings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Strings = std::vector<std::string>;

TEST_F(DeckFiles, C7OverridesThatOthersReplaceAreNamed) {
  const LoadedDeck loaded =
      LoadDeck(Write("deck.toml", kSmall), {"run.steps=2", "run.steps=3", "run.seed=1", "run.seed=1"});
  EXPECT_EQ(loaded.deck.run.steps, 3);
  EXPECT_THAT(SettingsWithoutEffect(loaded),
              ElementsAre("command line: run.steps=2 has no effect: run.steps=3 comes later"));
}

TEST_F(DeckFiles, C8DecksAreUtf8) {
  const std::string text = std::string("\xef\xbb\xbf# gr\xc3\xbc\xc3\x9f Zq00000c3\n") + kSmall +
                           "[report]\nevery_steps = 2 # \xe2\x82\xac\n";
  const LoadedDeck loaded = LoadDeck(Write("utf8.toml", text), {});
  EXPECT_EQ(loaded.deck.report.every_steps, 2);
  EXPECT_EQ(ParseDeck(std::string(kSmall) + "[checkpoint]\nkeep = 2\n[guard]\n", "small").deck.checkpoint.keep, 2);
  std::string named(kSmall);
  named.replace(named.find("/tmp/a.txt"), 10, "/tmp/\xc3\xa4 Zq00000 \xe4\xbd\xa0.txt");
  EXPECT_THAT(ParseDeck(named, "small").deck.data.paths, ElementsAre("/tmp/\xc3\xa4 Zq00000 \xe4\xbd\xa0.txt"));
  EXPECT_THAT(ErrorsOfText("[r\xc3\xbcn]\nx = \"\xc3\xa4\"\n")[0],
              HasSubstr("small:1: [r\xc3\xbcn]: unknown section (did you mean [run]?)"));
  EXPECT_THAT(ErrorsOfText("[run]\nsteps = \"\xc3\xa4\"\n")[0],
              HasSubstr("small:2: run.steps = \"\xc3\xa4\": must be an integer"));
}

TEST_F(DeckFiles, AFifoIsNotWaitedFor) {
  const std::string fifo = (folder_ / "fifo.toml").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string deck = Write("deck.toml", "include = [\"fifo.toml\"]\n");
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(deck); }),
              ElementsAre(deck + ":1: include " + fifo + ": is not a file but a pipe"));
}

TEST_F(DeckFiles, ADeckWithoutANameGivesNoFolder) {
  const std::string deck = Write("...toml", kSmall);
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(deck); }), ElementsAre(deck + ": run.dir = \"\": must name a folder"));
  EXPECT_EQ(LoadDeck(deck, {"run.dir=there"}).deck.run.dir, "there");
}

TEST_F(DeckFiles, TheEffectiveDeckIsNoLargerThanADeckMayBe) {
  std::string paths = "paths = [";
  for (int i = 0; i < 20000; ++i) paths += fmt::format("\"{}\",", i);
  std::string text(kSmall);
  text.replace(text.find("paths"), std::string::npos, paths + "]\n");
  fs::create_directories(folder_ / std::string(100, 'x'));
  const std::string deck = Write(std::string(100, 'x') + "/deck.toml", text);
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(deck); }),
              ElementsAre(HasSubstr("(globs in data.paths are shorter than lists)")));
}

TEST(Errors, B3EffectiveDecksOfEarlierVersionsAreRead) {
  const std::string of_0_3_0 = "[overlap]\ninterleave = false\n[report]\ntensorboard = false\ntrace = \"\"\n";
  EXPECT_EQ(EffectiveDeck(ParseDeck(std::string(kSmall) + of_0_3_0, "small").deck), EffectiveDeck(Small()));
}

struct TextCase {
  const char* text;
  Strings messages;
};

TEST(Errors, MalformedTexts) {
  const TextCase cases[] = {
      {"[run\nsteps = 3\n", {"small:1: not valid TOML"}},
      {"[run]\nsteps = \nseed = -1\n", {"small:2: not valid TOML", "small:3: run.seed = -1: out of range"}},
      {"[run]\nsteps = 3\nsteps = 4\n",
       {"small:3: not valid TOML: Error while parsing key-value pair: cannot redefine"}},
      {"[run]\nsteps = 1e999\n", {"small:2:"}},
      {"[run]\nsteps = 99999999999999999999\n", {"small:2: not valid TOML"}},
      {"[run]\nsteps = 12:00:00\n", {"small:2: run.steps = 12:00:00: must be an integer"}},
      {"[run]\ndir = \"a\nb\"\n", {"small:2: not valid TOML", "small:3: not valid TOML"}},
      {"[run]\ndir = \"gr\xc3\"\n", {"small:2: byte 0xc3 begins no UTF-8 character: decks are UTF-8 text"}},
      {"[run]\ndir = \"a\x01\"\n", {"small:2: byte 0x01 is a control character: decks are UTF-8 text"}},
      {"[runn]\nsteps = 3\n[model]\nfamily = 3\n",
       {"small:1: [runn]: unknown section (did you mean [run]?)", "small:4:"}},
      {"[[run]]\nsteps = 3\n", {"small:1: run = [ { steps = 3 } ]: must be a section, [run]"}},
      {"[run]\nsteps = [[0.0078125, inf, []], {a = -0.25, b.c = {}}]\n",
       {"small:2: run.steps = [ [ 0.0078125, inf, [] ], { a = -0.25, b = { c = {} } } ]: must be an integer"}},
      {"[run.steps]\nx = 3\n", {"small:1: run.steps = {...}: must be an integer"}},
      {"[run.sub]\nx = 3\n", {"small:1: run.sub = {...}: unknown key"}},
      {"run = 3\n", {"small:1: run = 3: must be a section, [run]"}},
      {"steps = 3\n", {"small:1: steps = 3: unknown key (did you mean run.steps?)"}},
      {"include = [\"a.toml\"]\n", {"small:1: include: only a deck in a file can include others"}},
      {"[model]\ninclude = [\"a\"]\n", {"small:2: model.include = [ \"a\" ]: unknown key"}},
  };
  for (const TextCase& c : cases) {
    Strings errors = ErrorsOfText(c.text);
    std::erase_if(errors, [](const std::string& m) { return m.find(": missing: ") != m.npos; });
    ASSERT_EQ(errors.size(), c.messages.size()) << c.text << testing::PrintToString(errors);
    for (size_t i = 0; i < errors.size(); ++i) EXPECT_THAT(errors[i], HasSubstr(c.messages[i])) << c.text;
  }
}

TEST(Errors, AMisspeltOrBrokenKeyIsNotMissingToo) {
  std::string text(kSmall);
  text.replace(text.find("layers = 5"), 10, "layers = ");
  text.replace(text.find("dim = 48"), 8, "dimm = 48");
  const Strings errors = ErrorsOfText(text);
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_THAT(errors[0], HasSubstr("small:6: not valid TOML"));
  EXPECT_EQ(errors[1], "small:7: model.dimm = 48: unknown key (did you mean model.dim?)");
}

TEST(Errors, DamagedTextsNeverPassSilentlyNorCrash) {
  // Every prefix and every single damaged byte gives a deck or a list of located errors.
  const std::string text(kSmall);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const std::string& damaged :
         {text.substr(0, i), text.substr(0, i) + "=" + text.substr(i + 1),
          text.substr(0, i) + "\"" + text.substr(i + 1), text.substr(0, i) + text.substr(i + 1)}) {
      const Strings errors = ErrorsOfText(damaged);
      for (const std::string& error : errors) EXPECT_THAT(error, testing::StartsWith("small:")) << damaged;
    }
    const bool paths_are_there = i + 1 == text.size();  // all but the last line end
    EXPECT_EQ(ErrorsOfText(text.substr(0, i)).empty(), paths_are_there) << i;
  }
}

TEST(Errors, DeepNestingIsRefused) {
  const std::string deep = "x = " + std::string(100000, '[') + "\n";
  EXPECT_THAT(ErrorsOfText(deep), testing::Contains(HasSubstr("small:1: not valid TOML")));
}

TEST(OverrideText, BytesBeyondAsciiPassTheTomlLibrary) {
  for (const std::string text : {"Zq\xc3\xa4Z\xe2\x80\x83",
                                 "ZqZqq\xc3\xa4"
                                 "41",
                                 "\xf0\x9f\x8c\xb3"})
    for (const std::string quote : {"", "'", "\""}) EXPECT_EQ(Small({"run.dir=" + quote + text + quote}).run.dir, text);
}

std::string Dotted(int names) {
  std::string key = "a";
  while (--names > 0) key += ".a";
  return key;
}

TEST(Errors, LongKeysAreRefusedBeforeTheyNest) {
  // Texts before the key; the last is in a multi-line string that another error turns into a separate line.
  for (const std::string before : {"", "[", "x = {", "x = [{y = \"\"\"z\"\"\"\"\", ", "x = {y = '\\', z = \"\\\"\", ",
                                   "\"#.=\".", "x = 1 # \"\n"}) {
    const std::string text = before + Dotted(100000) + " = 1";
    const std::string place = before.ends_with('\n') ? "small:2" : "small:1";
    EXPECT_THAT(ErrorsOfText(text), ElementsAre(place + ": not valid TOML: a key of more than 8 names")) << before;
  }
  EXPECT_THAT(ErrorsOfText("x = \"\"\"\n" + Dotted(100000) + " = 1 # \\q\n\"\"\""),
              testing::Contains(HasSubstr("small:2: not valid TOML")));
  EXPECT_THAT(Errors({"run.steps={" + Dotted(100000) + " = 1}"}),
              ElementsAre(HasSubstr("not valid TOML: a key of more than 8 names")));
}

TEST(Errors, StringsAndListsMayHoldPoints) {
  const std::string many = "x = [\"" + Dotted(1000) + "\", '" + Dotted(1000) +
                           "', 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] # " + Dotted(1000) + "\n";
  EXPECT_THAT(ErrorsOfText(many), testing::Each(testing::Not(HasSubstr("names"))));
  EXPECT_THAT(ErrorsOfText(Dotted(8) + " = 1\n"), testing::Each(testing::Not(HasSubstr("names"))));
}

TEST_F(DeckFiles, IncludesComeFirstInTheirOrder) {
  Write("base.toml", std::string(kSmall) + "[lr]\nwarmup_steps = 3\n");
  Write("sub/more.toml", "[lr]\nwarmup_steps = 4\ndecay = \"linear\"\n[data]\npaths = [\"b.txt\", \"../c/*.txt\"]\n");
  const std::string path =
      Write("top.toml", "include = [\"base.toml\", \"sub/more.toml\"]\n[lr]\ndecay = \"constant\"\n");
  const LoadedDeck loaded = LoadDeck(path, {"run.seed=5"});
  EXPECT_EQ(loaded.deck.name, "top");
  EXPECT_EQ(loaded.deck.lr.warmup_steps, 4);
  EXPECT_EQ(loaded.deck.lr.decay, Decay::kConstant);
  EXPECT_EQ(loaded.deck.model.layers, 5);
  EXPECT_THAT(loaded.deck.data.paths, ElementsAre((folder_ / "sub/b.txt").string(), (folder_ / "c/*.txt").string()));
  EXPECT_EQ(loaded.origins.at("lr.warmup_steps"), (folder_ / "sub/more.toml").string() + ":2");
  EXPECT_EQ(loaded.origins.at("lr.decay"), path + ":3");
  EXPECT_EQ(loaded.origins.at("model.layers"), (folder_ / "base.toml").string() + ":6");
  EXPECT_EQ(loaded.origins.at("run.seed"), "command line");
  EXPECT_EQ(loaded.origins.at("run.threads"), "default");
  EXPECT_EQ(loaded.origins.at("run.dir"), "from \"runs/<deck name>\"");
}

TEST_F(DeckFiles, BrokenIncludes) {
  const std::string a = (folder_ / "a.toml").string(), b = (folder_ / "b.toml").string();
  Write("a.toml", "include = [\"b.toml\"]\n");
  Write("b.toml", "\ninclude = [\"sub/../a.toml\", \"none.toml\", \"sub\"]\n");
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(a); }),
              ElementsAre(b + ":2: include " + a + ": includes itself in a circle",
                          b + ":2: include " + (folder_ / "none.toml").string() + ": no such file",
                          b + ":2: include " + (folder_ / "sub").string() + ": is a folder, not a deck"));
  const std::string c = Write("c.toml", "include = \"b.toml\"\n");
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(c); }),
              ElementsAre(c + ":1: include = \"b.toml\": must be a list of strings, such as [\"base.toml\"]"));
}

TEST_F(DeckFiles, ADeckMayBeIncludedTwiceButNotForEver) {
  Write("base.toml", kSmall);
  Write("left.toml", "include = [\"base.toml\"]\n");
  Write("right.toml", "include = [\"base.toml\"]\n");
  EXPECT_EQ(LoadDeck(Write("top.toml", "include = [\"left.toml\", \"right.toml\"]\n")).deck.model.dim, 48);
  for (int i = 0; i < 20; ++i)
    Write(fmt::format("d{}.toml", i), fmt::format("include = [\"d{0}.toml\", \"d{0}.toml\"]\n", i + 1));
  Write("d20.toml", kSmall);
  const Strings errors = ErrorsOf([&] { LoadDeck((folder_ / "d0.toml").string()); });
  EXPECT_THAT(errors, testing::Contains(HasSubstr("more than 64 includes, or deeper than 16")));
}

TEST_F(DeckFiles, UnreadableDecks) {
  const std::string none = (folder_ / "none.toml").string();
  EXPECT_THAT(
      ErrorsOf([&] { LoadDeck(none, {"run.steps=0"}); }),
      ElementsAre(none + ": no such file", "command line: run.steps=0: out of range (allowed: 1 to 2147483647)"));
  const std::string large = Write("large.toml", std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(ErrorsOf([&] { LoadDeck(large); }),
              ElementsAre(large + ": has 1048577 bytes, and a deck has at most 1048576"));
}

}  // namespace
}  // namespace espalier
