// Idle time of every pipeline schedule, with uniform costs, against the published closed forms and the replay of the
// schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "simulate/simulate_testing.hpp"

namespace espalier {
namespace {

/// One kernel of a job's part has the part's whole cost: the first that needs a message from another stage, or else the
/// first. Messages leave when the job ends, as in the replay: if B and W are one job, B's kernel has the cost of both.
class JobCosts {
 public:
  JobCosts(const CompiledWorld& world, RoleCosts costs) : world_(world), costs_(costs) {
    FindKernels();
    for (const std::vector<Job>& jobs : world.compilation.schedule.jobs)
      for (const Job& job : jobs)
        for (const JobPart& part : job.parts)
          if (part.role == Role::kW &&
              std::ranges::count(job.parts, JobPart{part.chunk, Role::kB, part.microbatch}) > 0)
            with_b_.insert({part.chunk, part.microbatch});
  }

  Simulation Run() const {
    const auto none = [](const Program&, const Instruction&) { return Port::kNone; };
    const auto us = [this](const Program&, const Instruction& i) { return CostOf(i); };
    return Simulate(world_.Programs(), CostsBy(world_, us, none), SlowingCluster());
  }

 private:
  void FindKernels() {
    const Graph& graph = *world_.compilation.graph;
    std::set<int> received;
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::kRecv) received.insert(op.outputs.begin(), op.outputs.end());
    const auto reads = [&](int op) {
      return std::ranges::any_of(graph.op(op).inputs, [&](int v) { return received.contains(v); });
    };
    for (int i = 0; i < std::ssize(graph.ops); ++i) {
      const Op& op = graph.op(i);
      if (IsCommunication(op.kind) || FrequencyOf(op.role) != Frequency::kMicrobatch) continue;
      const auto [it, first] = kernels_.try_emplace({op.chunk, op.role}, i);
      if (!first && !reads(it->second) && reads(i)) it->second = i;
    }
  }

  double CostOf(const Instruction& i) const {
    const Op& op = world_.compilation.graph->op(i.op);
    const auto kernel = kernels_.find({op.chunk, op.role});
    if (kernel == kernels_.end() || kernel->second != i.op) return 0;
    const bool with_b = with_b_.contains({op.chunk, i.microbatch});
    if (op.role == Role::kF) return costs_.f;
    if (op.role == Role::kB) return costs_.b + (with_b ? costs_.w : 0);
    return with_b ? 0 : costs_.w;
  }

