// Worlds of a few instructions, for times that are computed by hand.
#pragma once

#include "simulate/simulate_testing.hpp"

namespace espalier {

class HandMade {
 public:
  /// One stage per pp, with tp ranks each. Every rank has its own program.
  HandMade(int pp, int tp) : mesh_({pp, 1, 1, 1, tp, 1}), costs_(static_cast<size_t>(pp * tp)) {
    for (int rank = 0; rank < pp * tp; ++rank) {
      representative_.push_back(rank);
      Program& program = programs_.emplace_back();
      program.mesh = mesh_;
      program.stage = mesh_.CoordinateOf(rank)[Axis::kPp];
    }
  }

  void Kernel(int rank, double us, const std::vector<Wait>& waits = {}) {
    const int op = graph_.AddOp({.kind = OpKind::kAdd, .role = Role::kF, .layer = 1, .chunk = 0});
    Add(rank, op, Lane::kCompute, {us, CostSource::kMeasured, Port::kNone}, waits);
  }
  /// A collective, to which Join adds its members.
  int Collective(Axis axis) {
    return graph_.AddOp({.kind = OpKind::kAllReduce,
                         .attributes = {{{"axes", AxisSet{axis}.bits()}}, {}},
                         .role = Role::kF,
                         .layer = 1,
                         .chunk = 0});
  }
  void Join(int rank, int op, Lane lane, double us, Port port = Port::kNone, const std::vector<Wait>& waits = {}) {
    Add(rank, op, lane, {us, CostSource::kFormula, port}, waits);
  }
  /// A message from one stage to another, which Send and Recv refer to.
  int Message(int from, int to) {
    const int send = graph_.AddOp(
        {.kind = OpKind::kSend, .attributes = {{{"to", double(to)}}, {}}, .role = Role::kF, .layer = 1, .chunk = 0});
    graph_.AddOp({.kind = OpKind::kRecv,
                  .attributes = {{{"from", double(from)}}, {}},
                  .role = Role::kF,
                  .layer = 1,
                  .chunk = 0});
    return send;
  }
  void Send(int rank, int message, double us, Port port = Port::kNone, const std::vector<Wait>& waits = {}) {
    Add(rank, message, Lane::kPpSend, {us, CostSource::kFormula, port}, waits);
  }
  void Recv(int rank, int message, double us, Port port = Port::kNone, const std::vector<Wait>& waits = {}) {
    Add(rank, message + 1, Lane::kPpRecv, {us, CostSource::kFormula, port}, waits);
  }

  /// A copy to or from the host, which takes `beside` times as long while one goes the other way.
  void Copy(int rank, OpKind kind, double us, double beside, const std::vector<Wait>& waits = {}) {
    const int op = graph_.AddOp({.kind = kind, .role = Role::kU, .layer = 1, .chunk = 0});
    Add(rank, op, kind == OpKind::kCopyOut ? Lane::kCopyOut : Lane::kCopyIn,
        {us, CostSource::kFormula, Port::kNone, beside}, waits);
  }

  Simulation Run(SimulateOptions options = {}, const Cluster& cluster = SlowingCluster()) const {
    const auto graph = std::make_shared<Graph>(graph_);
    const WorldPrograms world{mesh_, representative_, [&](int rank) {
                                auto program = std::make_shared<Program>(programs_[static_cast<size_t>(rank)]);
                                program->graph = graph;
                                return program;
                              }};
    options.record = true;
    return Simulate(
        world, [&](int rank) { return costs_[static_cast<size_t>(rank)]; }, cluster, options);
  }

 private:
  void Add(int rank, int op, Lane lane, InstructionCost cost, const std::vector<Wait>& waits) {
    programs_[static_cast<size_t>(rank)].instructions.Add({.op = op, .microbatch = 0, .lane = lane, .waits = waits});
    costs_[static_cast<size_t>(rank)].push_back(cost);
  }

  Mesh mesh_;
  Graph graph_;
  std::vector<int> representative_;
  std::vector<Program> programs_;
  std::vector<std::vector<InstructionCost>> costs_;
};

/// When an instruction of a rank began and ended.
inline Span SpanOf(const Simulation& s, int rank, int instruction) {
  for (const Span& span : s.timeline.tracks[static_cast<size_t>(s.class_of_rank[static_cast<size_t>(rank)])].spans)
    if (span.instruction == instruction) return span;
  ADD_FAILURE() << "rank " << rank << " has no span of instruction " << instruction;
  return {};
}

inline void ExpectSpan(const Simulation& s, int rank, int instruction, double ready, double begin, double end) {
  const Span span = SpanOf(s, rank, instruction);
  EXPECT_EQ(span.ready_us, ready) << "rank " << rank << " instruction " << instruction;
  EXPECT_EQ(span.begin_us, begin) << "rank " << rank << " instruction " << instruction;
  EXPECT_EQ(span.end_us, end) << "rank " << rank << " instruction " << instruction;
}

}  // namespace espalier
