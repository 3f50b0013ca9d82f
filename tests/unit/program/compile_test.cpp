// The ops of a rank's program, and the plan of many ranks.
#include "espalier/program/compile.hpp"

#include <gtest/gtest.h>

#include "espalier/graph/provenance.hpp"
#include "espalier/program/half_compilation.hpp"
#include "espalier/program/plan.hpp"
#include "program_testing.hpp"
#include "source_tree.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

TEST(Program, OpsOfOtherStagesAreNotEmitted) {
  const Compilation c = Compile(SmallDeck(DegreesOf("411")), 4, Purpose::kTrain);
  for (const Program& program : AllPrograms(c))
    for (const Instruction& i : program.instructions) {
      const int chunk = c.graph->ops[static_cast<size_t>(i.op)].chunk;
      EXPECT_TRUE(chunk == kAllChunks || c.StageOf(chunk) == program.stage);
    }
}

TEST(Program, SameDeckSameBytes) {
  const auto text = [] {
    return Print(MakeProgram(Compile(SmallDeck(DegreesOf("222")), 8, Purpose::kTrain), {1, 0, 1, 0, 1}));
  };
  EXPECT_EQ(text(), text());
}

// Ranks compare what each of them has computed: with ZeRO 3, too, no gradient is reduced, and nothing is updated.
TEST(Program, ComparedGradientsStayOnTheirRank) {
  const Compilation c = Compile(SmallDeck({"parallel.dp_shard=2", "parallel.zero=3"}), 2, Purpose::kGradients);
  int gradients = 0;
  for (const Value& v : c.graph->values) {
    if (v.kind != ValueKind::kAccumulator || !IsGradientOfWeight(v)) continue;
    ++gradients;
    EXPECT_EQ(v.type.placements.DimOf(Axis::kDpShard), -1) << v.name;
    EXPECT_TRUE(v.type.placements.partial_sum.Has(Axis::kDpShard)) << v.name;
  }
  EXPECT_EQ(gradients, static_cast<int>(c.parameters.size()));
  for (const Op& op : c.graph->ops) EXPECT_TRUE(op.kind != OpKind::kAdamw && op.kind != OpKind::kReduceScatter);
  ProveWorld(c);
}

/// Ops of a role that read this number of values.
int64_t CountOps(const Graph& graph, std::string_view kind, Role role, size_t inputs) {
  return std::count_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) {
    return op.kind == OpKindOf(kind) && op.role == role && op.inputs.size() == inputs;
  });
}

// Each layer adds twice to the residual stream. A sum that crosses stages has no norm next to it; its gradient has, on
// the next stage. The ops of norms' input and weight gradients are fused. With full recompute the sum inside a layer is
// computed again with its norm.
TEST(Program, AdditionsToTheStreamJoinNorms) {
  for (const bool gpt2 : {false, true})
    for (const char* layout : {"111", "222", "411"})
      for (const char* mode : {"none", "selective", "full"}) {
        std::vector<std::string> overrides = DegreesOf(layout);
        overrides.push_back(fmt::format("recompute.mode={}", mode));
        if (gpt2) overrides.insert(overrides.end(), {"model.family=gpt2", "model.kv_heads=4"});
        const Compilation c = Compile(SmallDeck(overrides), RanksOf(layout), Purpose::kTrain);
        const std::string norm = gpt2 ? "layer_norm" : "rms_norm";
        const size_t plain = gpt2 ? 3 : 2, plain_gradient = gpt2 ? 5 : 4;
        const int crossings = layout[0] - '1';
        SCOPED_TRACE(fmt::format("{} {} {}", norm, layout, mode));
        EXPECT_EQ(CountOps(*c.graph, norm, Role::kF, plain + 1), 8 - crossings);
        EXPECT_EQ(CountOps(*c.graph, "add", Role::kF, 2), crossings);
        EXPECT_EQ(CountOps(*c.graph, norm + "_backward", Role::kB, plain_gradient + 1), 8);
        EXPECT_EQ(CountOps(*c.graph, norm + "_backward", Role::kB, plain_gradient), 1);
        EXPECT_EQ(CountOps(*c.graph, norm + "_weight_grad", Role::kW, plain_gradient - 1), 0);
        EXPECT_EQ(CountOps(*c.graph, norm, Role::kB, plain + 1), std::string_view(mode) == "full" ? 4 : 0);
      }
}

// A layer of GPT-2 has six biases; the biases of the two matmuls that tp leaves partial are added after the reduction.
TEST(Program, BiasesJoinProducts) {
  for (int tp : {1, 2}) {
    const Compilation c = Compile(
        SmallDeck({"model.family=gpt2", "model.kv_heads=4", fmt::format("parallel.tp={}", tp)}), tp, Purpose::kTrain);
    EXPECT_EQ(CountOps(*c.graph, "matmul", Role::kF, 3), tp == 1 ? 4 * 6 : 4 * 4);
    EXPECT_EQ(CountOps(*c.graph, "add_bias", Role::kF, 2), tp == 1 ? 0 : 4 * 2);
  }
}

