#pragma once

#include <cstdint>
#include <vector>

#include "espalier/program/compile.hpp"
#include "graph_facts.hpp"

namespace espalier {

/// Gives every buffer of the program its offset and finds the peak. `job_ends` are the ends of the program's jobs, as
/// indices of instructions. `facts` are those of its graph. Writes to `course` unless it is null.
void PlanMemory(Program& program, const GraphFacts& facts, const Coordinate& coordinate,
                const std::vector<int>& job_ends, const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course);

}  // namespace espalier
