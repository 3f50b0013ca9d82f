#include "tune/walk.hpp"

#include <algorithm>

namespace espalier {

std::vector<Step> Walk(const Program& program, const std::vector<InstructionCost>& cost) {
  std::vector<Step> steps;
  ByLane<std::vector<double>> ends;  // by lane: ends of its instructions, in order
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    std::vector<double>& own = ends[instruction.lane];
    const double free_us = own.empty() ? 0 : own.back();
    double begin_us = free_us;
    std::optional<CommAxis> axis;
    for (const Wait& wait : instruction.waits) {
      if (wait.count == 0) continue;
      const double end_us = ends[wait.lane][static_cast<size_t>(wait.count) - 1];
      if (end_us <= begin_us) continue;
      begin_us = end_us;
      axis.reset();
      if (wait.lane != Lane::kCompute) axis = CommAxisOf(wait.lane);
    }
    const bool prepares = program.graph->op(instruction.op).role == Role::kP;
    own.push_back(begin_us + (prepares ? 0 : cost[i].us));
    if (instruction.lane == Lane::kCompute)
      steps.push_back({static_cast<int>(i), cost[i].us, begin_us - free_us, axis});
  }
  return steps;
}

}  // namespace espalier
