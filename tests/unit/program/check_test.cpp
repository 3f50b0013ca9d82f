// The world checker: accepts every layout and schedule, refuses programs that would deadlock.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

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

// Order of messages, absence of deadlock, and waits, with rendezvous and the real memory plan: also if the head's chunk
// is alone, for tied embeddings, which cross stages or do not, and for evaluation.
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
  // 1f1b with two stages: stage 0 would receive the first gradient before its second send, and stage 1 the second input
  // before it sends that gradient.
  const Compilation c = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
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
  const size_t send = FindInstruction(programs[1], "send", 5);
  Edit(programs[1], [&](std::vector<Instruction>& list) {
    const auto recv = std::find_if(list.begin() + static_cast<std::ptrdiff_t>(send), list.end(),
                                   [](const Instruction& i) { return i.lane == Lane::kPpRecv; });
    ASSERT_NE(recv, list.end());
    std::rotate(list.begin() + static_cast<std::ptrdiff_t>(send), recv, recv + 1);
  });
  ClearWaits(programs[1]);
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("no order of all communication agrees"));
}

TEST(IssueOrder, RanksOfAStageIssueAlike) {
  const Compilation c =
      Compile(SmallDeck({"parallel.dp_shard=2", "parallel.tp=2", "run.device=cuda"}), 4, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  EXPECT_EQ(WhatCheckSays(c.mesh, programs), "");
  // One rank issues a gather of parameters after the first collective of tp.
  Edit(programs[2], [](std::vector<Instruction>& list) {
    const auto tp = std::ranges::find(list, Lane::kTp, &Instruction::lane);
    const auto dp = std::find_if(std::make_reverse_iterator(tp), list.rend(),
                                 [](const Instruction& i) { return i.lane == Lane::kDp; });
    ASSERT_NE(dp, list.rend());
    std::rotate(dp.base() - 1, dp.base(), tp + 1);
  });
  for (Program& program : programs) ClearWaits(program);
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("issue their communication in different orders"));
}

TEST(WorldChecker, RefusesAReorderedSend) {
  const Compilation c = Compile(SmallDeck(DegreesOf("221")), 4, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  Program& first = programs[0];
  SwapMicrobatches(first, FindInstruction(first, "send", 1), FindInstruction(first, "send", 2));
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("but the receiver expects recv"));
}

TEST(WorldChecker, RefusesAMissingCollective) {
  const Compilation c = Compile(SmallDeck(DegreesOf("112")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  Erase(programs[1], FindInstruction(programs[1], "all_gather", 3));
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("group tp on lane tp"));
}

TEST(WorldChecker, RefusesAMissingReceive) {
  const Compilation c = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  const Instructions& instructions = programs[1].instructions;
  size_t last = 0;
  for (size_t i = 0; i < instructions.size(); ++i)
    if (instructions[i].lane == Lane::kPpRecv) last = i;
  Erase(programs[1], last);
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("messages to rank 1, which expects"));
}

TEST(WorldChecker, RefusesADeadlockBetweenStages) {
  const Compilation c = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
  std::vector<Program> programs = AllPrograms(c);
  // Stage 0 may post its first receive only after a send that comes later in its own lane.
  Program& p = programs[0];
  const int sends = static_cast<int>(std::count_if(p.instructions.begin(), p.instructions.end(),
                                                   [](const Instruction& i) { return i.lane == Lane::kPpSend; }));
  const size_t recv = FindInstruction(p, "recv");
  const std::span<const Wait> planned = p.instructions[recv].waits;
  std::vector<Wait> waits(planned.begin(), planned.end());
  waits.push_back({Lane::kPpSend, sends});
  Edit(p, [&](std::vector<Instruction>& list) { list[recv].waits = waits; });
  EXPECT_THAT(WhatCheckSays(c.mesh, programs), testing::HasSubstr("deadlock"));
}

/// The checker's message about programs that ranks share.
std::string WhatCheckSaysOf(const Mesh& mesh, const std::function<const Program&(int)>& program_of) {
  try {
    CheckWorld(mesh, program_of);
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "";
}

// All ranks but one share a program: only the groups of that rank are wrong.
TEST(WorldChecker, FindsTheOneGroupThatDiffers) {
  const Compilation c = Compile(SmallDeck({"parallel.dp_shard=4", "parallel.tp=2"}), 8, Purpose::kTrain);
  const Program program = MakeProgram(c, c.mesh.CoordinateOf(0));
  Program other = program;
  const size_t gather = FindInstruction(other, "all_gather", 3), scatter = FindInstruction(other, "reduce_scatter", 1);
  Edit(other, [&](std::vector<Instruction>& list) { std::swap(list[gather], list[scatter]); });
  for (int wrong : {7, 6, 3, 0})
    EXPECT_THAT(WhatCheckSaysOf(c.mesh, [&](int rank) -> const Program& { return rank == wrong ? other : program; }),
                testing::AllOf(testing::HasSubstr("group"), testing::HasSubstr(fmt::format("on rank {}", wrong))))
        << wrong;
  EXPECT_EQ(WhatCheckSaysOf(c.mesh, [&](int) -> const Program& { return program; }), "");
  // If all are wrong in the same way, the groups agree, but the lanes of each rank wait for each other.
  EXPECT_THAT(WhatCheckSaysOf(c.mesh, [&](int) -> const Program& { return other; }), testing::HasSubstr("deadlock"));
}

// The messages of one pipeline among four; the other three share their programs.
TEST(WorldChecker, FindsTheOnePipelineThatDiffers) {
  const Compilation c = Compile(SmallDeck({"parallel.pp=2", "parallel.dp_shard=4"}), 8, Purpose::kTrain);
  const Program first = MakeProgram(c, c.mesh.CoordinateOf(0)), last = MakeProgram(c, c.mesh.CoordinateOf(4));
  Program other = last;
  SwapMicrobatches(other, FindInstruction(other, "recv", 0), FindInstruction(other, "recv", 1));
  const auto with = [&](int wrong) {
    return WhatCheckSaysOf(c.mesh, [&, wrong](int rank) -> const Program& {
      return rank == wrong ? other : rank < 4 ? first : last;
    });
  };
  EXPECT_EQ(with(-1), "");
  for (int wrong : {4, 6, 7})
    EXPECT_THAT(with(wrong), testing::HasSubstr(fmt::format("from rank {} to rank {} is send", wrong - 4, wrong)));
}

// 260 rows over three ranks: 87, 87, 86. The classes have different programs, all of which fit together.
TEST(WorldChecker, ComparesUnevenClasses) {
  const Compilation c = Compile(SmallDeck({"parallel.pp=2", "parallel.dp_shard=3", "parallel.tp=2", "batch.global=6"}),
                                12, Purpose::kTrain);
  const std::vector<int> representative = ClassRepresentatives(c);
  EXPECT_GT(std::set<int>(representative.begin(), representative.end()).size(), 2u);
  std::map<int, Program> programs = MakePrograms(c, representative);
  const auto check = [&] {
    return WhatCheckSaysOf(c.mesh, [&](int rank) -> const Program& { return programs.at(representative[rank]); });
  };
  EXPECT_EQ(check(), "");
  for (auto& [rank, program] : programs) {
    const Program intact = program;
    Erase(program, FindInstruction(program, "all_gather"));
    const bool alone = std::count(representative.begin(), representative.end(), rank) == 6;
    if (!alone) {
      EXPECT_THAT(check(), testing::HasSubstr("group")) << rank;
    }
    program = intact;
  }
}

}  // namespace
}  // namespace espalier
