// Checks memory before it is allocated: otherwise the kernel kills the process without a message when it touches more
// than the machine has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {

/// The bytes that a rank is about to allocate, and the limits they count against.
struct MemoryDemand {
  std::string host;
  int64_t bytes = 0;
  std::vector<MemoryLimit> limits;

  auto Fields() { return std::tie(host, bytes, limits); }
};

/// Ranks that together need more than one limit allows.
struct MemoryShortage {
  int rank = 0;           ///< the first of the ranks that need most
  int64_t bytes = 0;      ///< bytes that it needs
  int ranks = 0;          ///< ranks that share the limit
  int64_t together = 0;   ///< bytes that these ranks need
  int64_t available = 0;  ///< bytes under the limit
  std::string host, limit;

  auto Fields() { return std::tie(rank, bytes, ranks, together, available, host, limit); }

  /// Empty if memory suffices, otherwise "rank 2 on HOST needs 3.1 GB for PURPOSE; ...".
  std::string Text(const std::string& purpose) const;
};

/// The worst shortage: the one with the smallest fraction available. `ranks` is 0 if all fit.
MemoryShortage FindShortage(std::span<const MemoryDemand> ranks);

/// The bytes that every rank can have in addition to its demand, if all have the same; 0 if there is none to have, the
/// largest int64 if nothing is limited.
int64_t SmallestShare(std::span<const MemoryDemand> ranks);
/// The same for the ranks of a world, on every rank. Collective.
int64_t SmallestShare(World& world, const MemoryDemand& mine);

/// The worst shortage of all ranks, on every rank. Collective.
MemoryShortage FindShortage(World& world, const MemoryDemand& mine);

}  // namespace espalier