  const CompiledWorld& world_;
  RoleCosts costs_;
  std::map<std::pair<int, Role>, int> kernels_;  ///< (chunk, role) -> op
  std::set<std::pair<int, int>> with_b_;         ///< (chunk, microbatch) whose W is in the job of B
};

struct ScheduleCase {
  ScheduleKind kind;
  int chunks, stages, microbatches;
};

CompiledWorld WorldOf(const ScheduleCase& c) {
  const std::string name(Name(c.kind));
  return {PipelineDeck({name.c_str(), c.chunks}, c.stages, c.microbatches), c.stages};
}

std::string Text(const ScheduleCase& c) {
  return fmt::format("{} p {} m {} chunks {}", Name(c.kind), c.stages, c.microbatches, c.chunks);
}

const std::vector<RoleCosts> kRoleCosts = {{1, 1, 1}, {1, 1.25, 0.75}, {1, 1.5, 0.5}};
const std::vector<std::pair<ScheduleKind, int>> kSchedules = {
    {ScheduleKind::kGPipe, 1},
    {ScheduleKind::k1F1B, 1},
    {ScheduleKind::kInterleaved, 2},
    {ScheduleKind::kInterleaved, 3},
    {ScheduleKind::kInterleaved, 4},
    {ScheduleKind::kZeroBubbleH1, 1},
    {ScheduleKind::kZeroBubbleInterleaved, 2},
    {ScheduleKind::kZeroBubbleInterleaved, 3},
    {ScheduleKind::kZeroBubbleV, 2},
    {ScheduleKind::kDualPipeV, 2},
};

/// Narayanan et al. 2021; Qi et al. 2023 and 2024; costs are per chunk.
double PublishedIdle(ScheduleKind kind, int p, const RoleCosts& c) {
  switch (kind) {
    case ScheduleKind::kZeroBubbleH1:
    case ScheduleKind::kZeroBubbleInterleaved:
      return (p - 1) * (c.f + c.b - c.w);
    case ScheduleKind::kZeroBubbleV:
      return (p - 1) * std::max(c.b, 2 * (c.b - c.w));
    case ScheduleKind::kDualPipeV:  // at most
      return (p - 1) * (c.f + c.b + c.w + c.b + c.w - 3 * c.w);
    default:  // costs per chunk; (p - 1) (F + B + W) / v with costs per stage
      return (p - 1) * (c.f + c.b + c.w);
  }
}

TEST(Idle, IsThePublishedFormOfEverySchedule) {
  for (const auto& [kind, chunks] : kSchedules)
    for (int p : {2, 4, 8})
      for (int m : {2 * p, 3 * p, 4 * p}) {
        const ScheduleCase test{kind, chunks, p, m};
        const CompiledWorld world = WorldOf(test);
        for (const RoleCosts& costs : kRoleCosts) {
          const Simulation s = JobCosts(world, costs).Run();
          ASSERT_EQ(std::ssize(s.classes), p);
          const double idle = PublishedIdle(kind, p, costs);
          for (const RankTimes& stage : s.classes) {
            if (kind == ScheduleKind::kDualPipeV)
              EXPECT_LE(stage.breakdown.idle_us, idle + 1e-9) << Text(test);
            else if (kind == ScheduleKind::kZeroBubbleInterleaved)  // at least
              EXPECT_THAT(stage.breakdown.idle_us,
                          ::testing::AllOf(::testing::Ge(idle - 1e-9), ::testing::Le(1.1 * idle)))
                  << Text(test);
            else
              EXPECT_NEAR(stage.breakdown.idle_us, idle, 1e-9) << Text(test);
            EXPECT_NEAR(stage.breakdown.compute_us, m * chunks * (costs.f + costs.b + costs.w), 1e-9);
            EXPECT_NEAR(stage.breakdown.compute_us + stage.breakdown.idle_us, s.step_us, 1e-9);
          }
        }
        if (HasFailure()) return;
      }
}

TEST(Idle, IsThatOfTheReplayWithSixteenStages) {
  for (const auto& [kind, chunks] : kSchedules) {
    const ScheduleCase test{kind, chunks, 16, kind == ScheduleKind::kDualPipeV ? 37 : 21};
    const CompiledWorld world = WorldOf(test);
    for (const RoleCosts& costs : kRoleCosts) {
      const Replay replay = Validate(world.compilation.schedule, costs);
      const Simulation s = JobCosts(world, costs).Run();
      ASSERT_EQ(s.classes.size(), replay.idle.size());
      // A job of several chunks is one block in the replay; in a program each chunk waits and sends for itself.
      if (kind == ScheduleKind::kDualPipeV)
        EXPECT_LE(s.step_us, replay.makespan + 1e-9) << Text(test);
      else
        EXPECT_NEAR(s.step_us, replay.makespan, 1e-9) << Text(test);
      for (size_t stage = 0; stage < s.classes.size() && kind != ScheduleKind::kDualPipeV; ++stage)
        EXPECT_NEAR(s.classes[stage].breakdown.idle_us, replay.idle[stage], 1e-9) << Text(test) << " stage " << stage;
    }
  }
}

TEST(Idle, OfFewMicrobatchesIsThatOfTheReplay) {
  for (const auto& [kind, chunks] : kSchedules)
    for (int p : {2, 3, 5})
      for (int m : {1, 2, p, p + 1}) {
        const ScheduleCase test{kind, chunks, p, m};
        if (m < TraitsOf(kind).MinMicrobatches(p) || kind == ScheduleKind::kDualPipeV) continue;
        const CompiledWorld world = WorldOf(test);
        for (const RoleCosts& costs : kRoleCosts)
          EXPECT_NEAR(JobCosts(world, costs).Run().step_us, Validate(world.compilation.schedule, costs).makespan, 1e-9)
              << Text(test);
      }
}

}  // namespace
}  // namespace espalier
