// Decks: text in; values, origins or the whole list of mistakes out.
#include "espalier/deck/deck.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "espalier/deck/compare.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/deck/time_limit.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Strings = std::vector<std::string>;

constexpr const char* kSmall = R"(
[run]
steps = 20
[model]
family = "llama"
layers = 5
dim = 48
heads = 6
kv_heads = 2
ffn_dim = 88
vocab = 260
seq_len = 24
[batch]
global = 12
micro = 3
[optimizer]
lr = 1e-3
[data]
paths = ["/tmp/a.txt"]
)";

Strings MistakesOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDeck);
    return error.messages();
  }
  return {};
}

/// Mistakes of the small deck with overrides.
Strings Mistakes(const Strings& overrides) {
  return MistakesOf([&] { ParseDeck(kSmall, "small", overrides); });
}

Deck Small(const Strings& overrides = {}) { return ParseDeck(kSmall, "small", overrides).deck; }

Strings MistakesOfText(const std::string& text) {
  return MistakesOf([&] { ParseDeck(text, "small"); });
}

/// A folder of its own for each test.
class DeckFiles : public testing::Test {
 protected:
  DeckFiles() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / fmt::format("espalier_deck_{}_{}", info->name(), ::getpid());
    fs::create_directories(folder_ / "sub");
  }
  ~DeckFiles() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  fs::path folder_;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The schema.

TEST(Schema, EveryKeyHasAKnownSectionAndASentence) {
  Strings sections;
  for (const DeckSection& section : DeckSections()) sections.emplace_back(section.name);
  for (const DeckKey& key : DeckSchema()) {
    EXPECT_THAT(sections, testing::Contains(std::string(key.section))) << key.FullName();
    EXPECT_EQ(FindDeckKey(key.FullName()), &key) << "the name is taken twice";
    EXPECT_TRUE(key.sentence.ends_with(".") || key.sentence.ends_with(")")) << key.FullName();
  }
}

TEST(Schema, EveryKeyHasAFieldOfItsOwn) {
  // Each key set alone to another value must be the only one that reads back differently.
  const Deck base = Small();
  for (const DeckKey& changed : DeckSchema()) {
    Deck deck = base;
    const DeckValue values[] = {
        false, int64_t{987654}, 0.123456, "other", std::vector<int64_t>{9, 8}, Strings{"x", "y"}};
    const std::vector<std::string_view>& choices = changed.allowed.choices;
    if (choices.size() == 1) continue;
    DeckValue value = choices.empty() ? values[changed.ValueIndex()] : std::string(choices.back());
    if (value == Get(base, changed)) value = choices.empty() ? DeckValue(true) : std::string(choices.front());
    Set(deck, changed, value);
    for (const DeckKey& key : DeckSchema())
      EXPECT_EQ(Get(deck, key) == Get(base, key), &key != &changed) << changed.FullName() << " and " << key.FullName();
  }
}

TEST(Schema, DefaultsOfTheContract) {
  const Deck d = Small();
  EXPECT_EQ(d.name, "small");
  EXPECT_EQ(d.run.seed, 1234);
  EXPECT_EQ(d.run.dir, "runs/small");
  EXPECT_EQ(d.model.norm_eps, 1e-5);
  EXPECT_EQ(d.model.rope_theta, 500000.0);
  EXPECT_FALSE(d.model.tie_embeddings);
  EXPECT_EQ(d.parallel.dp_shard, -1);
  EXPECT_EQ(d.parallel.zero, 3);
  EXPECT_EQ(d.pipeline.schedule, ScheduleKind::k1F1B);
  EXPECT_EQ(d.precision.compute, Dtype::kBf16);
  EXPECT_EQ(d.optimizer.beta2, 0.95);
  EXPECT_EQ(d.optimizer.weight_decay, 0.1);
  EXPECT_EQ(d.lr.min_ratio, 0.1);
  EXPECT_EQ(d.checkpoint.keep, 3);
  EXPECT_EQ(d.checkpoint.restart, Restart::kAuto);
  EXPECT_TRUE(d.checkpoint.asynchronous);
  EXPECT_TRUE(d.overlap.tensor);
  EXPECT_EQ(d.overlap.prefetch, 1);
  EXPECT_EQ(d.recompute.mode, RecomputeMode::kNone);
  EXPECT_EQ(d.parallel.reduce, ReduceFrequency::kStep);
}

TEST(Schema, DerivedDefaultsFollowTheirKeys) {
  const LoadedDeck loaded =
      ParseDeck(kSmall, "small", {"run.steps=50", "lr.warmup_steps=7", "batch.global=24", "run.dir=\"\\u0041\""});
  EXPECT_EQ(loaded.deck.lr.decay_steps, 43);
  EXPECT_EQ(loaded.deck.data.validate_sequences, 24);
  EXPECT_EQ(loaded.deck.run.dir, "A");
  EXPECT_EQ(loaded.origins.at("lr.decay_steps"), "from run.steps - lr.warmup_steps");
  EXPECT_EQ(Small({"lr.warmup_steps=30"}).lr.decay_steps, 1);
  std::string no_kv(kSmall);
  no_kv.replace(no_kv.find("kv_heads = 2"), 12, "");
  EXPECT_EQ(ParseDeck(no_kv, "small", {"model.heads=8"}).deck.model.kv_heads, 8);
}

// Mistakes.

TEST(Mistakes, SixAtOnce) {
  const std::string path = fs::path(SOURCE_ROOT) / "tests/deck/six_mistakes.toml";
  const Strings mistakes = MistakesOf([&] { LoadDeck(path); });
  EXPECT_THAT(
      mistakes,
      testing::UnorderedElementsAre(
          path + ":3: run.stepz = 20: unknown key (did you mean run.steps?)",
          path + ":4: run.dir = 7: must be a string",
          path + ":10: model.heads = 7: must divide model.dim = 128 (allowed: 1, 2, 4, 8, 16, 32, 64)",
          path + ": model.ffn_dim: missing: every deck must set it to an integer (allowed: 1 to 2147483647)",
          path + ":19: precision.compute = \"fp23\": unknown (did you mean fp32?) (allowed: \"bf16\", \"fp32\")",
          path + ":23: optimizer.beta2 = 1.0: out of range (allowed: 0 to 0.9999999)"));
}

TEST(Mistakes, MissingKeysAreAllNamed) {
  const Strings mistakes = MistakesOfText("");
  Strings required;
  for (const DeckKey& key : DeckSchema())
    if (std::holds_alternative<Required>(key.fallback)) required.push_back("small: " + key.FullName() + ": missing");
  ASSERT_EQ(mistakes.size(), required.size());
  for (size_t i = 0; i < required.size(); ++i) EXPECT_THAT(mistakes[i], HasSubstr(required[i]));
  EXPECT_THAT(required, SizeIs(11));
}

struct OverrideCase {
  const char* text;
  const char* message;  ///< behind "command line: "; empty: accepted
};

/// In ASCII: test reports are XML, which cannot hold every byte.
void PrintTo(const OverrideCase& c, std::ostream* out) {
  for (const char* p = c.text; *p != '\0'; ++p) *out << (*p >= ' ' && *p <= '~' ? *p : '?');
}

