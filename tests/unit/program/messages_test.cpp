// Which messages a rank sends, how many, and to whom.
#include <gtest/gtest.h>

#include <map>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

TEST(Program, MessagesOfATensorParallelLayer) {
  // Korthikanti et al. 2022: per layer 2 gathers and 2 scatters forward, 2 gathers and 2 scatters backward, and 2
  // gathers of the saved inputs; head and embedding: a gather or scatter of the stream each way, and three exchanges of
  // the loss (two of them in one message).
  const auto messages = [](int64_t layers) {
    const Compilation c = Compile(SmallDeck({"parallel.tp=2", fmt::format("model.layers={}", layers), "batch.global=1",
                                             "precision.compute=bf16"}),
                                  2, Purpose::kTrain);
    std::map<std::string, int> kinds;
    for (const Instruction& i : MakeProgram(c, {}).instructions)
      if (i.lane == Lane::kTp && i.microbatch >= 0) ++kinds[std::string(Name(c.graph->op(i.op).kind))];
    return kinds;
  };
  std::map<std::string, int> two = messages(2), five = messages(5);
  EXPECT_EQ(five["all_gather"] - two["all_gather"], 3 * 6);
  EXPECT_EQ(five["reduce_scatter"] - two["reduce_scatter"], 3 * 4);
  EXPECT_EQ(two["all_reduce"], 2);
  EXPECT_EQ(five["all_reduce"], 2);
  EXPECT_EQ(two["all_gather"], 2 * 6 + 3)
      << "head: into the product, again for its weight gradient; embedding: its gradient";
  EXPECT_EQ(two["reduce_scatter"], 2 * 4 + 2);
}

/// Messages and bytes that a rank sends on lane cp for one microbatch.
MessageCount ContextMessages(const std::string& way, int cp, int layers, const std::string& compute) {
  const Compilation c = Compile(
      SmallDeck({fmt::format("parallel.cp={}", cp), "parallel.context=" + way, fmt::format("model.layers={}", layers),
                 "model.heads=8", "model.kv_heads=4", "precision.compute=" + compute}),
      cp, Purpose::kTrain);
  MessageCount sent;
  for (const Instruction& i : MakeProgram(c, {}).instructions) {
    if (i.lane != Lane::kCp || i.microbatch != 0) continue;
    ++sent.count;
    sent.bytes += WireBytes(*c.graph, c.graph->ops[static_cast<size_t>(i.op)], c.mesh, {});
  }
  return sent;
}

TEST(Program, MessagesOfAContextParallelLayer) {
  constexpr int64_t kLength = 24, kQueries = 48, kKeys = 2 * 24;  // elements of a token's q, and of its k and v
  for (int64_t layers : {1, 3})
    for (int64_t cp : {2, 4})
      for (int64_t size : {4, 2}) {
        const auto sent = [&](const char* way) {
          return ContextMessages(way, static_cast<int>(cp), static_cast<int>(layers), size == 4 ? "fp32" : "bf16");
        };
        const int64_t tokens = kLength / cp, hops = layers * (cp - 1);
        // Keys and values make cp - 1 hops forward and as many backward, their fp32 gradients as many.
        EXPECT_EQ(sent("ring").count, 3 * hops);
        EXPECT_EQ(sent("ring").bytes, hops * tokens * kKeys * (2 * size + 4));
        // One gather forward and one backward, one scatter of gradients.
        EXPECT_EQ(sent("all_gather").count, layers * 3);
        EXPECT_EQ(sent("all_gather").bytes, hops * tokens * kKeys * 3 * size);
        // q, k and v together, and o, and the same backward: all but the rank's own part.
        EXPECT_EQ(sent("all_to_all").count, layers * 4);
        EXPECT_EQ(sent("all_to_all").bytes, hops * tokens * (2 * kQueries + kKeys) * 2 * size / cp);
      }
}

TEST(Program, AxesOfDegreeOneAddNoMessage) {
  const Compilation c = Compile(SmallDeck(DegreesOf("111")), 1, Purpose::kTrain);
  EXPECT_TRUE(CountMessages(MakeProgram(c, {}), {}).empty());
}

TEST(Program, ChunksOfOneStageSendNothing) {
  // A V on two stages: chunks 0 and 3 on stage 0, 1 and 2 on stage 1. The turn of the V is local, and so is a tied
  // embedding.
  const auto sends = [](const PipelineCase& pipeline, const char* tied) {
    const Compilation c = Compile(SmallDeck(PipelineDeck(pipeline, 2, 8, {tied})), 2, Purpose::kTrain);
    std::vector<int64_t> counts;
    for (const Program& program : AllPrograms(c))
      for (const auto& [lane, count] : CountMessages(program, c.mesh.CoordinateOf(program.stage)))
        if (lane == "pp-send") counts.push_back(count.count);
    return counts;
  };
  const std::vector<int64_t> both = {16, 16}, tied_across = {25, 25};
  EXPECT_EQ(sends({"zbv", 2}, "model.tie_embeddings=false"), both)
      << "stage 0: outputs of chunk 0, gradients of chunk 3; stage 1: those of chunks 2 and 1";
  EXPECT_EQ(sends({"zbv", 2}, "model.tie_embeddings=true"), both);
  EXPECT_EQ(sends({"interleaved", 2}, "model.tie_embeddings=false"), (std::vector<int64_t>{24, 24}));
  EXPECT_EQ(sends({"interleaved", 2}, "model.tie_embeddings=true"), tied_across)
      << "the weight there, its gradient back";
}

