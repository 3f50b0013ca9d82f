// How many microbatches a stage has between forward and backward, as its schedule says.
#pragma once

#include <vector>

#include "espalier/schedule/schedule.hpp"

namespace espalier {

/// The moment before a backward of a chunk: pairs (chunk of the stage, microbatch) whose F is done and whose B is not,
/// and those whose B is done and whose W is not.
struct InFlight {
  int chunk = 0;                        ///< whose backward comes next: index among the chunks of the stage
  bool more_forwards = false;           ///< of the stage's first chunk
  bool last = false;                    ///< of the chunk's backwards
  std::vector<int> before_b, before_w;  ///< by index among the chunks of the stage
};

/// Of one stage: for each of its chunks the moment before a backward of it at which most pairs are in flight.
struct StageFlights {
  std::vector<int> chunks;  ///< global chunks of the stage, ascending
  std::vector<InFlight> moments;
};

std::vector<StageFlights> FlightsOf(const Schedule& schedule);

}  // namespace espalier