/// Values [b,s,vocab] that an op reads or makes.
std::vector<Shape> LogitsOf(const Graph& graph, const Op& op, int64_t vocab) {
  std::vector<Shape> shapes;
  for (const std::vector<int>* values : {&op.inputs, &op.outputs})
    for (int v : *values)
      if (const Shape& shape = graph.value(v).type.shape; shape.size() == 3 && shape[2] == vocab)
        shapes.push_back(shape);
  return shapes;
}

TEST(Program, LogitsInChunksAreNeverWholeAndDoNotWaitForBackward) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    for (Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
      const Deck deck =
          SmallDeck({"parallel.pp=2", "batch.micro=2", "loss.chunks=5", fmt::format("pipeline.schedule={}", schedule)});
      const Compilation c = Compile(deck, 2, purpose);
      const int64_t rows = 2 * deck.model.seq_len;
      int64_t found = 0;
      for (const Op& op : c.graph->ops)
        for (const Shape& shape : LogitsOf(*c.graph, op, deck.model.vocab)) {
          ++found;
          EXPECT_EQ(op.role, Role::kF) << Name(op.kind);
          EXPECT_LE(shape[0] * shape[1], (rows + 4) / 5) << Name(op.kind);
        }
      EXPECT_GT(found, 5) << schedule;
    }
}

/// Automatic chunks of the rows of a microbatch.
int64_t ChunksOf(const std::string& path, std::vector<std::string> overrides, int ranks) {
  overrides.push_back("loss.chunks=0");
  const Compilation c = Compile(LoadDeck(path, overrides).deck, ranks, Purpose::kTrain);
  return std::max<int64_t>(1, CountOps(*c.graph, "put_rows", Role::kF, 1));
}

TEST(Program, AutomaticChunksOfTheLossAreFewAndLarge) {
  const std::string small = InTree("inputs/gpt2/124m.toml"), large = InTree("inputs/llama/8b.toml");
  const std::string bf16 = "precision.compute=bf16";
  // 32 x 1024 rows of about 50304 are 3.3 GB in bf16: seven chunks of up to 512 MiB, or thirteen in fp32.
  EXPECT_EQ(ChunksOf(small, {"batch.micro=32", "batch.global=32", bf16}, 1), 7);
  EXPECT_EQ(ChunksOf(small, {"batch.micro=32", "batch.global=32", "precision.compute=fp32"}, 1), 13);
  EXPECT_EQ(ChunksOf(small, {"batch.micro=4", "batch.global=4", bf16}, 1), 1);
  // 8192 rows of 128256 are 2.1 GB: four chunks of 2048 rows, or one if the vocabulary is sharded over eight ranks.
  EXPECT_EQ(ChunksOf(large, {}, 8), 4);
  EXPECT_EQ(ChunksOf(large, {"parallel.tp=8"}, 8), 1);
  // No fewer than 2048 rows.
  EXPECT_EQ(ChunksOf(large, {"model.seq_len=3000"}, 8), 1);
}

TEST(Plan, SeventyBillionOnAThousandRanks) {
  const WorldPlan plan =
      PlanWorld(LoadDeck(InTree("inputs/llama/70b.toml"), {"parallel.pp=8", "parallel.tp=8"}).deck, 1024);
  EXPECT_EQ(plan.training.parameter_count, 70553706496);
  EXPECT_EQ(plan.stages.size(), 8u);
  std::vector<int> layers;
  for (const StagePlan& stage : plan.stages) layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  EXPECT_EQ(layers.size(), 80u);
  EXPECT_EQ(plan.rank_peak_bytes.size(), 1024u);
  EXPECT_EQ(plan.programs.size(), 8u) << "ranks of a stage share a program";
}

TEST(Plan, UnevenShardsMakeClasses) {
  // 260 rows over tp 1, dp_shard 3: shards of 87, 87, 86.
  const Compilation c = Compile(SmallDeck({"parallel.dp_shard=3", "batch.global=6"}), 3, Purpose::kTrain);
  EXPECT_EQ(ClassRepresentatives(c), (std::vector<int>{0, 0, 2}));
}

// Sizes that no degree divides: the shards of a rank depend on all its coordinates.
const std::vector<Case> kUneven = {
    {{"parallel.dp_shard=3", "batch.global=6"}, 3},
    {{"parallel.pp=2", "parallel.dp_shard=3", "parallel.tp=2", "batch.global=6"}, 12},
    {{"parallel.pp=2", "parallel.dp_shard=3", "parallel.cp=2", "batch.global=6", "model.ffn_dim=100"}, 12},
    {{"parallel.pp=4", "parallel.dp_shard=5", "batch.global=10", "parallel.zero=3", "recompute.regather=always"}, 20},
};