TEST(Program, WhatCrossesStagesCrossesOnceAndSharded) {
  // One message forward and one back per microbatch, each with a rank's share of the residual stream: seq_len * dim * 4
  // bytes / tp.
  const Compilation c = Compile(SmallDeck(PipelineDeck({"1f1b", 1}, 3, 4, {"parallel.tp=2"})), 6, Purpose::kTrain);
  const Coordinate middle = {1, 0, 0, 0, 0};
  for (const auto& [lane, count] : CountMessages(MakeProgram(c, middle), middle)) {
    if (lane != "pp-send") continue;
    EXPECT_EQ(count.count, 8);
    EXPECT_EQ(count.bytes, 8 * 24 * 48 * 4 / 2);
  }
}

TEST(Transfer, UnevenPiecesMeetExactly) {
  const Graph graph = ParseGraph(
      "value x : f32[7{dp_shard},3] input step chunk 0\n"
      "value p : f32[5,3]+sum{dp_shard} input step chunk 0\n"
      "y = all_gather(x) {axes=\"dp_shard\"} @ S layer 0 chunk 0 : f32[7,3]\n"
      "q = reduce_scatter(p) {axes=\"dp_shard\"} @ S layer 0 chunk 0 : f32[5{dp_shard},3]\n");
  const Mesh mesh({1, 1, 4, 1, 1});
  for (int op = 0; op < 2; ++op) {
    // Rows in shards of ceil(7/4) = 2: 2 2 2 1; of ceil(5/4) = 2: 2 2 1 0.
    const std::vector<int64_t> rows = op == 0 ? std::vector<int64_t>{2, 2, 2, 1} : std::vector<int64_t>{2, 2, 1, 0};
    for (int me = 0; me < 4; ++me) {
      const TransferPlan plan = PlanTransfer(graph, graph.ops[static_cast<size_t>(op)], mesh, mesh.CoordinateOf(me));
      EXPECT_EQ(plan.reduce, op == 1);
      int64_t received = 0;
      for (const Transfer& t : plan.receives) received += t.box[0].Extent();
      EXPECT_EQ(received, op == 0 ? 7 : rows[static_cast<size_t>(me)] * 4);
      EXPECT_EQ(WireBytes(graph, graph.ops[static_cast<size_t>(op)], mesh, mesh.CoordinateOf(me)),
                op == 0 ? rows[static_cast<size_t>(me)] * 3 * 3 * 4 : (5 - rows[static_cast<size_t>(me)]) * 3 * 4);
    }
  }
}

TEST(Transfer, ARingShiftNamesItsNeighbours) {
  const Graph graph = ParseGraph(
      "value k : bf16[1,8{cp},6] input step chunk 0\n"
      "value v : bf16[1,8{cp},6] input step chunk 0\n"
      "value odd : bf16[1,7{cp}] input step chunk 0\n"
      "k.hop1, v.hop1 = ring_shift(k, v) {axes=\"cp\"} @ S layer 0 chunk 0 : bf16[1,8{cp},6], bf16[1,8{cp},6]\n"
      "odd.hop1 = ring_shift(odd) {axes=\"cp\"} @ S layer 0 chunk 0 : bf16[1,7{cp}]\n");
  const Mesh mesh({1, 1, 1, 4, 1});
  for (int me = 0; me < 4; ++me) {
    const TransferPlan plan = PlanTransfer(graph, graph.ops[0], mesh, mesh.CoordinateOf(me));
    ASSERT_EQ(plan.sends.size(), 2u);
    ASSERT_EQ(plan.receives.size(), 2u);
    for (const Transfer& t : plan.sends) EXPECT_EQ(t.peer, (me + 1) % 4);
    for (const Transfer& t : plan.receives) EXPECT_EQ(t.peer, (me + 3) % 4);
    EXPECT_EQ(WireBytes(graph, graph.ops[0], mesh, mesh.CoordinateOf(me)), 2 * 2 * 6 * 2) << "two tensors of two rows";
    EXPECT_EQ(CommWorkspaceBytes(graph, graph.ops[0], mesh, mesh.CoordinateOf(me)), 2 * 64) << "one message each way";
  }
  EXPECT_THROW(PlanTransfer(graph, graph.ops[1], mesh, mesh.CoordinateOf(0)), InvariantError);
}

}  // namespace
}  // namespace espalier
