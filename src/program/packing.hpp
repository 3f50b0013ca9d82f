// Places in an arena for requests of memory whose begins and ends are known.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

/// Memory that instructions [begin, end] need. Bytes are a multiple of kAlignment and at least one.
struct MemoryRequest {
  int64_t bytes = 0;
  int begin = 0, end = 0;
  bool behind = false;  ///< directly behind the request before it, which begins with it
};

struct Packing {
  std::vector<int64_t> offsets;  ///< by request
  int64_t peak = 0;              ///< the highest byte in use, and at least the base
};

/// Places requests above `base`, in the order of their begins, such that none overlaps with another in memory and in
/// time. `job_ends` are ends of the jobs, as indices of instructions, ascending. The same on every machine.
///
/// The peak is at least the largest sum of requests that are needed at the same time. A request that stays for a later
/// job is placed upward from the base, in the lowest hole that fits. A request of one job alone is placed downward from
/// a limit, so that the two do not cut each other's holes. Some rules place large requests before all others, since
/// memory may be cut into many holes when they begin. The limit of each rule is raised from that sum, by what the first
/// request without room lacks, until one of the rules has room for all. On the decks of `inputs` that is 0 to 6 % above
/// the sum.
Packing Pack(const std::vector<MemoryRequest>& requests, const std::vector<int>& job_ends, int64_t base);

}  // namespace espalier
