// The world checker: accepts every layout and schedule, refuses what would wait forever.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/program/compile.hpp"
#include "lane_shuffle.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

TEST(WorldChecker, AcceptsEveryLayout) {
  for (Case layout : AllCases()) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      layout.overrides.push_back(std::string("pipeline.schedule=") + schedule);
      const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
      EXPECT_EQ(WhatCheckSays(c.mesh, AllPrograms(c)), "") << testing::PrintToString(layout);
    }
  }
}

// Order of messages, absence of deadlock, and waits, with rendezvous and the real memory plan: also where the head's
// chunk is alone, for tied embeddings, which cross stages or do not, and for evaluation.
TEST(WorldChecker, AcceptsEverySchedule) {
  for (const PipelineCase& pipeline : kPipelines)
    for (int p : {2, 3, 4, 8})
      for (int m : {1, 2, p - 1, p, p + 1, 2 * p, 2 * p + 1, 3 * p + 2}) {
        if (m < TraitsOf(*ParseChoice<ScheduleKind>(pipeline.schedule)).MinMicrobatches(p)) continue;
        for (Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
          const std::string tied = m % 2 == 0 ? "model.tie_embeddings=true" : "model.tie_embeddings=false";
          const Compilation c =
              Compile(SmallDeck(PipelineDeck(pipeline, p, m, {tied, "precision.compute=bf16"})), p, purpose);
          EXPECT_EQ(WhatCheckSays(c.mesh, AllPrograms(c)), "") << pipeline.schedule << " p " << p << " m " << m;
        }
      }
}

TEST(WorldChecker, AcceptsSchedulesWithOtherAxesAndUnevenSplits) {
  for (const PipelineCase& pipeline : kPipelines) {
    std::vector<std::string> split;
    for (int c = 0; c < 2 * pipeline.chunks; ++c) split.push_back(c == 1 ? "2" : "1");
    const Compilation c =
        Compile(SmallDeck(PipelineDeck(pipeline, 2, 12,
                                       {"parallel.dp_shard=2", "parallel.tp=2", "recompute.regather=always",
                                        fmt::format("pipeline.split=[{}]", fmt::join(split, ","))})),
                8, Purpose::kTrain);
    EXPECT_EQ(WhatCheckSays(c.mesh, AllPrograms(c)), "") << pipeline.schedule;
    for (unsigned seed : {1u, 2u}) {
      for (int rank : {0, 7}) LaneShuffle(MakeProgram(c, c.mesh.CoordinateOf(rank)), seed).Run();
      if (HasFatalFailure()) FAIL() << pipeline.schedule << " seed " << seed;
    }
  }
}

TEST(IssueOrder, EveryScheduleIssuesAllCommunicationInOneOrder) {
  for (const PipelineCase& pipeline : kPipelines)
    for (int p : {2, 3, 4, 8})
      for (int m : {1, p - 1, p, 2 * p + 1, 3 * p + 2}) {
        if (m < TraitsOf(*ParseChoice<ScheduleKind>(pipeline.schedule)).MinMicrobatches(p)) continue;
        for (Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate, Purpose::kProof}) {
          const std::string tied = m % 2 == 0 ? "model.tie_embeddings=true" : "model.tie_embeddings=false";
          const Compilation c = Compile(SmallDeck(PipelineDeck(pipeline, p, m, {tied, "run.device=cuda"})), p, purpose);
          EXPECT_EQ(WhatCheckSays(c.mesh, AllPrograms(c)), "") << pipeline.schedule << " p " << p << " m " << m;
        }
      }
}

TEST(IssueOrder, WithEveryOtherAxis) {
  for (Case layout : AllCases()) {
    layout.overrides.push_back("run.device=cuda");
    const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    EXPECT_EQ(WhatCheckSays(c.mesh, AllPrograms(c)), "") << testing::PrintToString(layout);
  }
  for (const PipelineCase& pipeline : kPipelines) {
    const Compilation c =
        Compile(SmallDeck(PipelineDeck(pipeline, 2, 12, {"parallel.dp_shard=2", "parallel.tp=2", "run.device=cuda"})),
                8, Purpose::kTrain);
    const std::vector<Program> programs = AllPrograms(c);
    EXPECT_EQ(WhatCheckSays(c.mesh, programs), "") << pipeline.schedule;
    LaneShuffle(programs.back(), 3).Run();
    if (HasFatalFailure()) FAIL() << pipeline.schedule;
  }
}

