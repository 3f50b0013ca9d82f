// The ops of a program as its memory planner asks about them.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "espalier/util/error.hpp"
#include "planners.hpp"

namespace espalier {

/// The ops of one stage, by the index of their instruction.
class EmittedOps {
 public:
  EmittedOps(const Program& program, const Emission& emission, const GraphFacts& facts)
      : ops_(emission.ops),
        job_ends_(emission.job_ends),
        graph_(*program.graph),
        facts_(facts),
        stage_(program.stage),
        stage_of_chunk_(program.stage_of_chunk) {
    LinkMicrobatches(program.microbatches);
  }

  const Emission::OpAt& OpAt(int i) const { return ops_[i]; }
  const Op& OpOf(int i) const { return graph_.op(ops_[i].op); }
  Lane LaneOf(int i) const { return facts_.ops[ops_[i].op].lane; }
  Role RoleOf(int i) const { return OpOf(i).role; }
  /// All inputs; for a gather of scalars, the ones on this stage.
  const std::vector<int>& InputsOf(int i) {
    const Op& op = OpOf(i);
    if (op.kind != OpKind::kGatherStages) return op.inputs;
    const auto [here, fresh] = gathered_.try_emplace(ops_[i].op);
    if (fresh)
      std::ranges::copy_if(op.inputs, std::back_inserter(here->second), [&](int v) { return LivesHere(ValueOf(v)); });
    return here->second;
  }
  const Value& ValueOf(int id) const { return graph_.value(id); }
  const ValueFacts& FactsOf(int id) const { return facts_.values[id]; }
  Space SpaceOf(int id) const { return ValueOf(id).space; }
  bool LivesHere(const Value& v) const { return v.chunk == kAllChunks || stage_of_chunk_[v.chunk] == stage_; }
  static bool HasCollectives(Lane lane) {
    return lane == Lane::kTp || lane == Lane::kCp || lane == Lane::kEp || lane == Lane::kDp;
  }
  /// The last instruction of the job that follows the job of instruction `i`.
  int EndOfNextJob(int i) const {
    auto job = std::upper_bound(job_ends_.begin(), job_ends_.end(), i);
    if (job != job_ends_.end() && std::next(job) != job_ends_.end()) ++job;
    return (job == job_ends_.end() ? static_cast<int>(ops_.size()) : *job) - 1;
  }
  /// The first instruction of the job before the job of instruction `i`, or of its own job if that is the first.
  int StartOfJobBefore(int i) const {
    const auto job = std::upper_bound(job_ends_.begin(), job_ends_.end(), i) - job_ends_.begin();
    return job < 2 ? 0 : job_ends_[static_cast<size_t>(job - 2)];
  }
  /// Kernels and messages have their operands on the device; a copy has one side there, the other on the host.
  void RequireSpaces(int i) {
    const OpKind kind = OpOf(i).kind;
    const auto require = [&](const std::vector<int>& values, Space space) {
      for (int value : values)
        CHECK(SpaceOf(value) == space, "{} of {} is in the memory of the {}", ValueOf(value).name, kind,
              Name(SpaceOf(value)));
    };
    require(InputsOf(i), kind == OpKind::kCopyIn ? Space::kHost : Space::kDevice);
    require(OpOf(i).outputs, kind == OpKind::kCopyOut ? Space::kHost : Space::kDevice);
  }

 protected:
  const std::vector<Emission::OpAt>& ops_;
  const std::vector<int>& job_ends_;
  const Graph& graph_;
  const GraphFacts& facts_;
  std::vector<int> first_of_microbatch_;  ///< its first instruction; -1: it has none
  std::vector<int> next_of_microbatch_;   ///< by instruction; -1: the last one

 private:
  void LinkMicrobatches(int microbatches) {
    next_of_microbatch_.resize(ops_.size());
    first_of_microbatch_.resize(static_cast<size_t>(microbatches), -1);
    for (int i = static_cast<int>(ops_.size()) - 1; i >= 0; --i) {
      if (ops_[i].microbatch < 0) continue;
      int& first = first_of_microbatch_[ops_[i].microbatch];
      next_of_microbatch_[i] = std::exchange(first, i);
    }
  }

  const int stage_;
  const std::vector<int>& stage_of_chunk_;
  std::map<int, std::vector<int>> gathered_;  ///< by gather of scalars: its inputs on this stage
};

}  // namespace espalier
