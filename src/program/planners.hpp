#pragma once

#include <cstdint>
#include <vector>

#include "espalier/program/compile.hpp"
#include "graph_facts.hpp"

namespace espalier {

/// The ops of a program in order. Their numbers are the indices of its instructions.
struct Emission {
  struct OpAt {
    int op = -1;          ///< in Program::graph
    int microbatch = -1;  ///< -1: once per step
  };
  std::vector<OpAt> ops;
  std::vector<int> job_ends;  ///< P, the jobs of the stage, then S and U
};

/// Makes the program's instructions: gives every buffer its offset and finds the peak. `facts` are those of its graph.
/// Writes to `course` unless it is null.
void PlanMemory(Program& program, const Emission& emission, const GraphFacts& facts, const Coordinate& coordinate,
                const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course);

/// Fills Program::touched.
void FindTouchedBytes(Program& program, const Emission& emission, const GraphFacts& facts,
                      const Coordinate& coordinate);

}  // namespace espalier
