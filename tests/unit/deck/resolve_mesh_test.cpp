// The mesh of a deck on a number of ranks, the learning rate, and the decks of inputs/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Strings = std::vector<std::string>;

Strings MeshErrors(const Strings& overrides, int ranks) {
  const Deck deck = Small(overrides);
  return ErrorsOf([&] { ResolveMesh(deck, ranks); });
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
  for (const char* tp : {"parallel.tp=1", "parallel.tp=2"})
    EXPECT_EQ(
        SmallestRanks(Small({"parallel.dp_shard=-1", "parallel.ep=4", "experts.count=8", "experts.ffn_dim=8", tp})), 4)
        << tp;
}

TEST(ResolveMesh, EveryBrokenRelationWithItsNumbers) {
  EXPECT_THAT(
      MeshErrors({"parallel.pp=2", "parallel.tp=2"}, 6),
      ElementsAre("parallel: pp 2 x dp_replicate 1 x cp 1 x tp 2 = 4 must divide the number of ranks, 6 (allowed: 4, "
                  "8, 12, ...; or set parallel.pp=1 parallel.tp=1 batch.global=18)"));
  EXPECT_THAT(
      MeshErrors({"parallel.dp_shard=2", "parallel.tp=2"}, 6),
      ElementsAre("parallel: pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2 = 4, but the number of ranks is 6 "
                  "(start 4, or set parallel.dp_shard=-1 batch.global=18)"));
  EXPECT_THAT(MeshErrors({}, 3),
              ElementsAre("batch.global = 12: must be a multiple of batch.micro * dp_replicate * "
                          "dp_shard = 3 * 1 * 3 = 9 (allowed: 9, 18, 27, ...; set batch.global=18)"));
  // Keys that depend on an open dp_shard are not checked with a wrong number of ranks.
  EXPECT_THAT(MeshErrors({"parallel.pp=2"}, 15), SizeIs(1));
  Deck deck = Small();
  deck.parallel.tp = 4;
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(deck, 4); }),
              ElementsAre("parallel.tp = 4: must divide model.heads = 6 (allowed: 1, 2, 6)"));
}

TEST(ResolveMesh, WholeSequencesNeedHeads) {
  const Strings layout = {"parallel.context=all_to_all", "model.heads=12", "model.kv_heads=4", "parallel.cp=2",
                          "parallel.tp=2"};
  EXPECT_EQ(ResolveMesh(Small(layout), 4).Degree(Axis::kCp), 2);
  Deck deck = Small(layout);
  deck.parallel.cp = 4;
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(deck, 8); }),
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
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(loaded, 5); }),
              ElementsAre(testing::StartsWith("command line: parallel: pp 1 x")));
}

TEST(ResolveMesh, HugeDegreesDoNotOverflow) {
  const Strings layout = {"parallel.dp_replicate=65536", "parallel.tp=1", "parallel.dp_shard=65536",
                          "batch.global=2147483647", "batch.micro=2147483647"};
  EXPECT_THAT(Errors(layout), testing::Contains(HasSubstr("= 2147483647 * 65536 * 65536 = 9223372032559808512")));
}

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

TEST(LearningRate, StaysForTheStableStepsAndThenDecays) {
  const Strings base = {"run.steps=20", "lr.warmup_steps=4", "lr.stable_steps=6", "optimizer.lr=0.5",
                        "lr.min_ratio=0.2"};
  const auto with = [&](const std::string& decay) {
    Strings overrides = base;
    overrides.push_back("lr.decay=" + decay);
    return Small(overrides);
  };
  EXPECT_EQ(with("cosine").lr.decay_steps, 10);
  for (const char* decay : {"cosine", "linear", "one_minus_sqrt", "inverse_sqrt", "constant"}) {
    EXPECT_DOUBLE_EQ(LearningRate(with(decay), 1), 0.125) << decay;
    for (int64_t step : {4, 5, 7, 10}) EXPECT_DOUBLE_EQ(LearningRate(with(decay), step), 0.5) << decay << step;
  }
  EXPECT_DOUBLE_EQ(LearningRate(with("cosine"), 13), 0.5 * (0.2 + 0.8 * (1 + std::cos(M_PI * 0.3)) / 2));
  EXPECT_DOUBLE_EQ(LearningRate(with("linear"), 13), 0.5 * (1 - 0.8 * 0.3));
  EXPECT_DOUBLE_EQ(LearningRate(with("one_minus_sqrt"), 13), 0.5 * (1 - 0.8 * std::sqrt(0.3)));
  for (const char* decay : {"cosine", "linear", "one_minus_sqrt"})
    for (int64_t step : {20, 21, 900}) EXPECT_DOUBLE_EQ(LearningRate(with(decay), step), 0.1) << decay << step;
  EXPECT_DOUBLE_EQ(LearningRate(with("inverse_sqrt"), 11), 0.5 * std::sqrt(10.0 / 11));
  EXPECT_DOUBLE_EQ(LearningRate(with("inverse_sqrt"), 40), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(with("inverse_sqrt"), 250), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(with("inverse_sqrt"), 251), 0.1) << "min_ratio is a floor";
}

TEST(LearningRate, InverseSqrtWithoutWarmUpStartsAtTheFirstStep) {
  const Deck deck = Small({"optimizer.lr=0.5", "lr.decay=inverse_sqrt", "lr.min_ratio=0"});
  EXPECT_DOUBLE_EQ(LearningRate(deck, 1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(deck, 9), 0.5 / 3);
  EXPECT_DOUBLE_EQ(LearningRate(deck, 10000), 0.005);
}

TEST(Inputs, EveryDeckIsValidOnItsSmallestMesh) {
  int decks = 0;
  for (const auto& entry : fs::recursive_directory_iterator(InTree("inputs"))) {
    if (entry.path().extension() != ".toml" || entry.path().parent_path().filename() == "clusters") continue;
    ++decks;
    const LoadedDeck loaded = LoadDeck(entry.path().string());
    EXPECT_EQ(ResolveMesh(loaded, SmallestRanks(loaded.deck)).Ranks(), SmallestRanks(loaded.deck)) << entry.path();
    ExpectEqualDecks(ParseDeck(EffectiveDeck(loaded.deck), loaded.deck.name).deck, loaded.deck);
  }
  EXPECT_GE(decks, 4);
}

TEST(Inputs, TheDefaultDeckIsTheOneOfTheReadme) {
  const LoadedDeck loaded = LoadDeck(InTree("inputs/llama/tiny.toml"));
  for (int ranks : {1, 2, 4, 8}) EXPECT_EQ(ResolveMesh(loaded, ranks).Degree(Axis::kDpShard), ranks);
  const LoadedDeck eight = LoadDeck(InTree("inputs/llama/tiny-8.toml"));
  EXPECT_EQ(ResolveMesh(eight, 8).ToString(), "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2");
  EXPECT_EQ(loaded.deck.model.vocab, 256);
  EXPECT_EQ(loaded.deck.data.paths[0], InTree("src/**/*.cpp"));
}

TEST(Inputs, TheLargestDeckOnThousandsOfRanks) {
  const Deck deck = LoadDeck(InTree("inputs/llama/405b.toml")).deck;
  const Mesh mesh = ResolveMesh(deck, 16384);
  EXPECT_EQ(mesh.ToString(), "pp 32 x dp_replicate 1 x dp_shard 32 x cp 8 x tp 2");
  EXPECT_EQ(BatchOf(deck, mesh).microbatches, 64);
}

}  // namespace
}  // namespace espalier
