#include "tune/walk.hpp"

#include <algorithm>
#include <array>

namespace espalier {
namespace {

struct Interval {
  double begin_us = 0, end_us = 0;
};

/// Instructions with their times in program order, and the kernels among them. What lasts how long is given.
struct WalkedProgram {
  std::vector<Interval> spans;
  std::vector<Step> steps;
};

WalkedProgram WalkThrough(const Program& program, const std::vector<InstructionCost>& cost,
                          const std::vector<double>& us) {
  WalkedProgram walked;
  ByLane<std::vector<int>> of_lane;  // its instructions, in order
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    std::vector<int>& own = of_lane[instruction.lane];
    const double free_us = own.empty() ? 0 : walked.spans[static_cast<size_t>(own.back())].end_us;
    double begin_us = free_us;
    Step step{.instruction = static_cast<int>(i), .kernel_us = us[i]};
    for (const Wait& wait : instruction.waits) {
      if (wait.count == 0) continue;
      const auto awaited = static_cast<size_t>(of_lane[wait.lane][static_cast<size_t>(wait.count) - 1]);
      if (walked.spans[awaited].end_us <= begin_us) continue;
      begin_us = walked.spans[awaited].end_us;
      step.port = wait.lane == Lane::kCompute ? Port::kNone : cost[awaited].port;
    }
    step.waited_us = begin_us - free_us;
    own.push_back(static_cast<int>(i));
    walked.spans.push_back({begin_us, begin_us + us[i]});
    if (instruction.lane == Lane::kCompute) walked.steps.push_back(step);
  }
  return walked;
}

/// When any of the spans lasts, ascending and without overlaps.
std::vector<Interval> UnionOf(std::vector<Interval> spans) {
  std::ranges::sort(spans, {}, &Interval::begin_us);
  std::vector<Interval> all;
  for (const Interval& span : spans)
    if (!all.empty() && span.begin_us <= all.back().end_us)
      all.back().end_us = std::max(all.back().end_us, span.end_us);
    else
      all.push_back(span);
  return all;
}

double CommonUs(const Interval& span, const std::vector<Interval>& all) {
  double sum = 0;
  for (auto other = std::ranges::upper_bound(all, span.begin_us, {}, &Interval::end_us);
       other != all.end() && other->begin_us < span.end_us; ++other)
    sum += std::min(span.end_us, other->end_us) - std::max(span.begin_us, other->begin_us);
  return sum;
}

}  // namespace

double SlowdownAt(Port port, const Cluster& cluster) {
  return port == Port::kNode ? cluster.node_slowdown : port == Port::kNetwork ? cluster.network_slowdown : 0;
}

std::vector<Step> Walk(const Program& program, const std::vector<InstructionCost>& cost, const Cluster& cluster) {
  std::vector<double> us;
  for (size_t i = 0; i < cost.size(); ++i)
    us.push_back(program.graph->op(program.instructions[i].op).role == Role::kP ? 0 : cost[i].us);
  const std::vector<Interval> alone = WalkThrough(program, cost, us).spans;
  for (const Port port : {Port::kNode, Port::kNetwork}) {
    std::vector<Interval> transfers;
    for (size_t i = 0; i < cost.size(); ++i)
      if (cost[i].port == port && program.instructions[i].microbatch >= 0) transfers.push_back(alone[i]);
    const std::vector<Interval> busy = UnionOf(std::move(transfers));
    for (size_t i = 0; i < cost.size(); ++i)
      if (program.instructions[i].lane == Lane::kCompute) us[i] += SlowdownAt(port, cluster) * CommonUs(alone[i], busy);
  }
  return WalkThrough(program, cost, us).steps;
}

}  // namespace espalier
