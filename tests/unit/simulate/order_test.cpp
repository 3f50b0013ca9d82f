// The record of a simulation: lanes in program order, waits, synchronization; and the breakdown kept during the
// simulation equals the record's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "simulate/simulate_testing.hpp"

namespace espalier {
namespace {

Simulation Record(const CompiledWorld& world, SimulateOptions options = {}, uint64_t seed = 3) {
  options.fold = false;
  options.record = true;
  return Simulate(world.Programs(), RandomCosts(world, seed), SlowingCluster(), options);
}

/// By index of the instruction.
std::vector<Span> ByInstruction(const Track& track) {
  std::vector<Span> spans(track.program->instructions.size());
  for (const Span& span : track.spans) spans[static_cast<size_t>(span.instruction)] = span;
  return spans;
}

/// Instructions of each lane, in program order.
ByLane<std::vector<int>> Lanes(const Program& program) {
  ByLane<std::vector<int>> lanes;
  for (int i = 0; i < std::ssize(program.instructions); ++i)
    lanes[program.instructions[static_cast<size_t>(i)].lane].push_back(i);
  return lanes;
}

void ExpectLanesAndWaits(const Track& track) {
  const Program& program = *track.program;
  ASSERT_EQ(track.spans.size(), program.instructions.size());
  const std::vector<Span> spans = ByInstruction(track);
  const ByLane<std::vector<int>> lanes = Lanes(program);
  for (Lane lane : kLanes) {
    double free_us = 0;
    for (int i : lanes[lane]) {
      const Span& span = spans[static_cast<size_t>(i)];
      ASSERT_EQ(span.instruction, i);
      // Ready as soon as the lane is free and every wait is met, and not earlier.
      double ready_us = free_us;
      for (const Wait& wait : program.instructions[static_cast<size_t>(i)].waits)
        ready_us = std::max(ready_us,
                            spans[static_cast<size_t>(lanes[wait.lane][static_cast<size_t>(wait.count) - 1])].end_us);
      ASSERT_EQ(span.ready_us, ready_us) << "rank " << track.rank << " " << Describe(program, i);
      ASSERT_GE(span.begin_us, span.ready_us);
      ASSERT_GE(span.end_us, span.begin_us);
      if (lane == Lane::kCompute) ASSERT_EQ(span.begin_us, span.ready_us);
      free_us = span.end_us;
    }
  }
}

/// Identifies a transfer: (op of the collective or send, microbatch, the lowest rank of the group).
using Meeting = std::tuple<int, int, int>;

/// By transfer: the spans of its members.
std::map<Meeting, std::vector<Span>> Meetings(const CompiledWorld& world, const Timeline& timeline) {
  const Mesh& mesh = world.compilation.mesh;
  std::map<Meeting, std::vector<Span>> meetings;
  for (const Track& track : timeline.tracks)
    for (const Span& span : track.spans) {
      const Instruction& i = track.program->instructions[static_cast<size_t>(span.instruction)];
      const Op& op = track.program->graph->op(i.op);
      if (!IsCommunication(op.kind)) continue;
      Coordinate lowest = mesh.CoordinateOf(track.rank);
      if (IsBetweenStages(op.kind)) {
        lowest[Axis::kPp] = 0;
        meetings[{i.op - (op.kind == OpKind::kRecv), i.microbatch, mesh.RankOf(lowest)}].push_back(span);
      } else {
        meetings[{i.op, i.microbatch, mesh.RankOf(mesh.GroupMember(op.Axes(), lowest, 0))}].push_back(span);
      }
    }
  return meetings;
}

void ExpectMeetings(const CompiledWorld& world, const Simulation& s) {
  for (const auto& [meeting, spans] : Meetings(world, s.timeline)) {
    const Op& op = world.compilation.graph->op(std::get<0>(meeting));
    ASSERT_EQ(std::ssize(spans), op.kind == OpKind::kSend ? 2 : world.compilation.mesh.GroupSize(op.Axes()));
    double ready_us = 0;
    for (const Span& span : spans) ready_us = std::max(ready_us, span.ready_us);
    for (const Span& span : spans) {
      ASSERT_EQ(span.begin_us, ready_us);
      ASSERT_EQ(span.end_us, spans[0].end_us);
    }
  }
}

TEST(Record, LanesRunInProgramOrderAndGroupsMeet) {
  for (const Case& layout : AllCases()) {
    const CompiledWorld world(layout.overrides, layout.ranks);
    const Simulation s = Record(world);
    ASSERT_EQ(std::ssize(s.timeline.tracks), layout.ranks);
    for (const Track& track : s.timeline.tracks) ExpectLanesAndWaits(track);
    ExpectMeetings(world, s);
    if (HasFailure()) FAIL() << testing::PrintToString(layout);
  }
}

TEST(Record, OfEverySchedule) {
  for (const PipelineCase& pipeline : kPipelines) {
    const CompiledWorld world(PipelineDeck(pipeline, 4, 24, {"parallel.dp_shard=2", "parallel.tp=2"}), 16);
    const Simulation s = Record(world);
    for (const Track& track : s.timeline.tracks) ExpectLanesAndWaits(track);
    ExpectMeetings(world, s);
    if (HasFailure()) FAIL() << pipeline.schedule;
  }
}

// Messages of a pair, and collectives of a group on a lane, are in the program order of all their members.
TEST(Record, MessagesPassInTheOrderOfBothPrograms) {
  for (const PipelineCase& pipeline : kPipelines) {
    const CompiledWorld world(PipelineDeck(pipeline, 4, 24, {"parallel.dp_shard=2"}), 8);
    const Simulation s = Record(world);
    // (from, to) -> sends by the time at which they end, as (op, microbatch).
    std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> sent, received;
    for (const Track& track : s.timeline.tracks) {
      std::vector<Span> spans = track.spans;
      std::ranges::stable_sort(spans, {}, &Span::end_us);
      for (const Span& span : spans) {
        const Instruction& i = track.program->instructions[static_cast<size_t>(span.instruction)];
        const Op& op = track.program->graph->op(i.op);
        if (!IsBetweenStages(op.kind)) continue;
        Coordinate peer = world.compilation.mesh.CoordinateOf(track.rank);
        peer[Axis::kPp] = op.Peer();
        const int other = world.compilation.mesh.RankOf(peer);
        if (op.kind == OpKind::kSend)
          sent[{track.rank, other}].emplace_back(i.op, i.microbatch);
        else
          received[{other, track.rank}].emplace_back(i.op - 1, i.microbatch);
      }
    }
    EXPECT_FALSE(sent.empty());
    EXPECT_EQ(sent, received) << pipeline.schedule;
    for (const auto& [pair, messages] : sent) {
      std::vector<std::pair<int, int>> listed;
      for (const Instruction& i : world.Of(pair.first).instructions) {
        const Op& op = world.compilation.graph->op(i.op);
        if (op.kind == OpKind::kSend && op.Peer() == world.compilation.mesh.CoordinateOf(pair.second)[Axis::kPp])
          listed.emplace_back(i.op, i.microbatch);
      }
      EXPECT_EQ(messages, listed) << pipeline.schedule;
    }
  }
}

TEST(Record, BreakdownIsThatOfTheRecord) {
  for (const Case& layout : AllCases())
    for (uint64_t seed : {1, 2}) {
      const CompiledWorld world(layout.overrides, layout.ranks);
      SimulateOptions options;
      options.jitter = seed == 2 ? 0.2 : 0;
      const Simulation s = Record(world, options, seed);
      for (size_t c = 0; c < s.classes.size(); ++c) {
        const Breakdown &a = s.classes[c].breakdown, b = BreakDown(s.timeline.tracks[c], s.step_us);
        double sum = a.compute_us + a.idle_us;
        for (CommAxis axis : kCommAxes) {
          EXPECT_NEAR(a.exposed_us[axis], b.exposed_us[axis], 1e-9 * s.step_us) << Name(axis);
          EXPECT_NEAR(a.hidden_us[axis], b.hidden_us[axis], 1e-9 * s.step_us) << Name(axis);
          sum += a.exposed_us[axis];
        }
        EXPECT_NEAR(a.compute_us, b.compute_us, 1e-9 * s.step_us);
        EXPECT_NEAR(a.idle_us, b.idle_us, 1e-9 * s.step_us);
        PartTimes all;
        for (const PartTimes& part : s.classes[c].parts) {
          all.kernels_us += part.kernels_us;
          all.exposed_us += part.exposed_us;
        }
        EXPECT_NEAR(all.kernels_us, a.compute_us, 1e-9 * s.step_us);
        EXPECT_NEAR(all.exposed_us, sum - a.compute_us - a.idle_us, 1e-9 * s.step_us);
        EXPECT_NEAR(sum, s.step_us, 1e-9 * s.step_us);
      }
      if (HasFailure()) FAIL() << testing::PrintToString(layout);
    }
}

TEST(Deterministic, TheSameStepTwice) {
  const CompiledWorld world({"parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2"}, 8);
  SimulateOptions options;
  options.jitter = 0.05;
  const Simulation a = Record(world, options), b = Record(world, options);
  EXPECT_EQ(a.step_us, b.step_us);
  for (size_t c = 0; c < a.classes.size(); ++c)
    for (size_t i = 0; i < a.timeline.tracks[c].spans.size(); ++i) {
      const Span &x = a.timeline.tracks[c].spans[i], &y = b.timeline.tracks[c].spans[i];
      ASSERT_EQ(std::tie(x.instruction, x.ready_us, x.begin_us, x.end_us),
                std::tie(y.instruction, y.ready_us, y.begin_us, y.end_us));
    }
  options.seed = 5;
  EXPECT_NE(Record(world, options).step_us, a.step_us);
}

// Kernels take 1 + jitter * normal times their cost, at least a tenth, independently for each rank and instruction.
TEST(Jitter, HasItsMeanAndDeviation) {
  const CompiledWorld world({"parallel.dp_shard=2"}, 2);
  SimulateOptions options;
  options.interference = false;
  const Simulation exact = Record(world, options);
  options.jitter = 0.1;
  const Simulation s = Record(world, options);
  ASSERT_EQ(s.classes.size(), 2u);
  double sum = 0, squares = 0;
  int kernels = 0;
  std::vector<std::vector<double>> factors(2);
  for (size_t c = 0; c < 2; ++c) {
    const std::vector<Span> a = ByInstruction(s.timeline.tracks[c]), b = ByInstruction(exact.timeline.tracks[c]);
    for (size_t i = 0; i < a.size(); ++i) {
      if (!IsKernel(s.timeline.tracks[c].program->instructions[i])) continue;
      const double factor = (a[i].end_us - a[i].begin_us) / (b[i].end_us - b[i].begin_us);
      factors[c].push_back(factor);
      sum += factor;
      squares += (factor - 1) * (factor - 1);
      ++kernels;
    }
  }
  ASSERT_GT(kernels, 1000);
  EXPECT_NEAR(sum / kernels, 1, 4 * 0.1 / std::sqrt(kernels));
  EXPECT_NEAR(std::sqrt(squares / kernels), 0.1, 0.01);
  EXPECT_NE(factors[0], factors[1]);
  options.jitter = 5;
  for (const Track& track : Record(world, options).timeline.tracks) {
    const std::vector<Span> a = ByInstruction(track),
                            b = ByInstruction(exact.timeline.tracks[static_cast<size_t>(track.rank)]);
    for (size_t i = 0; i < a.size(); ++i)
      if (IsKernel(track.program->instructions[i]))
        ASSERT_GE(a[i].end_us - a[i].begin_us, 0.1 * (b[i].end_us - b[i].begin_us) - 1e-9);
  }
}

}  // namespace
}  // namespace espalier