class Overrides : public testing::TestWithParam<OverrideCase> {};

TEST_P(Overrides, OneMessage) {
  const auto& [text, message] = GetParam();
  const Strings mistakes = Mistakes({text});
  if (*message == '\0') {
    EXPECT_THAT(mistakes, IsEmpty());
    return;
  }
  ASSERT_THAT(mistakes, SizeIs(1));
  EXPECT_EQ(mistakes[0], std::string("command line: ") + message);
}

INSTANTIATE_TEST_SUITE_P(
    Names, Overrides,
    testing::Values(OverrideCase{"run.stepz=3", "run.stepz=3: unknown key (did you mean run.steps?)"},
                    OverrideCase{"steps=3", "steps=3: unknown key (did you mean run.steps?)"},
                    OverrideCase{"modle.heads=3", "modle.heads=3: unknown key (did you mean model.heads?)"},
                    OverrideCase{"model.tp=2", "model.tp=2: unknown key (did you mean parallel.tp?)"},
                    OverrideCase{"model.hedas=2", "model.hedas=2: unknown key (did you mean model.heads?)"},
                    OverrideCase{"model=3", "model=3: must be a section, [model]"},
                    OverrideCase{"run.steps", "run.steps: must be key=value, such as run.steps=20"},
                    OverrideCase{"run.steps=", "run.steps=: no value (an empty string is \"\")"},
                    OverrideCase{"precision.what=3", "precision.what=3: unknown key ([precision] has compute)"},
                    OverrideCase{"include=[\"a\"]", "include=[\"a\"]: only decks can include others"},
                    OverrideCase{" run.steps = 30 ", ""}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, Overrides,
    testing::Values(
        OverrideCase{"run.steps=3.0", "run.steps=3.0: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=1e3", "run.steps=1e3: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=many", "run.steps=many: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=0", "run.steps=0: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=-5", "run.steps=-5: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=2147483648", "run.steps=2147483648: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=2147483647", ""}, OverrideCase{"run.steps=0x10", ""},
        OverrideCase{"run.steps=1_000", ""}, OverrideCase{"run.steps=+7", ""},
        OverrideCase{"run.steps=007", "run.steps=007: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=true", "run.steps=true: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=[3]", "run.steps=[3]: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps={a=3}", "run.steps={a=3}: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=1979-05-27", "run.steps=1979-05-27: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.seed=9223372036854775807", ""},
        OverrideCase{"run.seed=9223372036854775808",
                     "run.seed=9223372036854775808: must be an integer (allowed: >= 0)"},
        OverrideCase{"run.seed=-0", ""}, OverrideCase{"optimizer.lr=1", ""}, OverrideCase{"optimizer.lr=-0.0", ""},
        OverrideCase{"optimizer.lr=inf", "optimizer.lr=inf: must be finite (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.lr=nan", "optimizer.lr=nan: must be finite (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.lr=-1e-9", "optimizer.lr=-1e-9: out of range (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.eps=0", "optimizer.eps=0: out of range (allowed: 1.18e-38 to 3.4e+38)"},
        OverrideCase{"optimizer.beta1=1", "optimizer.beta1=1: out of range (allowed: 0 to 0.9999999)"},
        OverrideCase{"optimizer.beta1=-0.1", "optimizer.beta1=-0.1: out of range (allowed: 0 to 0.9999999)"},
        OverrideCase{"lr.min_ratio=1.5", "lr.min_ratio=1.5: out of range (allowed: 0 to 1)"},
        OverrideCase{"parallel.zero=4", "parallel.zero=4: out of range (allowed: 1 to 3)"},
        OverrideCase{"model.seq_len=1", "model.seq_len=1: out of range (allowed: 2 to 2147483647)"}));

INSTANTIATE_TEST_SUITE_P(
    Texts, Overrides,
    testing::Values(
        OverrideCase{"run.dir=runs/a b", ""}, OverrideCase{"run.dir=\"\"", "run.dir = \"\": must name a folder"},
        OverrideCase{"run.time_limit=01:30:00", ""}, OverrideCase{"run.time_limit=\"100:00:01\"", ""},
        OverrideCase{"run.time_limit=\"\"", ""},
        OverrideCase{"run.time_limit=90x",
                     "run.time_limit = \"90x\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"run.time_limit=\"00:60:00\"",
                     "run.time_limit = \"00:60:00\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"run.time_limit=\"00:00:00\"",
                     "run.time_limit = \"00:00:00\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"run.stop_margin_s=30", ""}, OverrideCase{"run.stop_margin_s=0", ""},
        OverrideCase{"run.stop_margin_s=-1", ""},
        OverrideCase{"run.stop_margin_s=-0.5",
                     "run.stop_margin_s = -0.5: must be a number of seconds, or -1 (allowed: -1, >= 0)"},
        OverrideCase{"run.dir=2024-run", ""}, OverrideCase{"run.dir=7", ""}, OverrideCase{"run.time_limit=90", ""},
        OverrideCase{"run.dir='  '", "run.dir = \"  \": must name a folder, not blanks"},
        OverrideCase{"run.dir='x", "run.dir='x: not valid TOML: Error while parsing string: encountered end-of-file"},
        OverrideCase{"run.dir=a\nb", "an argument: is not UTF-8 without control characters"},
        OverrideCase{"run.dir=\xff", "an argument: is not UTF-8 without control characters"},
        OverrideCase{"run.dir=\"a\\u0000b\"", "run.dir=\"a\\u0000b\": must be UTF-8 without control characters"},
        OverrideCase{"run.dir=h\xc3\xa4user", ""},
        OverrideCase{"run.dir={h\xc3\xa4=1}", "run.dir={h\xc3\xa4=1}: must be a string"},
        OverrideCase{"data.shuffle=yes", "data.shuffle=yes: must be true or false"},
        OverrideCase{"data.shuffle=1", "data.shuffle=1: must be true or false"}, OverrideCase{"data.shuffle=false", ""},
        OverrideCase{"precision.compute=bf61",
                     "precision.compute=bf61: unknown (did you mean bf16?) (allowed: \"bf16\", \"fp32\")"},
        OverrideCase{"precision.compute=BF16",
                     "precision.compute=BF16: unknown (did you mean bf16?) (allowed: \"bf16\", \"fp32\")"},
        OverrideCase{"data.paths=a.txt", "data.paths=a.txt: must be a list of strings"},
        OverrideCase{"data.paths=[\"a\", 3]", "data.paths=[\"a\", 3]: must be a list of strings"},
        OverrideCase{"data.paths=[[\"a\"]]", "data.paths=[[\"a\"]]: must be a list of strings"},
        OverrideCase{"data.paths=[]", "data.paths = []: must name at least one file or glob"},
        OverrideCase{"data.paths=[\"\"]", "data.paths=[\"\"]: a path is empty"},
        OverrideCase{"pipeline.split=[2, 3.0]",
                     "pipeline.split=[2, 3.0]: must be a list of integers (allowed: 1 to 2147483647)"},
        OverrideCase{"pipeline.split=[0]", "pipeline.split=[0]: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"pipeline.split=[5]", ""}));

INSTANTIATE_TEST_SUITE_P(
    Relations, Overrides,
    testing::Values(
        OverrideCase{"model.heads=10",
                     "model.heads = 10: must divide model.dim = 48 (allowed: 1, 2, 3, 4, 6, 8, 12, 24)"},
        OverrideCase{"model.heads=16",
                     "model.heads = 16: must leave an even head size, not model.dim / heads = 48 / 16 = 3 "
                     "(allowed: 1, 2, 3, 4, 6, 8, 12, 24)"},
        OverrideCase{"model.kv_heads=4", "model.kv_heads = 4: must divide model.heads = 6 (allowed: 1, 2, 3, 6)"},
        OverrideCase{"model.vocab=255",
                     "model.vocab = 255: must be at least 256 for data.format = \"text\": tokens are bytes"},
        OverrideCase{"batch.global=10",
                     "batch.global = 10: must be a multiple of batch.micro * dp_replicate * dp_shard, where dp_shard = "
                     "-1 is what the "
                     "other degrees leave of the ranks (allowed: multiples of batch.micro * ranks = 3 * ranks)"},
        OverrideCase{"parallel.dp_shard=0", "parallel.dp_shard = 0: must be -1 (what is left) or at least 1"},
        OverrideCase{"parallel.pp=6",
                     "parallel.pp = 6: needs a layer for each of pp * pipeline.chunks = 6 * 1 = 6 chunks, "
                     "but model.layers = 5 (allowed: 6 layers or more, or pp * pipeline.chunks up to 5)"},
        OverrideCase{"pipeline.chunks=2", "pipeline.chunks = 2: must be 1 for pipeline.schedule = \"1f1b\""},
        OverrideCase{"pipeline.split=[2, 3]",
                     "pipeline.split = [2, 3]: must have parallel.pp * pipeline.chunks = 1 * 1 = 1 entries, not 2"},
        OverrideCase{"pipeline.split=[4]", "pipeline.split = [4]: must add up to model.layers = 5, not 4"},
        OverrideCase{"parallel.tp=3",
                     "parallel.tp = 3: must divide model.kv_heads = 2 or be a multiple of it (allowed: 1, 2, 6)"},
        OverrideCase{"parallel.cp=5",
                     "parallel.cp = 5: twice it must divide model.seq_len = 24 (allowed: 1, 2, 3, 4, 6, 12)"},
        OverrideCase{"model.family=gpt2",
                     "model.family = \"gpt2\": has no grouped heads: model.kv_heads must be model.heads = 6, not 2 "
                     "(leave it out)"},
        OverrideCase{"data.validate_every_steps=5",
                     "data.validate_every_steps = 5: needs data.validation to name at least one file or glob"}));

/// Sizes.

TEST(Sizes, H3WhatWouldWrapIsRefusedAsOneRelation) {
  const Strings cases[] = {
      {"model.dim=1073741824", "model.heads=8192"},
      {"model.dim=536870912", "model.heads=8192"},
      {"model.vocab=2147483647", "model.seq_len=2147483646"},
      {"model.dim=16777216", "model.heads=8192", "model.seq_len=2147483646", "batch.micro=6"},
      {"model.dim=1073741824", "model.heads=8192", "model.ffn_dim=1073741824"},
      {"model.seq_len=2147483646", "batch.global=2147483646"},
      {"model.seq_len=2147483647", "model.heads=24"},
  };
  for (const Strings& overrides : cases) {
    const Strings mistakes = Mistakes(overrides);
    ASSERT_THAT(mistakes, testing::Not(IsEmpty())) << testing::PrintToString(overrides);
    EXPECT_THAT(mistakes[0], HasSubstr("all ranks together; the limit is 2^58 = 2.9e+17 (lower "))
        << testing::PrintToString(overrides);
  }
  EXPECT_THAT(Mistakes({"model.dim=1073741824", "model.heads=8192"})[0],
              testing::StartsWith("command line: model.dim = 1073741824: "));
  EXPECT_THAT(Mistakes({"model.dim=1073741824", "model.heads=8192"})[0],
              testing::EndsWith("(lower model.dim = 1073741824, model.vocab = 260, "
                                "model.ffn_dim = 88, model.seq_len = 24, model.layers = 5)"));
}

TEST(Sizes, A7LayersPassesAndRanksHaveLimitsThatAreNamed) {
  EXPECT_THAT(Mistakes({"model.layers=999999999"}),
              ElementsAre("command line: model.layers=999999999: out of range (allowed: 1 to 4096)"));
  EXPECT_THAT(
      Mistakes({"parallel.dp_shard=1", "batch.global=2147483646", "batch.micro=1"}),
      ElementsAre("command line: batch.global = 2147483646: a step takes 2147483646 microbatches through 5 layers: "
                  "1.07e+10 passes, and "
                  "the limit is 262144 (raise batch.micro or the data-parallel degrees, or lower batch.global)"));
  EXPECT_THAT(Mistakes({"parallel.dp_shard=1", "parallel.cp=32768", "model.seq_len=65536"}),
              ElementsAre(testing::AllOf(HasSubstr("through 5 layers in 32768 hops"),
                                         HasSubstr("or take another parallel.context"))));
  EXPECT_THAT(
      Mistakes({"model.layers=4096", "parallel.pp=128", "parallel.dp_shard=1"}),
      ElementsAre(
          "command line: parallel.pp = 128: parallel.pp * model.layers = 128 * 4096 = 524288; the limit is 262144"));
  EXPECT_THAT(Mistakes({"parallel.dp_replicate=65536", "parallel.dp_shard=64", "batch.global=12582912"}),
              Not(IsEmpty()));
  EXPECT_THAT(Mistakes({"run.steps=2147483647", "batch.global=2147483646", "model.seq_len=4096"}), Not(IsEmpty()));
}

TEST(Sizes, H3RealModelsPass) {
  // Llama 3.1 405B: 16 M tokens a step, 16,384 ranks.
  const Strings large = {"model.layers=126",    "model.dim=16384",    "model.heads=128",    "model.kv_heads=8",
                         "model.ffn_dim=53248", "model.vocab=128256", "model.seq_len=8192", "batch.global=2048",
                         "batch.micro=1",       "parallel.pp=16",     "parallel.tp=8"};
  EXPECT_EQ(ResolveMesh(Small(large), 16384).Degree(Axis::kDpShard), 128);
  // The same on one pipeline, with every microbatch a pass of its own.
  EXPECT_EQ(BatchOf(Small(large), ResolveMesh(Small(large), 256)).microbatches, 1024);
}

TEST(Sizes, H3TheRanksDecideHowManyPassesThereAre) {
  const Deck deck = Small({"batch.global=786432", "batch.micro=1"});
  EXPECT_THAT(MistakesOf([&] { ResolveMesh(deck, 1); }),
              ElementsAre(HasSubstr("786432 microbatches through 5 layers")));
  EXPECT_EQ(BatchOf(deck, ResolveMesh(deck, 64)).microbatches, 12288);
}

TEST(Relations, SchedulesSayWhichNumbersWouldDo) {
  const std::string at = "command line: ";
  EXPECT_THAT(Mistakes({"pipeline.schedule=zbv", "pipeline.chunks=3"}),
              ElementsAre(at + "pipeline.chunks = 3: must be 2 for pipeline.schedule = \"zbv\""));
  EXPECT_THAT(Mistakes({"pipeline.schedule=interleaved", "pipeline.chunks=1"}),
              ElementsAre(at + "pipeline.chunks = 1: must be at least 2 for pipeline.schedule = \"interleaved\""));
  EXPECT_THAT(Mistakes({"pipeline.schedule=dualpipev", "parallel.pp=2", "batch.global=9"}),
              ElementsAre(at + "batch.global = 9: makes at most 3 microbatches of batch.micro * dp_replicate = 3 "
                               "sequences, but pipeline.schedule = "
                               "\"dualpipev\" with parallel.pp = 2 needs at least 4 (allowed: multiples of batch.micro "
                               "* ranks / (pp * cp * tp) "
                               "= 3 * ranks / 2 from 4 times that)"));
  EXPECT_THAT(
      Mistakes({"pipeline.schedule=interleaved", "parallel.pp=2", "pipeline.split=[2, 3]"}),
      ElementsAre(at + "pipeline.split = [2, 3]: must have parallel.pp * pipeline.chunks = 2 * 2 = 4 entries, not 2"));
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"})
    EXPECT_THAT(Mistakes({std::string("pipeline.schedule=") + schedule, "parallel.pp=2", "batch.global=12"}),
                IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Values, Overrides,
    testing::Values(
        OverrideCase{"parallel.cp=0", "parallel.cp=0: out of range (allowed: 1 to 65536)"},
        OverrideCase{"run.device=gpu",
                     "run.device=gpu: unknown (did you mean cuda?) (allowed: \"auto\", \"cpu\", \"cuda\")"},
        OverrideCase{"run.transport=ib", "run.transport=ib: unknown (allowed: \"auto\", \"mpi\", \"nccl\")"},
        OverrideCase{"data.format=hdf5", "data.format=hdf5: unknown (allowed: \"text\", \"tokens\")"},
        OverrideCase{"overlap.interleave=true",
                     "overlap.interleave=true: unknown key ([overlap] has tensor, prefetch)"},
        OverrideCase{"report.tensorboard=true", "report.tensorboard=true: unknown key ([report] has every_steps)"},
        OverrideCase{"report.trace=10:12", "report.trace=10:12: unknown key ([report] has every_steps)"},
        OverrideCase{"run.watchdog_s=-1", "run.watchdog_s=-1: out of range (allowed: 0 to 1000000)"},
        OverrideCase{"checkpoint.every_s=-1", "checkpoint.every_s=-1: out of range (allowed: >= 0)"}));

TEST(Mistakes, C5UnknownKeysListTheirSectionOrKnowOtherFrameworks) {
  EXPECT_THAT(Mistakes({"xyzzy.plugh=1"})[0],
              testing::StartsWith("command line: xyzzy.plugh=1: unknown key (sections: run, model, parallel, "));
  EXPECT_THAT(Mistakes({"=3"})[0], testing::StartsWith("command line: =3: unknown key (sections: run, "));
  EXPECT_THAT(Mistakes({"a.b.c=3"})[0], testing::StartsWith("command line: a.b.c=3: unknown key (sections: run, "));
  EXPECT_THAT(Mistakes({"optimizer.momentum=1"}),
              ElementsAre("command line: optimizer.momentum=1: unknown key ([optimizer] has name, lr, beta1, beta2, "
                          "eps, weight_decay, decay_norms, "
                          "clip_norm)"));
  const std::pair<const char*, const char*> others[] = {{"model.hidden_size", "model.dim"},
                                                        {"num_hidden_layers", "model.layers"},
                                                        {"optimizer.learning_rate", "optimizer.lr"},
                                                        {"batch.global_batch_size", "batch.global"},
                                                        {"parallel.tensor_parallel_degree", "parallel.tp"},
                                                        {"parallel.fsdp", "parallel.dp_shard"},
                                                        {"training.max_steps", "run.steps"}};
  for (const auto& [theirs, ours] : others)
    EXPECT_THAT(Mistakes({std::string(theirs) + "=1"}),
                ElementsAre(HasSubstr(std::string("unknown key (did you mean ") + ours + "?)")));
}

TEST(Mistakes, FloatsThatAreZeroOrInfiniteInFp32AreRefused) {
  for (const char* text : {"optimizer.eps=1e-50", "optimizer.clip_norm=1e-46", "model.norm_eps=1e-300",
                           "optimizer.lr=1e39", "model.init_std=1e39", "optimizer.beta2=0.99999999999"})
    EXPECT_THAT(Mistakes({text}), SizeIs(1)) << text;
  EXPECT_EQ(Mistakes({"optimizer.clip_norm=1e-46"})[0],
            "command line: optimizer.clip_norm = 1e-46: is 0 in fp32, which means off (allowed: 0, >= 1.17549e-38)");
  EXPECT_THAT(Mistakes({"optimizer.clip_norm=0", "optimizer.eps=1e-20", "model.norm_eps=1e-12"}), IsEmpty());
}

TEST(Mistakes, OddHeadsAreForGpt2) {
  EXPECT_THAT(Mistakes({"model.heads=16", "model.kv_heads=16", "model.family=gpt2"}), IsEmpty());
  EXPECT_THAT(Mistakes({"model.heads=16", "model.kv_heads=16"}), SizeIs(1));
  EXPECT_EQ(Mistakes({"model.dim=45", "model.heads=7", "model.kv_heads=7", "model.family=gpt2"}),
            Strings{"command line: model.heads = 7: must divide model.dim = 45 (allowed: 1, 3, 5, 9, 15, 45)"});
}

TEST(Mistakes, SuggestionsForTheBatchAreAcceptedOnAnyRanks) {
  // "multiples of batch.micro * ranks / (pp * cp * tp) = 3 * ranks / 2"
  EXPECT_THAT(Mistakes({"batch.global=10", "parallel.tp=2"}),
              ElementsAre(HasSubstr("(allowed: multiples of batch.micro * ranks / (pp * cp * tp) = 3 * ranks / 2)")));
  for (int ranks : {2, 6, 10})
    EXPECT_EQ(ResolveMesh(Small({fmt::format("batch.global={}", 3 * ranks / 2 * 5), "parallel.tp=2"}), ranks).Ranks(),
              ranks);
}

Strings Idle(const Strings& overrides) { return SettingsWithoutEffect(ParseDeck(kSmall, "small", overrides)); }

TEST(Effects, C9SettingsWithoutEffectAreNamedIfSomebodySetThem) {
  EXPECT_THAT(Idle({}), IsEmpty());
  EXPECT_THAT(Idle({"guard.max_skips=10", "parallel.context=ring", "lr.min_ratio=0.1", "lr.decay=constant"}), IsEmpty())
      << "defaults";
  EXPECT_THAT(Idle({"recompute.regather=always", "parallel.zero=2"}),
              ElementsAre("command line: recompute.regather = \"always\" has no effect: with parallel.zero = 2 every "
                          "rank has whole parameters"));
  EXPECT_THAT(Idle({"recompute.regather=always"}), IsEmpty()) << "dp_shard may come to more than 1";
  EXPECT_THAT(Idle({"lr.decay=constant", "lr.min_ratio=0.2", "lr.decay_steps=3"}), SizeIs(2));
  EXPECT_THAT(Idle({"lr.warmup_steps=100"}), ElementsAre("command line: lr.warmup_steps = 100 is long: all run.steps = "
                                                         "20 steps are warm-up, so the rate never decays"));
  for (const char* text : {"guard.max_skips=3", "guard.max_rollbacks=2", "parallel.context=all_gather",
                           "parallel.sequence_parallel=false", "data.validation=['v']", "data.validate_sequences=24"})
    EXPECT_THAT(Idle({text}), ElementsAre(HasSubstr("has no effect"))) << text;
  EXPECT_THAT(Idle({"run.deterministic=false", "run.product_plans=p", "run.device=cpu"}), SizeIs(2));
  EXPECT_THAT(Idle({"run.deterministic=false", "run.product_plans=p", "run.device=cuda"}), IsEmpty());
  EXPECT_THAT(Idle({"model.rope_theta=7", "model.family=gpt2", "model.kv_heads=6"}), SizeIs(1));
  // An effective deck sets every key: nothing is said of what is as it would be anyway.
  EXPECT_THAT(SettingsWithoutEffect(ParseDeck(EffectiveDeck(Small()), "again")), IsEmpty());
}

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
  EXPECT_THAT(MistakesOfText("[r\xc3\xbcn]\nx = \"\xc3\xa4\"\n")[0],
              HasSubstr("small:1: [r\xc3\xbcn]: unknown section (did you mean [run]?)"));
  EXPECT_THAT(MistakesOfText("[run]\nsteps = \"\xc3\xa4\"\n")[0],
              HasSubstr("small:2: run.steps = \"\xc3\xa4\": must be an integer"));
}

TEST(Mistakes, KeysReachNoTerminalRaw) {
  const Strings mistakes = MistakesOfText(
      "\"a\\u001b[31m\" = 1\n[run]\n\"\\u009b5m\\u0007\" = 2\n\"steps\\u001b\" = 3\nsteps = \"\\u001b[31m\"\n");
  ASSERT_THAT(mistakes.size(), testing::Ge(4u));
  for (const std::string& mistake : mistakes) {
    EXPECT_EQ(mistake.find('\x1b'), std::string::npos) << mistake;
    EXPECT_EQ(mistake.find('\x07'), std::string::npos);
    EXPECT_EQ(mistake.find("\xc2\x9b"), std::string::npos);
  }
  EXPECT_THAT(mistakes[0], HasSubstr("small:1: a?[31m = 1: unknown key"));
}

TEST_F(DeckFiles, AFifoIsNotWaitedFor) {
  const std::string fifo = (folder_ / "fifo.toml").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string deck = Write("deck.toml", "include = [\"fifo.toml\"]\n");
  EXPECT_THAT(MistakesOf([&] { LoadDeck(deck); }),
              ElementsAre(HasSubstr("is not a file: every rank reads the deck for itself")));
}

TEST_F(DeckFiles, ADeckWithoutANameGivesNoFolder) {
  const std::string deck = Write("...toml", kSmall);
  EXPECT_THAT(MistakesOf([&] { LoadDeck(deck); }), ElementsAre(deck + ": run.dir = \"\": must name a folder"));
  EXPECT_EQ(LoadDeck(deck, {"run.dir=there"}).deck.run.dir, "there");
}

TEST_F(DeckFiles, TheEffectiveDeckIsNoLargerThanADeckMayBe) {
  std::string paths = "paths = [";
  for (int i = 0; i < 20000; ++i) paths += fmt::format("\"{}\",", i);
  std::string text(kSmall);
  text.replace(text.find("paths"), std::string::npos, paths + "]\n");
  fs::create_directories(folder_ / std::string(100, 'x'));
  const std::string deck = Write(std::string(100, 'x') + "/deck.toml", text);
  EXPECT_THAT(MistakesOf([&] { LoadDeck(deck); }),
              ElementsAre(HasSubstr("(globs in data.paths are shorter than lists)")));
}

TEST(TimeLimit, C6SlurmsFormsAndUnits) {
  const std::pair<const char*, int64_t> good[] = {{"90", 5400},          {"90:30", 5430},       {"01:30:00", 5400},
                                                  {"0:10:0", 600},       {"1-12", 129600},      {"2-03:04", 183840},
                                                  {"1-00:00:01", 86401}, {"100:00:01", 360001}, {"90s", 90},
                                                  {"30m", 1800},         {"1h", 3600},          {"2d", 172800}};
  for (const auto& [text, seconds] : good) EXPECT_EQ(TimeLimitSeconds(text), seconds) << text;
  for (const char* bad : {"",  "0",    "00:00:00", "1:2:3:4", "1:60",    "1:60:00", "1-24", "1-", "-1",   "1-1-1",
                          "h", "1.5h", "1 h",      "1h30m",   "9999999", "::",      "1:",   "+1", "0x10", "1e3"})
    EXPECT_EQ(TimeLimitSeconds(bad), std::nullopt) << bad;
}

TEST(Mistakes, ValuesOfOverrides) {
  const Deck d = Small({"run.steps=0x1F", "optimizer.lr=3", "run.dir=runs/x#1", "data.paths=['a b', \"c\"]",
                        "run.seed=-0", "optimizer.weight_decay=-0.0", "pipeline.split=[5]"});
  EXPECT_EQ(d.run.steps, 31);
  EXPECT_EQ(d.optimizer.lr, 3.0);
  EXPECT_EQ(d.run.dir, "runs/x#1");
  EXPECT_THAT(d.data.paths, ElementsAre((fs::current_path() / "a b").string(), (fs::current_path() / "c").string()));
  EXPECT_EQ(d.run.seed, 0);
  EXPECT_FALSE(std::signbit(d.optimizer.weight_decay));
  EXPECT_THAT(d.pipeline.split, ElementsAre(5));
}

TEST(Mistakes, B3EffectiveDecksOfEarlierVersionsAreRead) {
  const std::string of_0_3_0 = "[overlap]\ninterleave = false\n[report]\ntensorboard = false\ntrace = \"\"\n";
  EXPECT_EQ(EffectiveDeck(ParseDeck(std::string(kSmall) + of_0_3_0, "small").deck), EffectiveDeck(Small()));
  EXPECT_THAT(MistakesOfText(std::string(kSmall) + "[report]\ntensorboard = true\n"),
              ElementsAre(testing::StartsWith("small:21: report.tensorboard = true: unknown key")));
}

TEST(Mistakes, RelationsNameThePlaceThatWasSet) {
  EXPECT_THAT(Mistakes({"parallel.dp_shard=3"}),
              ElementsAre("small:14: batch.global = 12: must be a multiple of batch.micro * dp_replicate * dp_shard = "
                          "3 * 1 * 3 = 9 (allowed: 9, 18, 27, ...)"));
  EXPECT_THAT(Mistakes({"model.dim=50"}),
              ElementsAre("small:8: model.heads = 6: must divide model.dim = 50 (allowed: 1, 5, 25)"));
  EXPECT_THAT(
      Mistakes({"data.validation=[\"v\"]", "data.validate_every_steps=5", "data.validate_sequences=13"}),
      ElementsAre("command line: data.validate_sequences = 13: must be a multiple of batch.global = 12 (allowed: "
                  "12, 24, 36, ...)"));
}

struct TextCase {
  const char* text;
  Strings messages;
};

TEST(Mistakes, MalformedTexts) {
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
    Strings mistakes = MistakesOfText(c.text);
    std::erase_if(mistakes, [](const std::string& m) { return m.find(": missing: ") != m.npos; });
    ASSERT_EQ(mistakes.size(), c.messages.size()) << c.text << testing::PrintToString(mistakes);
    for (size_t i = 0; i < mistakes.size(); ++i) EXPECT_THAT(mistakes[i], HasSubstr(c.messages[i])) << c.text;
  }
}

TEST(Mistakes, AMisspeltOrBrokenKeyIsNotMissingToo) {
  std::string text(kSmall);
  text.replace(text.find("layers = 5"), 10, "layers = ");
  text.replace(text.find("dim = 48"), 8, "dimm = 48");
  const Strings mistakes = MistakesOfText(text);
  ASSERT_THAT(mistakes, SizeIs(2));
  EXPECT_THAT(mistakes[0], HasSubstr("small:6: not valid TOML"));
  EXPECT_EQ(mistakes[1], "small:7: model.dimm = 48: unknown key (did you mean model.dim?)");
}

TEST(Mistakes, DamagedTextsNeverPassSilentlyNorCrash) {
  // Every prefix and every single damaged byte gives a deck or a list of located mistakes.
  const std::string text(kSmall);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const std::string& damaged :
         {text.substr(0, i), text.substr(0, i) + "=" + text.substr(i + 1),
          text.substr(0, i) + "\"" + text.substr(i + 1), text.substr(0, i) + text.substr(i + 1)}) {
      const Strings mistakes = MistakesOfText(damaged);
      for (const std::string& mistake : mistakes) EXPECT_THAT(mistake, testing::StartsWith("small:")) << damaged;
    }
    const bool paths_are_there = i + 1 == text.size();  // all but the last line end
    EXPECT_EQ(MistakesOfText(text.substr(0, i)).empty(), paths_are_there) << i;
  }
}

TEST(Mistakes, DeepNestingIsRefused) {
  const std::string deep = "x = " + std::string(100000, '[') + "\n";
  EXPECT_THAT(MistakesOfText(deep), testing::Contains(HasSubstr("small:1: not valid TOML")));
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

TEST(Mistakes, LongKeysAreRefusedBeforeTheyNest) {
  // Whatever the key hides behind; the last is in a string of many lines that another mistake makes a line of its own.
  for (const std::string before : {"", "[", "x = {", "x = [{y = \"\"\"z\"\"\"\"\", ", "x = {y = '\\', z = \"\\\"\", ",
                                   "\"#.=\".", "x = 1 # \"\n"}) {
    const std::string text = before + Dotted(100000) + " = 1";
    const std::string place = before.ends_with('\n') ? "small:2" : "small:1";
    EXPECT_THAT(MistakesOfText(text), ElementsAre(place + ": not valid TOML: a key of more than 8 names")) << before;
  }
  EXPECT_THAT(MistakesOfText("x = \"\"\"\n" + Dotted(100000) + " = 1 # \\q\n\"\"\""),
              testing::Contains(HasSubstr("small:2: not valid TOML")));
  EXPECT_THAT(Mistakes({"run.steps={" + Dotted(100000) + " = 1}"}),
              ElementsAre(HasSubstr("not valid TOML: a key of more than 8 names")));
}

TEST(Mistakes, StringsAndListsMayHoldPoints) {
  const std::string many = "x = [\"" + Dotted(1000) + "\", '" + Dotted(1000) +
                           "', 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] # " + Dotted(1000) + "\n";
  EXPECT_THAT(MistakesOfText(many), testing::Each(testing::Not(HasSubstr("names"))));
  EXPECT_THAT(MistakesOfText(Dotted(8) + " = 1\n"), testing::Each(testing::Not(HasSubstr("names"))));
}

TEST(Mistakes, ThousandsOfUnknownNamesAreRefusedWithoutGuesses) {
  std::string text(kSmall);
  for (int i = 0; i < 200; ++i) text += fmt::format("[modle{}]\n", i);
  const Strings mistakes = MistakesOfText(text);
  ASSERT_THAT(mistakes, SizeIs(200));
  EXPECT_THAT(mistakes[0], HasSubstr("unknown section (did you mean [model]?)"));
  EXPECT_THAT(mistakes[199], testing::EndsWith("unknown section"));
}

// Files, includes, origins.

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
  EXPECT_THAT(MistakesOf([&] { LoadDeck(a); }),
              ElementsAre(b + ":2: include " + a + ": includes itself in a circle",
                          b + ":2: include " + (folder_ / "none.toml").string() + ": no such file",
                          b + ":2: include " + (folder_ / "sub").string() + ": is a folder, not a deck"));
  const std::string c = Write("c.toml", "include = \"b.toml\"\n");
  EXPECT_THAT(MistakesOf([&] { LoadDeck(c); }),
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
  const Strings mistakes = MistakesOf([&] { LoadDeck((folder_ / "d0.toml").string()); });
  EXPECT_THAT(mistakes, testing::Contains(HasSubstr("more than 64 includes, or deeper than 16")));
}

TEST_F(DeckFiles, UnreadableDecks) {
  const std::string none = (folder_ / "none.toml").string();
  EXPECT_THAT(
      MistakesOf([&] { LoadDeck(none, {"run.steps=0"}); }),
      ElementsAre(none + ": no such file", "command line: run.steps=0: out of range (allowed: 1 to 2147483647)"));
  const std::string large = Write("large.toml", std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(MistakesOf([&] { LoadDeck(large); }), ElementsAre(large + ": is larger than 1 MiB: not a deck"));
}

// A checkpoint's deck beside the run's.

using testing::AllOf;
using testing::Field;

LoadedDeck Loaded(const Strings& overrides) { return ParseDeck(kSmall, "small", overrides); }

testing::Matcher<DeckDifference> Differs(const std::string& key, const std::string& before, const std::string& now,
                                         const std::string& origin) {
  return AllOf(Field(&DeckDifference::key, key), Field(&DeckDifference::before, before),
               Field(&DeckDifference::now, now), Field(&DeckDifference::origin, origin));
}

TEST(Compare, EqualDecksDifferInNothing) {
  EXPECT_THAT(Differences(Small({"run.seed=5"}), Loaded({"run.seed=5"})), IsEmpty());
}

TEST(Compare, A3NamesEveryValueThatDiffersWithItsOrigin) {
  const Deck saved =
      Small({"optimizer.lr=5", "data.paths=['/b.txt']", "data.shuffle=false", "pipeline.split=[5]", "run.dir=here"});
  EXPECT_THAT(Differences(saved, Loaded({"run.seed=7"})),
              ElementsAre(Differs("run.seed", "1234", "7", "command line"),
                          Differs("run.dir", "\"here\"", "\"runs/small\"", "from \"runs/<deck name>\""),
                          Differs("pipeline.split", "[5]", "[]", "default"),
                          Differs("optimizer.lr", "5.0", "0.001", "small:17"),
                          Differs("data.paths", "[\"/b.txt\"]", "[\"/tmp/a.txt\"]", "small:19"),
                          Differs("data.shuffle", "false", "true", "default")));
}

TEST(Compare, A2DerivedValuesAreDerivedAnewAndNamed) {
  const Deck saved = Small({"run.steps=10", "pipeline.schedule=zbv", "parallel.pp=2", "batch.global=12"});
  EXPECT_THAT(Differences(saved, Loaded({})),
              ElementsAre(Differs("run.steps", "10", "20", "small:3"), Differs("parallel.pp", "2", "1", "default"),
                          Differs("pipeline.schedule", "\"zbv\"", "\"1f1b\"", "default"),
                          Differs("pipeline.chunks", "2", "1", "from 1; interleaved, zbv, dualpipev: 2"),
                          Differs("lr.decay_steps", "10", "20", "from run.steps - lr.warmup_steps")));
}

/// Full names of the keys that differ and for which `holds`.
Strings KeysThat(bool DeckDifference::*holds, const Deck& saved, const LoadedDeck& now) {
  Strings keys;
  for (const DeckDifference& difference : Differences(saved, now))
    if (difference.*holds) keys.push_back(difference.key);
  return keys;
}

TEST(Compare, B4TheWeightsBelongToTheseKeys) {
  const Deck saved = Small({});
  const LoadedDeck now =
      Loaded({"model.layers=4", "model.dim=72", "model.heads=4", "model.kv_heads=1", "model.ffn_dim=90",
              "model.vocab=261", "model.seq_len=32", "model.norm_eps=1e-6", "model.rope_theta=1e4",
              "model.tie_embeddings=true", "model.init_std=0.03", "optimizer.lr=2"});
  EXPECT_THAT(KeysThat(&DeckDifference::fixed, saved, now),
              ElementsAre("model.layers", "model.dim", "model.heads", "model.kv_heads", "model.ffn_dim", "model.vocab",
                          "model.tie_embeddings"));
  EXPECT_THAT(KeysThat(&DeckDifference::computes, saved, now),
              ElementsAre("model.layers", "model.dim", "model.heads", "model.kv_heads", "model.ffn_dim", "model.vocab",
                          "model.seq_len", "model.norm_eps", "model.rope_theta", "model.tie_embeddings"));
}

TEST(Compare, B4AFamilyWithLearnedPositionsKeepsItsLength) {
  const Strings gpt2 = {"model.family=gpt2", "model.kv_heads=6"};
  EXPECT_THAT(KeysThat(&DeckDifference::fixed, Small(gpt2),
                       Loaded({"model.family=gpt2", "model.kv_heads=6", "model.seq_len=32"})),
              ElementsAre("model.seq_len"));
  EXPECT_THAT(KeysThat(&DeckDifference::fixed, Small(gpt2), Loaded({})), ElementsAre("model.family", "model.kv_heads"));
}

TEST(Compare, LongValuesAreShownShort) {
  const std::string many = "data.paths=['/" + std::string(500, 'x') + "']";
  const std::vector<DeckDifference> differences = Differences(Small({}), Loaded({many}));
  ASSERT_THAT(differences, SizeIs(1));
  EXPECT_THAT(differences[0].Text(), AllOf(testing::StartsWith("data.paths = [\"/xxx"),
                                           HasSubstr("xxx... (command line), [\"/tmp/a.txt\"] in the checkpoint")));
  EXPECT_LT(differences[0].Text().size(), 250u);
  EXPECT_GT(differences[0].now.size(), 500u);
}

// Printing.

void ExpectEqualDecks(const Deck& a, const Deck& b) {
  for (const DeckKey& key : DeckSchema())
    EXPECT_EQ(Get(a, key), Get(b, key)) << key.FullName() << ": " << ToToml(Get(a, key)) << " and "
                                        << ToToml(Get(b, key));
}

TEST(EffectiveDeck, ParsesBackToItself) {
  const LoadedDeck loaded =
      ParseDeck(kSmall, "small",
                {"optimizer.lr=0.1234567890123456789", "optimizer.eps=1.25e-38", "model.rope_theta=1e6",
                 "optimizer.clip_norm=123456789012345678", "run.dir=a \"b\" \\ \xc3\xa4 \xf0\x9f\x8c\xb3",
                 "data.paths=['/x/ä','/y']", "pipeline.split=[2, 3]", "parallel.pp=2", "run.seed=9223372036854775807"});
  const std::string text = EffectiveDeck(loaded.deck);
  EXPECT_THAT(text, Each(testing::AllOf(testing::Ge('\n'), testing::Le('~')))) << "not ASCII";
  ExpectEqualDecks(ParseDeck(text, "small").deck, loaded.deck);
  EXPECT_EQ(EffectiveDeck(ParseDeck(text, "small").deck), text);
  ExpectEqualDecks(ParseDeck(EffectiveDeck(loaded), "small").deck, loaded.deck);
}

TEST(EffectiveDeck, NamesEveryKeyAndItsOrigin) {
  const std::string text = EffectiveDeck(ParseDeck(kSmall, "small", {"run.steps=21"}));
  EXPECT_THAT(text, HasSubstr("[run]\nseed            = 1234        # default\n"
                              "steps           = 21          # command line\n"));
  EXPECT_THAT(text, HasSubstr("layers         = 5            # small:6\n"));
  EXPECT_EQ(std::ranges::count(text, '#'), static_cast<long>(DeckSchema().size()));
}

// The mesh.

Strings MeshMistakes(const Strings& overrides, int ranks) {
  const Deck deck = Small(overrides);
  return MistakesOf([&] { ResolveMesh(deck, ranks); });
}

TEST(ResolveMesh, FillsInWhatIsLeft) {
  const Strings layout = {"parallel.pp=5", "parallel.dp_replicate=2", "parallel.tp=2", "batch.global=36"};
  const Deck deck = Small(layout);
  EXPECT_EQ(SmallestRanks(deck), 20);
  const Mesh mesh = ResolveMesh(deck, 60);
  EXPECT_EQ(mesh.ToString(), "pp 5 x dp_replicate 2 x dp_shard 3 x cp 1 x tp 2");
  EXPECT_EQ(BatchOf(deck, mesh).microbatches, 2);
  EXPECT_EQ(ResolveMesh(Small(), 1).Ranks(), 1);
  EXPECT_EQ(SmallestRanks(Small({"parallel.dp_shard=4"})), 4);
}

TEST(ResolveMesh, EveryBrokenRelationWithItsNumbers) {
  EXPECT_THAT(
      MeshMistakes({"parallel.pp=2", "parallel.tp=2"}, 6),
      ElementsAre("parallel: pp 2 x dp_replicate 1 x cp 1 x tp 2 = 4 must divide the number of ranks, 6 (allowed: 4, "
                  "8, 12, ...)"));
  EXPECT_THAT(
      MeshMistakes({"parallel.dp_shard=2", "parallel.tp=2"}, 6),
      ElementsAre("parallel: pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2 = 4, but the number of ranks is 6 "
                  "(start 4, or set parallel.dp_shard = -1 to take what is left)"));
  EXPECT_THAT(MeshMistakes({}, 3), ElementsAre("batch.global = 12: must be a multiple of batch.micro * dp_replicate * "
                                               "dp_shard = 3 * 1 * 3 = 9 (allowed: 9, 18, 27, ...)"));
  // What follows from an open dp_shard is not judged by a number of ranks that is wrong.
  EXPECT_THAT(MeshMistakes({"parallel.pp=2"}, 15), SizeIs(1));
  Deck deck = Small();
  deck.parallel.tp = 4;
  EXPECT_THAT(MistakesOf([&] { ResolveMesh(deck, 4); }),
              ElementsAre("parallel.tp = 4: must divide model.heads = 6 (allowed: 1, 2, 6)"));
}

TEST(ResolveMesh, WholeSequencesNeedHeads) {
  const Strings layout = {"parallel.context=all_to_all", "model.heads=12", "model.kv_heads=4", "parallel.cp=2",
                          "parallel.tp=2"};
  EXPECT_EQ(ResolveMesh(Small(layout), 4).Degree(Axis::kCp), 2);
  Deck deck = Small(layout);
  deck.parallel.cp = 4;
  EXPECT_THAT(MistakesOf([&] { ResolveMesh(deck, 8); }),
              ElementsAre("parallel.cp = 4: for parallel.context = \"all_to_all\", cp * tp = 4 * 2 = 8 must divide "
                          "model.heads = 12 and "
                          "model.kv_heads = 4 (allowed: 1, 2; or parallel.context = \"ring\" or \"all_gather\")"));
  deck.parallel.context = ContextMode::kRing;
  EXPECT_EQ(ResolveMesh(deck, 8).Ranks(), 8);
}

TEST(ResolveMesh, OnlyHeadsMustBeCutEvenly) {
  const Strings layout = {"model.heads=4", "model.kv_heads=4", "parallel.tp=4", "model.seq_len=25", "model.vocab=263"};
  EXPECT_EQ(ResolveMesh(Small(layout), 4).Degree(Axis::kTp), 4);
}

TEST(ResolveMesh, NamesThePlaces) {
  const LoadedDeck loaded = ParseDeck(kSmall, "small", {"parallel.dp_shard=2"});
  EXPECT_THAT(MistakesOf([&] { ResolveMesh(loaded, 5); }),
              ElementsAre(testing::StartsWith("command line: parallel: pp 1 x")));
}

TEST(ResolveMesh, HugeDegreesDoNotOverflow) {
  const Strings layout = {"parallel.dp_replicate=65536", "parallel.tp=1", "parallel.dp_shard=65536",
                          "batch.global=2147483647", "batch.micro=2147483647"};
  EXPECT_THAT(Mistakes(layout), testing::Contains(HasSubstr("= 2147483647 * 65536 * 65536 = 9223372032559808512")));
}

// The learning rate (doc/numerics.md).

TEST(LearningRate, WarmsUpAndDecays) {
  const Strings base = {"run.steps=14", "lr.warmup_steps=4", "optimizer.lr=0.5", "lr.min_ratio=0.2"};
  const Deck cosine = Small(base);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 1), 0.125);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 4), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 6), 0.5 * (0.2 + 0.8 * (1 + std::cos(M_PI * 0.2)) / 2));
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 9), 0.3);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 14), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 1000), 0.1);
  Strings linear = base;
  linear.push_back("lr.decay=linear");
  EXPECT_DOUBLE_EQ(LearningRate(Small(linear), 6), 0.5 * (1 - 0.8 * 0.2));
  Strings constant = base;
  constant.push_back("lr.decay=constant");
  EXPECT_DOUBLE_EQ(LearningRate(Small(constant), 3), 0.375);
  EXPECT_DOUBLE_EQ(LearningRate(Small(constant), 14), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(Small({"lr.warmup_steps=0", "optimizer.lr=0.5", "lr.decay=constant"}), 1), 0.5);
}

