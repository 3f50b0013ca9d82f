// Memory is looked at before it is taken: what is missing would end the process when it is touched, without a word.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {

/// What a rank is about to take, and what limits it.
struct MemoryDemand {
  std::string host;
  int64_t bytes = 0;
  std::vector<MemoryLimit> limits;
};

/// Ranks that together want more than one limit allows.
struct MemoryShortage {
  int rank = 0;           ///< the first of those that want most
  int64_t bytes = 0;      ///< that it wants
  int ranks = 0;          ///< that share the limit
  int64_t together = 0;   ///< bytes that they want
  int64_t available = 0;  ///< bytes under the limit
  std::string host, limit;

  /// Empty if there is no shortage, else "rank 2 on HOST needs 3.1 GB for PURPOSE; ...".
  std::string Text(const std::string& purpose) const;
};

/// The worst shortage, that with the smallest part available; `ranks` is 0 if all fit.
MemoryShortage FindShortage(std::span<const MemoryDemand> ranks);

/// The same of all ranks, on every rank. Collective.
MemoryShortage FindShortage(World& world, const MemoryDemand& mine);

}  // namespace espalier
