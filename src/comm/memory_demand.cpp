#include "espalier/comm/memory_demand.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/pack.hpp"

namespace espalier {
namespace {

/// Adds the demand of a rank to one of its limits. Ranks read a shared limit at slightly different moments: the
/// smallest value counts.
void AddDemand(MemoryShortage& sum, int rank, const MemoryDemand& demand, const MemoryLimit& limit) {
  sum.available = sum.ranks == 0 ? limit.available : std::min(sum.available, limit.available);
  if (sum.ranks == 0 || demand.bytes > sum.bytes) {
    sum.rank = rank;
    sum.bytes = demand.bytes;
    sum.host = demand.host;
    sum.limit = limit.what;
  }
  ++sum.ranks;
  sum.together += demand.bytes;
}

double FractionAvailable(const MemoryShortage& sum) {
  return static_cast<double>(sum.available) / static_cast<double>(sum.together);
}

/// By limit: what the ranks that share it need together.
std::map<std::string, MemoryShortage> SumsOf(std::span<const MemoryDemand> ranks) {
  std::map<std::string, MemoryShortage> sums;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const MemoryLimit& limit : ranks[rank].limits) {
      const std::string id = limit.id.empty() ? fmt::format("rank {}: {}", rank, limit.what) : limit.id;
      AddDemand(sums[id], static_cast<int>(rank), ranks[rank], limit);
    }
  return sums;
}

struct MemoryShare {
  int64_t bytes = 0;
  auto Fields() { return std::tie(bytes); }
};

}  // namespace

int64_t SmallestShare(std::span<const MemoryDemand> ranks) {
  int64_t share = std::numeric_limits<int64_t>::max();
  for (const auto& [id, sum] : SumsOf(ranks))
    share = std::min(share, std::max<int64_t>(0, (sum.available - sum.together) / sum.ranks));
  return share;
}

int64_t SmallestShare(World& world, const MemoryDemand& mine) {
  return Unpack<MemoryShare>(world.Broadcast(Pack(MemoryShare{SmallestShare(Gathered(world, mine))}))).bytes;
}

std::string MemoryShortage::Text(const std::string& purpose) const {
  if (ranks == 0) return "";
  const std::string others =
      ranks == 1 ? "" : fmt::format("{} ranks together need {}, and ", ranks, Gigabytes(together));
  return fmt::format("rank {} on {} needs {} for {}; {}{} {} available ({})", rank, host, Gigabytes(bytes), purpose,
                     others, Gigabytes(available), ranks == 1 ? "is" : "are", limit);
}

MemoryShortage FindShortage(std::span<const MemoryDemand> ranks) {
  MemoryShortage worst;
  for (const auto& [id, sum] : SumsOf(ranks))
    if (sum.together > sum.available && (worst.ranks == 0 || FractionAvailable(sum) < FractionAvailable(worst)))
      worst = sum;
  return worst;
}

MemoryShortage FindShortage(World& world, const MemoryDemand& mine) {
  return Unpack<MemoryShortage>(world.Broadcast(Pack(FindShortage(Gathered(world, mine)))));
}

}  // namespace espalier
