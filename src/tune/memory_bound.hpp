// A lower bound on the peak of a layout's training program, without compiling it. Everything that it counts is live at
// one moment, in separate buffers:
//
//   persistent  masters and moments in shards (ZeRO), accumulators, compute weights, token ids   MemoryPlanner's base
//   in flight   what F keeps of every microbatch between F and B, and B between B and W          the schedule's counts
//   extra       what B or W of the top layer of a chunk makes additionally, before it frees kept values; messages that
//               gather its weights or reduce its gradients, with their workspaces
//
// Not counted: workspaces of kernels, other messages, alignment of activations, holes. The rank with coordinate 0 on
// all axes but pp has the largest shards.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tune/in_flight.hpp"
#include "tune/profile.hpp"

namespace espalier {

/// Bytes of a part that do not depend on the microbatches in flight.
struct PartStates {
  int64_t bytes = 0;           ///< states and accumulators
  int64_t weights = 0;         ///< compute weights, or the shards they are gathered from: free when the update begins
  int64_t forward_only = 0;    ///< compute weights that only forward reads: free after the last microbatch's forward
  int64_t gathered = 0;        ///< its gathered weights, if weights are gathered again: one message, so all together
  int64_t gathering = 0;       ///< workspace of that message
  int64_t raw_gradients = 0;   ///< gradients of one microbatch before they are reduced (parallel.reduce = "microbatch")
  int64_t reducing = 0;        ///< workspace of that message
  int64_t step_gradients = 0;  ///< reduced gradients between reduction and update
};
ByPart<PartStates> StatesOf(const LayerProfile& profile, const Layout& layout);

struct MemoryQuestion {
  const LayerProfile& profile;  ///< for microbatches of one sequence or more
  const ByPart<PartStates>& states;
  const std::vector<StageFlights>& flights;
  const std::vector<ChunkParts>& chunks;
  int64_t micro = 1, microbatches = 1;
  int prefetch = 0;  ///< layers whose weights are gathered ahead
};

/// Bytes of each stage.
std::vector<int64_t> LeastBytesOfStages(const MemoryQuestion& question);

/// Bytes of the stage that needs most, or of the first that needs more than `enough`.
int64_t LeastBytes(const MemoryQuestion& question, int64_t enough = std::numeric_limits<int64_t>::max());

}  // namespace espalier