TEST(Plan, RanksOfAClassHaveOneProgram) {
  for (const Case& layout : kUneven) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const WorldPlan plan = PlanWorld(SmallDeck(layout.overrides), layout.ranks);
    EXPECT_LT(plan.programs.size(), static_cast<size_t>(layout.ranks));
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const Coordinate coordinate = plan.training.mesh.CoordinateOf(rank);
      const Program own = MakeProgram(plan.training, coordinate);
      EXPECT_EQ(Print(own), Print(plan.programs.at(plan.representative[rank]))) << rank;
      EXPECT_GE(plan.rank_peak_bytes[rank], own.arena_bytes);
    }
  }
}

// The proof of a load and the evaluation keep the states of training below their own buffers.
TEST(Plan, PeaksAreThoseOfEveryRanksOwnPrograms) {
  for (Case layout : kUneven) {
    SCOPED_TRACE(testing::PrintToString(layout));
    layout.overrides.insert(layout.overrides.end(), {"data.validate_every_steps=2", "data.validation=[\"x\"]"});
    const Deck deck = SmallDeck(layout.overrides);
    const WorldPlan plan = PlanWorld(deck, layout.ranks);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const Coordinate coordinate = plan.training.mesh.CoordinateOf(rank);
      const Program training = MakeProgram(plan.training, coordinate);
      int64_t peak = training.arena_bytes;
      for (Purpose purpose : {Purpose::kProof, Purpose::kEvaluate})
        peak = std::max(
            peak, MakeProgram(Compile(deck, layout.ranks, purpose), coordinate, StateBytes(training)).arena_bytes);
      EXPECT_EQ(plan.rank_peak_bytes[rank], peak) << rank;
    }
  }
}

// The program of each size equals the program of a deck with that number of sequences, with its states in the same
// places.
TEST(Plan, ARampHasThePeakOfItsLargestProgram) {
  for (const Case& layout : kUneven) {
    SCOPED_TRACE(testing::PrintToString(layout));
    std::vector<std::string> overrides = layout.overrides;
    const int64_t unit = SmallDeck(overrides).batch.global;
    overrides.insert(overrides.end(),
                     {fmt::format("batch.global={}", 4 * unit), fmt::format("batch.ramp_start={}", unit),
                      fmt::format("batch.ramp_step={}", 3 * unit)});
    const Deck deck = SmallDeck(overrides);
    const std::vector<ProgramOfRun> programs = ProgramsOfRun(deck);
    ASSERT_EQ(programs.size(), 3u);
    EXPECT_EQ(programs[2].deck.batch.global, unit);
    const WorldPlan plan = PlanWorld(deck, layout.ranks);
    const Compilation small = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    const Compilation of_ramp = Compile(programs[2].deck, layout.ranks, Purpose::kTrain);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const Coordinate coordinate = plan.training.mesh.CoordinateOf(rank);
      const Program full = MakeProgram(plan.training, coordinate), first = MakeProgram(of_ramp, coordinate);
      EXPECT_EQ(Print(first), Print(MakeProgram(small, coordinate))) << rank;
      EXPECT_EQ(StateBytes(first), StateBytes(full)) << rank;
      EXPECT_GE(plan.rank_peak_bytes[rank], std::max(first.arena_bytes, full.arena_bytes)) << rank;
    }
  }
}

TEST(Program, ThreadsMakeTheSameProgramsAsOne) {
  const Compilation c = Compile(SmallDeck(kUneven[1].overrides), kUneven[1].ranks, Purpose::kTrain);
  const std::vector<int> representative = ClassRepresentatives(c);
  const std::map<int, Program> one = MakePrograms(c, representative, 1), many = MakePrograms(c, representative, 5);
  ASSERT_EQ(one.size(), many.size());
  for (const auto& [rank, program] : one) EXPECT_EQ(Print(program), Print(many.at(rank))) << rank;
}

TEST(Compile, VerifyingAtTheEndChangesNothing) {
  for (const Case& layout : AllCases()) {
    const Deck deck = SmallDeck(layout.overrides);
    const Compilation often = Compile(deck, layout.ranks, Purpose::kTrain);
    const Compilation once = Compile(deck, layout.ranks, Purpose::kTrain, {}, Verification::kAtTheEnd);
    EXPECT_EQ(Print(*often.graph), Print(*once.graph)) << testing::PrintToString(layout);
  }
}

TEST(Compile, ModesOfRecomputationShareAHalf) {
  for (const Case& layout : AllCases()) {
    Deck deck = SmallDeck(layout.overrides);
    const HalfCompilation half(deck, layout.ranks, Purpose::kTrain);
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
      deck.recompute.mode = mode;
      const Compilation whole = Compile(deck, layout.ranks, Purpose::kTrain);
      EXPECT_EQ(Print(*half.With(deck.recompute).graph), Print(*whole.graph)) << testing::PrintToString(layout);
    }
  }
}

}  // namespace
}  // namespace espalier
