// Steps for tests: handwritten, or from a small deck's programs with simple clocks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <tuple>

#include "espalier/program/compile.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// A track whose instructions are added one by one.
class HandMade {
 public:
  struct Times {
    double ready_us, begin_us, end_us;
  };
  HandMade& Add(Lane lane, const std::vector<Wait>& waits, Times times, Role role = Role::kF, int microbatch = 0) {
    constexpr ByLane<OpKind> kKinds = {OpKind::kMatmul, OpKind::kAllReduce, OpKind::kRingShift, OpKind::kAllGather,
                                       OpKind::kSend,   OpKind::kRecv,      OpKind::kAllGather};
    Op op;
    op.kind = kKinds[lane];
    op.role = role;
    op.layer = 1;
    op.chunk = 0;
    graph_.ops.push_back(op);
    const int id = static_cast<int>(graph_.ops.size()) - 1;
    program_.instructions.Add({.op = id, .microbatch = microbatch, .lane = lane, .waits = waits});
    spans_.push_back({id, times.ready_us, times.begin_us, times.end_us});
    return *this;
  }
  Track Done() const {
    auto program = std::make_shared<Program>(program_);
    program->graph = std::make_shared<Graph>(graph_);
    return {0, 1, program, spans_};
  }

 private:
  Graph graph_;
  Program program_;
  std::vector<Span> spans_;
};

/// The time of an instruction in a replay.
using CostOf = std::function<double(const Program&, const Instruction&)>;

/// Kernels take 10 us, transfers 4.
inline double SimpleCost(const Program&, const Instruction& instruction) {
  return instruction.lane == Lane::kCompute ? 10 : 4;
}

/// One stage in a replay of a pipeline.
class StageReplay {
 public:
  explicit StageReplay(std::shared_ptr<const Program> program) : program_(std::move(program)) {
    for (int i = 0; i < std::ssize(program_->instructions); ++i)
      lanes_[program_->instructions[static_cast<size_t>(i)].lane].push_back(i);
  }
  const Program& program() const { return *program_; }
  bool Ended(Lane lane) const { return ends_[lane].size() == lanes_[lane].size(); }
  Instruction Head(Lane lane) const {
    return program_->instructions.at(static_cast<size_t>(lanes_[lane].at(ends_[lane].size())));
  }
  const Op& HeadOp(Lane lane) const { return program_->graph->op(Head(lane).op); }
  /// When the head of a lane is ready; negative if unknown yet.
  double Ready(Lane lane) const {
    if (Ended(lane)) return -1;
    double ready = ends_[lane].empty() ? 0 : ends_[lane].back();
    for (const Wait& wait : Head(lane).waits) {
      if (std::ssize(ends_[wait.lane]) < wait.count) return -1;
      ready = std::max(ready, ends_[wait.lane][static_cast<size_t>(wait.count) - 1]);
    }
    return ready;
  }
  void Run(Lane lane, double begin_us, double cost_us) {
    const double ready = Ready(lane);
    spans_.push_back({lanes_[lane][ends_[lane].size()], ready, begin_us, begin_us + cost_us});
    ends_[lane].push_back(begin_us + cost_us);
  }
  Track Done(int rank, int ranks) {
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) {
      return std::tie(a.end_us, a.instruction) < std::tie(b.end_us, b.instruction);
    });
    EXPECT_EQ(spans_.size(), program_->instructions.size()) << "deadlock on stage " << program_->stage;
    return {rank, ranks, program_, spans_};
  }

 private:
  std::shared_ptr<const Program> program_;
  ByLane<std::vector<int>> lanes_;
  ByLane<std::vector<double>> ends_;
  std::vector<Span> spans_;
};

/// Runs the head of a lane, together with its peers' instructions. Returns false if they are not ready.
inline bool RunHead(std::vector<StageReplay>& stages, StageReplay& stage, Lane lane, const CostOf& cost_of) {
  if (stage.Ready(lane) < 0) return false;
  std::vector<std::pair<StageReplay*, Lane>> members = {{&stage, lane}};
  const OpKind kind = stage.HeadOp(lane).kind;
  if (kind == OpKind::kRecv) return false;  // runs with its send
  if (kind == OpKind::kSend)
    members.emplace_back(&stages[static_cast<size_t>(stage.HeadOp(lane).Peer())], Lane::kPpRecv);
  if (kind == OpKind::kGatherStages)
    for (StageReplay& other : stages)
      if (&other != &stage) members.emplace_back(&other, lane);
  double begin = 0;
  for (const auto& [member, its_lane] : members) {
    if (member->Ready(its_lane) < 0) return false;
    const OpKind its_kind = member->HeadOp(its_lane).kind;
    if (its_kind == OpKind::kRecv ? member->HeadOp(its_lane).Peer() != stage.program().stage : its_kind != kind)
      return false;
    begin = std::max(begin, member->Ready(its_lane));
  }
  const double cost = cost_of(stage.program(), stage.Head(lane));
  for (const auto& [member, its_lane] : members) member->Run(its_lane, begin, cost);
  return true;
}

/// The step of a deck: one track per stage, which represents all of its ranks. Collectives of one stage wait for no
/// peers; messages begin when both ends are ready.
inline Timeline ReplayPipeline(const Compilation& compilation, const CostOf& cost_of = SimpleCost) {
  const Mesh& mesh = compilation.mesh;
  const int stages = mesh.Degree(Axis::kPp), ranks = mesh.Ranks() / stages;
  std::vector<StageReplay> replays;
  for (int stage = 0; stage < stages; ++stage)
    replays.emplace_back(std::make_shared<Program>(MakeProgram(compilation, mesh.CoordinateOf(stage * ranks))));
  for (bool moved = true; moved;) {
    moved = false;
    for (StageReplay& replay : replays)
      for (Lane lane : kLanes)
        while (RunHead(replays, replay, lane, cost_of)) moved = true;
  }
  Timeline timeline{"small", "predicted", 0, {}};
  for (int stage = 0; stage < stages; ++stage) {
    timeline.tracks.push_back(replays[static_cast<size_t>(stage)].Done(stage * ranks, ranks));
    timeline.step_us = std::max(timeline.step_us, timeline.tracks.back().spans.back().end_us);
  }
  return timeline;
}

}  // namespace espalier
