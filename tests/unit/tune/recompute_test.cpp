// recompute.mode = "auto": the choice fits, takes no more work than needed, and is a function of its arguments.
#include "espalier/tune/recompute.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "espalier/model/model.hpp"
#include "espalier/passes/recompute_ops.hpp"
#include "test_decks.hpp"
#include "tune/trial.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr DeviceKind kCpu = DeviceKind::kCpu;

int64_t Peak(Deck deck, int ranks, RecomputeMode mode) {
  deck.recompute.mode = mode;
  return PeakBytes(deck, ranks);
}

Deck Auto(std::vector<std::string> overrides) {
  for (const char* more : {"recompute.mode=auto", "model.layers=8", "batch.global=24", "model.seq_len=64"})
    overrides.emplace_back(more);
  return SmallDeck(overrides);
}

TEST(ChooseRecompute, RecomputesNothingThatFits) {
  const Deck deck = Auto({"parallel.pp=2"});
  const RecomputeChoice choice = ChooseRecompute(deck, 2, kCpu, Peak(deck, 2, RecomputeMode::kNone));
  EXPECT_TRUE(choice.fits);
  EXPECT_EQ(choice.deck.recompute.mode, RecomputeMode::kNone);
  EXPECT_THAT(choice.deck.recompute.layers, IsEmpty());
  EXPECT_EQ(choice.compilations, 1);
}

TEST(ChooseRecompute, RecomputesEverythingIfNothingFits) {
  const Deck deck = Auto({});
  const RecomputeChoice choice = ChooseRecompute(deck, 1, kCpu, 1);
  EXPECT_FALSE(choice.fits);
  EXPECT_LE(PeakBytes(choice.deck, 1), Peak(deck, 1, RecomputeMode::kFull));
}

TEST(ChooseRecompute, FitsEveryBudgetThatFullFits) {
  struct Layout {
    std::vector<std::string> keys;
    int ranks;
  };
  const Layout layouts[] = {
      {{}, 1},
      {{"parallel.pp=4"}, 4},
      {{"parallel.pp=2", "parallel.tp=2", "pipeline.schedule=interleaved", "pipeline.chunks=2"}, 4},
      {{"parallel.pp=2", "pipeline.schedule=zb-h1", "precision.compute=bf16"}, 2},
      {{"model.family=gpt2", "model.kv_heads=4", "parallel.tp=2"}, 2},
      {{"batch.ramp_start=6", "batch.ramp_step=6", "parallel.pp=2"}, 2},
      {{"experts.count=4", "experts.per_token=2", "experts.ffn_dim=40", "experts.first_layer=2"}, 1},
      {{"model.mtp_layers=1", "parallel.pp=2"}, 2},
  };
  int tested = 0;
  for (const Layout& layout : layouts) {
    const Deck deck = Auto(layout.keys);
    const int64_t most = Peak(deck, layout.ranks, RecomputeMode::kNone),
                  least = Peak(deck, layout.ranks, RecomputeMode::kFull);
    if (least >= most) continue;  // in tiny models the buffers of what is computed again may take more
    ++tested;
    double added = std::numeric_limits<double>::infinity();
    for (const int64_t budget : {least, (3 * least + most) / 4, (least + most) / 2, (least + 3 * most) / 4}) {
      const RecomputeChoice choice = ChooseRecompute(deck, layout.ranks, kCpu, budget, 1);
      EXPECT_TRUE(choice.fits) << testing::PrintToString(layout.keys) << budget;
      EXPECT_LE(PeakBytes(choice.deck, layout.ranks), budget) << testing::PrintToString(layout.keys);
      double most_added = 0;
      for (const StageRecomputeChoice& stage : choice.stages) most_added = std::max(most_added, stage.added);
      EXPECT_LE(most_added, added + 0.01) << "a larger budget takes no more work";
      added = most_added;
      const RecomputeChoice again = ChooseRecompute(deck, layout.ranks, kCpu, budget, 3);
      EXPECT_EQ(again.deck.recompute.layers, choice.deck.recompute.layers) << "of any number of threads";
      EXPECT_LE(choice.compilations, 40);
    }
    // Messages of tiny models take longer than their kernels.
    EXPECT_LT(added, deck.parallel.tp == 1 ? 0.3 : 1000);
  }
  EXPECT_GE(tested, 6);
}

// With 1F1B the first stage keeps four microbatches, the last one.
TEST(ChooseRecompute, RecomputesOnTheStagesThatKeepMost) {
  const Deck deck = Auto({"parallel.pp=4"});
  const int64_t most = Peak(deck, 4, RecomputeMode::kNone), least = Peak(deck, 4, RecomputeMode::kFull);
  const RecomputeChoice choice = ChooseRecompute(deck, 4, kCpu, (least + 3 * most) / 4);
  ASSERT_EQ(choice.stages.size(), 4);
  EXPECT_GT(choice.stages[0].added, 0);
  EXPECT_EQ(choice.stages[3].added, 0);
  EXPECT_EQ(ToString(choice.stages[3]), "none: 6-7");
  EXPECT_GE(choice.stages[0].added, choice.stages[1].added);
}

/// The names of a layer's ops in forward, in order; "-" for those without.
std::string NamesIn(const std::vector<std::string>& overrides, int layer) {
  const Deck deck = SmallDeck(overrides);
  const Graph graph = BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain, deck.model.seq_len).graph;
  const auto names = RecomputeOpsOf(graph);
  std::string text;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.ops[i].layer == layer && graph.ops[i].role == Role::kF)
      text += fmt::format("{}{}", text.empty() ? "" : " ", names[i] ? DeckName(*names[i]) : "-");
  return text;
}

TEST(RecomputeOps, AreFoundByTheirForm) {
  EXPECT_EQ(NamesIn({}, 1), "norm qkv qkv qkv qkv qkv core_attention - - norm mlp mlp activation - -");
  EXPECT_EQ(NamesIn({"model.family=gpt2", "model.kv_heads=4"}, 2),
            "norm qkv qkv qkv qkv qkv qkv core_attention - - - norm mlp mlp activation - - -");
  EXPECT_EQ(NamesIn({"model.norm_placement=post", "model.qk_norm=full"}, 1),
            "qkv qkv norm qkv qkv qkv norm qkv qkv core_attention - norm - mlp mlp activation - norm -");
  EXPECT_EQ(NamesIn({"model.attention=mla", "model.heads=4", "model.kv_heads=4", "model.head_dim=12",
                     "model.rope_dim=6", "model.v_dim=10", "model.q_rank=14", "model.kv_rank=9", "experts.count=4",
                     "experts.per_token=2", "experts.ffn_dim=24"},
                    1),
            "norm qkv norm qkv qkv qkv norm qkv qkv qkv qkv core_attention - - norm router router - - rows experts "
            "experts activation - - -");
}

}  // namespace
}  // namespace espalier