// What is generated, and what is shipped.

TEST(Reference, TheCommittedPageIsCurrent) {
  EXPECT_EQ(ReadFile(fs::path(SOURCE_ROOT) / "doc/deck.md"), DeckReference()) << "run: espalier doc-deck > doc/deck.md";
}

TEST(Reference, HelpOnSectionsAndKeys) {
  EXPECT_THAT(HelpText("batch"), testing::StartsWith("[batch] sequences per step"));
  EXPECT_EQ(HelpText("data.format"),
            "  data.format (a string, default \"text\"; allowed: \"text\", \"tokens\")\n"
            "      text: bytes are tokens; tokens: flat uint16 or uint32 ids after a small header.\n");
  for (const DeckKey& key : DeckSchema()) EXPECT_THAT(HelpText("all"), HasSubstr("  " + key.FullName() + " ("));
  EXPECT_THAT(MistakesOf([] { HelpText("batsch"); }), ElementsAre(HasSubstr("(did you mean batch?)")));
  EXPECT_EQ(HelpText("tp"), HelpText("parallel.tp"));
  EXPECT_THAT(MistakesOf([] { HelpText("model.head"); }), ElementsAre(HasSubstr("(did you mean model.heads?)")));
}

TEST(Inputs, EveryDeckIsValidOnItsSmallestMesh) {
  int decks = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(SOURCE_ROOT) / "inputs")) {
    if (entry.path().extension() != ".toml" || entry.path().parent_path().filename() == "clusters") continue;
    ++decks;
    const LoadedDeck loaded = LoadDeck(entry.path().string());
    EXPECT_EQ(ResolveMesh(loaded, SmallestRanks(loaded.deck)).Ranks(), SmallestRanks(loaded.deck)) << entry.path();
    ExpectEqualDecks(ParseDeck(EffectiveDeck(loaded.deck), loaded.deck.name).deck, loaded.deck);
  }
  EXPECT_GE(decks, 4);
}

TEST(Inputs, TheDefaultDeckIsTheOneOfTheReadme) {
  const LoadedDeck loaded = LoadDeck(fs::path(SOURCE_ROOT) / "inputs/llama/tiny.toml");
  EXPECT_EQ(ResolveMesh(loaded, 8).ToString(), "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2");
  EXPECT_EQ(loaded.deck.model.vocab, 256);
  EXPECT_EQ(loaded.deck.data.paths[0], (fs::path(SOURCE_ROOT) / "src/**/*.cpp").string());
}

TEST(Inputs, TheLargeDecksOnAThousandRanks) {
  const Deck deck = LoadDeck(fs::path(SOURCE_ROOT) / "inputs/llama/70b.toml").deck;
  const Mesh mesh = ResolveMesh(deck, 1024);
  EXPECT_EQ(mesh.ToString(), "pp 8 x dp_replicate 1 x dp_shard 16 x cp 1 x tp 8");
  EXPECT_EQ(BatchOf(deck, mesh).microbatches, 32);
}

}  // namespace
}  // namespace espalier
