// How many microbatches a stage has between forward and backward, by its schedule.
#pragma once

#include <vector>

#include "espalier/schedule/schedule.hpp"

namespace espalier {

/// The moment before a B or a W of a chunk: counts pairs (chunk of the stage, microbatch) with a finished F and no B,
/// and pairs with a finished B and no W.
struct InFlight {
  Role role = Role::kB;                 ///< the next role: B, or W in a job without its B
  int chunk = 0;                        ///< index among the chunks of the stage
  bool more_forwards = false;           ///< for the stage's first chunk
  std::vector<int> before_b, before_w;  ///< by index among the chunks of the stage
  std::vector<bool> last;               ///< by the same index: its last B is over, or comes next
  bool operator==(const InFlight&) const = default;
};

/// For one stage, each of its chunks, and B and W: the moments at which most pairs are in flight: in total, before
/// their B, and before their W.
struct StageFlights {
  std::vector<int> chunks;  ///< global chunks of the stage, ascending
  std::vector<InFlight> moments;
};

/// In a joint job the B counts as the first part: a program may interleave the parts, and then part of F is unfinished.
std::vector<StageFlights> FlightsOf(const Schedule& schedule);

}  // namespace espalier
