// The table of keys: names, fields, defaults, and the reference and help made from it.
#include "espalier/deck/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using Strings = std::vector<std::string>;

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
  // Each key set alone to another value must be the only difference after reading back.
  const Deck base = Small();
  for (const DeckKey& changed : DeckSchema()) {
    Deck deck = base;
    const DeckValue values[] = {false,
                                int64_t{987654},
                                0.123456,
                                "other",
                                std::vector<int64_t>{9, 8},
                                Strings{"x", "y"},
                                std::vector<double>{0.5, 3}};
    const std::vector<std::string_view>& choices = changed.allowed.choices;
    if (choices.size() == 1) continue;
    DeckValue value = choices.empty() ? values[changed.ValueIndex()] : std::string(choices.back());
    if (!choices.empty() && std::holds_alternative<Strings>(Get(base, changed)))
      value = Strings{std::string(choices.back())};
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
  EXPECT_EQ(d.parallel.reduce, ReduceFrequency::kAuto);
  EXPECT_TRUE(d.overlap.gradients);
}

TEST(Schema, ZeroFollowsThePipeline) {
  EXPECT_EQ(Small({"parallel.pp=2", "model.layers=8"}).parallel.zero, 1);
  EXPECT_EQ(Small({"parallel.pp=2", "model.layers=8", "parallel.zero=3"}).parallel.zero, 3);
}

TEST(Schema, DerivedDefaultsFollowTheirKeys) {
  const LoadedDeck loaded =
      ParseDeck(kSmall, "small", {"run.steps=50", "lr.warmup_steps=7", "batch.global=24", "run.dir=\"\\u0041\""});
  EXPECT_EQ(loaded.deck.lr.decay_steps, 43);
  EXPECT_EQ(loaded.deck.data.validate_sequences, 24);
  EXPECT_EQ(loaded.deck.run.dir, "A");
  EXPECT_EQ(loaded.origins.at("lr.decay_steps"), "from run.steps - lr.warmup_steps - lr.stable_steps");
  EXPECT_EQ(Small({"lr.warmup_steps=30"}).lr.decay_steps, 1);
  std::string no_kv(kSmall);
  no_kv.replace(no_kv.find("kv_heads = 2"), 12, "");
  EXPECT_EQ(ParseDeck(no_kv, "small", {"model.heads=8"}).deck.model.kv_heads, 8);
}

TEST(Reference, TheCommittedPageIsCurrent) {
  EXPECT_EQ(ReadFile(InTree("doc/deck.md")), DeckReference()) << "run: espalier doc-deck > doc/deck.md";
}

TEST(Reference, HelpOnSectionsAndKeys) {
  EXPECT_THAT(HelpText("batch"), testing::StartsWith("[batch] sequences per step"));
  EXPECT_EQ(HelpText("model.qk_norm"),
            "  model.qk_norm (a string, default \"none\"; allowed: \"none\", \"head\", \"full\")\n"
            "      RMSNorm of queries and keys before RoPE: head: of each head by itself (Qwen3); full: of all\n"
            "      heads together (OLMo 2).\n");
  for (const DeckKey& key : DeckSchema()) EXPECT_THAT(HelpText("all"), HasSubstr("  " + key.FullName() + " ("));
  EXPECT_THAT(ErrorsOf([] { HelpText("batsch"); }), ElementsAre(HasSubstr("(did you mean batch?)")));
  EXPECT_EQ(HelpText("tp"), HelpText("parallel.tp"));
  EXPECT_THAT(ErrorsOf([] { HelpText("model.head"); }), ElementsAre(HasSubstr("(did you mean model.heads?)")));
}

}  // namespace
}  // namespace espalier