TEST(IssueOrder, TheOrderOfSideBySideLanesIsRefused) {
  // 1f1b of two stages: stage 0 would receive the first gradient before its second send, stage 1 the second input
  // before it sends that gradient.
  const Compilation c = Compile(SmallDeck(Layout("211")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  EXPECT_EQ(WhatCheckSays(c.mesh, programs), "");
  for (Program& program : programs) program.device = DeviceKind::kCuda;
  EXPECT_THAT(WhatCheckSays(c.mesh, programs),
              testing::AllOf(testing::HasSubstr("no order of all communication agrees"),
                             testing::HasSubstr("stage 0 at recv"), testing::HasSubstr("stage 1 at recv")));
}

TEST(IssueOrder, RefusesAPlantedCycle) {
  const Compilation c =
      Compile(SmallDeck(PipelineDeck({"dualpipev", 2}, 4, 12, {"run.device=cuda"})), 4, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  std::vector<Instruction>& list = programs[1].instructions;
  const size_t send = FindInstruction(programs[1], "send", 5);
  const auto recv = std::find_if(list.begin() + static_cast<std::ptrdiff_t>(send), list.end(),
                                 [](const Instruction& i) { return i.lane == Lane::kPpRecv; });
  ASSERT_NE(recv, list.end());
  std::rotate(list.begin() + static_cast<std::ptrdiff_t>(send), recv, recv + 1);
  for (Instruction& i : list) i.waits.clear();
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("no order of all communication agrees"));
}

TEST(IssueOrder, RanksOfAStageIssueAlike) {
  const Compilation c =
      Compile(SmallDeck({"parallel.dp_shard=2", "parallel.tp=2", "run.device=cuda"}), 4, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  EXPECT_EQ(WhatCheckSays(c.mesh, programs), "");
  // One rank issues a gather of parameters after the first collective of tp.
  std::vector<Instruction>& list = programs[2].instructions;
  const auto tp = std::find_if(list.begin(), list.end(), [](const Instruction& i) { return i.lane == Lane::kTp; });
  const auto dp = std::find_if(std::make_reverse_iterator(tp), list.rend(),
                               [](const Instruction& i) { return i.lane == Lane::kDp; });
  ASSERT_NE(dp, list.rend());
  std::rotate(dp.base() - 1, dp.base(), tp + 1);
  for (Program& program : programs)
    for (Instruction& i : program.instructions) i.waits.clear();
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("issue their communication in different orders"));
}

TEST(WorldChecker, RefusesAReorderedSend) {
  const Compilation c = Compile(SmallDeck(Layout("221")), 4, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  Program& first = programs[0];
  std::swap(first.instructions[FindInstruction(first, "send", 1)].microbatch,
            first.instructions[FindInstruction(first, "send", 2)].microbatch);
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("but the receiver expects recv"));
}

TEST(WorldChecker, RefusesAMissingCollective) {
  const Compilation c = Compile(SmallDeck(Layout("112")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  programs[1].instructions.erase(programs[1].instructions.begin() +
                                 static_cast<std::ptrdiff_t>(FindInstruction(programs[1], "all_gather", 3)));
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("group tp on lane tp"));
}

TEST(WorldChecker, RefusesAMissingReceive) {
  const Compilation c = Compile(SmallDeck(Layout("211")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  auto& instructions = programs[1].instructions;
  size_t last = 0;
  for (size_t i = 0; i < instructions.size(); ++i)
    if (instructions[i].lane == Lane::kPpRecv) last = i;
  instructions.erase(instructions.begin() + static_cast<std::ptrdiff_t>(last));
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("messages to rank 1, which expects"));
}

TEST(WorldChecker, RefusesADeadlockBetweenStages) {
  const Compilation c = Compile(SmallDeck(Layout("211")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  // Stage 0 may post its first receive only after a send that comes later in its own lane.
  Program& p = programs[0];
  const int sends = static_cast<int>(std::count_if(p.instructions.begin(), p.instructions.end(),
                                                   [](const Instruction& i) { return i.lane == Lane::kPpSend; }));
  p.instructions[FindInstruction(p, "recv")].waits.push_back({Lane::kPpSend, sends});
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("deadlock"));
}

}  // namespace
}  // namespace espalier
