// Compares a checkpoint's deck with the run's; the effective deck that is printed.
#include "espalier/deck/compare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Strings = std::vector<std::string>;

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
  EXPECT_THAT(
      Differences(saved, Loaded({})),
      ElementsAre(Differs("run.steps", "10", "20", "small:3"), Differs("parallel.pp", "2", "1", "default"),
                  Differs("parallel.zero", "1", "3", "from 3; with pp > 1: 1"),
                  Differs("pipeline.schedule", "\"zbv\"", "\"1f1b\"", "default"),
                  Differs("pipeline.chunks", "2", "1", "from 1; interleaved, zb-interleaved, zbv, dualpipev: 2"),
                  Differs("lr.decay_steps", "10", "20", "from run.steps - lr.warmup_steps - lr.stable_steps")));
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
  const LoadedDeck now = Loaded({"model.layers=4",
                                 "model.dim=72",
                                 "model.heads=4",
                                 "model.kv_heads=1",
                                 "model.ffn_dim=90",
                                 "model.vocab=261",
                                 "model.seq_len=32",
                                 "model.norm_eps=1e-6",
                                 "model.rope_theta=1e4",
                                 "model.head_dim=20",
                                 "model.v_dim=10",
                                 "model.score_factor=1.5",
                                 "model.rope_adjacent=true",
                                 "model.qk_norm=head",
                                 "model.norm_placement=post",
                                 "model.qkv_bias=true",
                                 "model.o_bias=true",
                                 "model.mlp_bias=true",
                                 "model.sinks=true",
                                 "model.full_attention_every=2",
                                 "model.rope_scaling=yarn",
                                 "model.rope_factor=2",
                                 "model.rope_original_seq_len=9",
                                 "model.tie_embeddings=true",
                                 "model.mtp_layers=1",
                                 "model.init_std=0.03",
                                 "optimizer.lr=2"});
  EXPECT_THAT(KeysThat(&DeckDifference::fixed, saved, now),
              ElementsAre("model.layers", "model.dim", "model.heads", "model.kv_heads", "model.head_dim", "model.v_dim",
                          "model.ffn_dim", "model.vocab", "model.norm_placement", "model.qk_norm", "model.qkv_bias",
                          "model.o_bias", "model.mlp_bias", "model.sinks", "model.rope_dim", "model.rope_adjacent",
                          "model.tie_embeddings", "model.mtp_layers"));
  EXPECT_THAT(KeysThat(&DeckDifference::computes, saved, now),
              ElementsAre("model.layers", "model.dim", "model.heads", "model.kv_heads", "model.head_dim", "model.v_dim",
                          "model.score_factor", "model.ffn_dim", "model.vocab", "model.seq_len", "model.norm_eps",
                          "model.norm_placement", "model.qk_norm", "model.qkv_bias", "model.o_bias", "model.mlp_bias",
                          "model.sinks", "model.full_attention_every", "model.rope_dim", "model.rope_adjacent",
                          "model.rope_theta", "model.rope_scaling", "model.rope_factor", "model.rope_original_seq_len",
                          "model.tie_embeddings", "model.mtp_layers"));
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

TEST(EffectiveDeck, OfAnEarlierVersionMayHaveFormerNames) {
  std::string text = EffectiveDeck(Small({"run.gemm_plans=h200.json"}));
  const std::string now = "gemm_plans";
  text.replace(text.find(now), now.size(), "product_plans");
  EXPECT_EQ(ParseDeck(text, "saved", {}, KeyNames::kOfAnyVersion).deck.run.gemm_plans, "h200.json");
  EXPECT_THAT(ErrorsOf([&] { ParseDeck(text, "saved"); }),
              ElementsAre(HasSubstr("run.product_plans = \"h200.json\": unknown key (did you mean run.gemm_plans?)")));
  EXPECT_THAT(ErrorsOf([&] { ParseDeck(text, "saved", {"run.product_plans=a"}, KeyNames::kOfAnyVersion); }),
              ElementsAre(HasSubstr("did you mean run.gemm_plans?")))
      << "the command line is of this version";
}

TEST(EffectiveDeck, NamesEveryKeyAndItsOrigin) {
  const std::string text = EffectiveDeck(ParseDeck(kSmall, "small", {"run.steps=21"}));
  EXPECT_THAT(text, HasSubstr("[run]\nseed                    = 1234  # default\n"
                              "steps                   = 21  # command line\n"));
  EXPECT_THAT(text, HasSubstr("layers                = 5     # small:6\n"));
  EXPECT_EQ(std::ranges::count(text, '#'), static_cast<long>(DeckSchema().size()));
}

}  // namespace
}  // namespace espalier
