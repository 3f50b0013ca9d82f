// Waits suffice for every order of lanes, with any recomputation or overlap.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <limits>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "lane_shuffle.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

TEST(Waits, H3AnOperandThatEndsBeforeItBeginsIsRefused) {
  const auto plan = [](int64_t offset, int64_t bytes) {
    Program program;
    program.instructions.Add({.op = 0, .outputs = std::vector<Operand>{{0, offset, bytes}}});
    PlanWaits(program);
  };
  plan(64, 64);
  plan(64, 0);
  EXPECT_THROW(plan(64, -32), InvariantError);
  EXPECT_THROW(plan(-64, 32), InvariantError);
  EXPECT_THROW(plan(0, std::numeric_limits<int64_t>::max()), InvariantError);
}

TEST(Waits, H3AVolumeThatWrapsIsRefused) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Volume({kMax, kMax}), kMax * kMax);
  EXPECT_THROW(Volume({kMax, kMax, 4}), InvariantError);
}

TEST(Program, WaitsAreEnoughForEveryOrderOfLanes) {
  for (const Case& layout : AllCases()) {
    const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    for (int rank : {0, c.mesh.Ranks() - 1})
      for (unsigned seed : {1u, 2u, 3u}) {
        const Program program = MakeProgram(c, c.mesh.CoordinateOf(rank));
        LaneShuffle(program, seed).Run();
        if (HasFatalFailure())
          FAIL() << "layout " << testing::PrintToString(layout) << " rank " << rank << " seed " << seed;
      }
  }
}

TEST(Program, ShufflingNoticesAMissingWait) {
  const Compilation c = Compile(SmallDeck(DegreesOf("222")), 8, Purpose::kTrain);
  Program program = MakeProgram(c, c.mesh.CoordinateOf(0));
  Edit(program, [](std::vector<Instruction>& list) {
    for (Instruction& i : list)
      if (i.lane == Lane::kCompute) i.waits = {};
  });
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    for (unsigned seed = 1; seed < 5 && failures.size() == 0; ++seed) LaneShuffle(program, seed).Run();
  }
  EXPECT_GT(failures.size(), 0);
}

TEST(Program, WaitsAreEnoughWhateverIsRecomputedOrOverlapped) {
  for (const char* layout : {"111", "221", "122", "222"})
    for (const std::vector<std::string>& choice : kVariations) {
      std::vector<std::string> overrides = DegreesOf(layout);
      overrides.insert(overrides.end(), choice.begin(), choice.end());
      const Compilation c = Compile(SmallDeck(overrides), RanksOf(layout), Purpose::kTrain);
      const std::vector<Program> programs = AllPrograms(c);
      EXPECT_EQ(WhatCheckSays(c.mesh, programs), "") << layout << " " << choice[0];
      LaneShuffle(programs.back(), 5).Run();
      if (HasFatalFailure()) FAIL() << "layout " << layout << " " << choice[0];
    }
}

}  // namespace
}  // namespace espalier
