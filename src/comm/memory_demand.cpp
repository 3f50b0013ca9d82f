#include "espalier/comm/memory_demand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace espalier {
namespace {

std::string Encode(const MemoryDemand& demand) {
  nlohmann::json json = {{"host", demand.host}, {"bytes", demand.bytes}, {"limits", nlohmann::json::array()}};
  for (const MemoryLimit& limit : demand.limits) json["limits"].push_back({limit.id, limit.what, limit.available});
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

MemoryDemand DecodeDemand(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  MemoryDemand demand{json["host"], json["bytes"], {}};
  for (const nlohmann::json& limit : json["limits"]) demand.limits.push_back({limit[0], limit[1], limit[2]});
  return demand;
}

std::string Encode(const MemoryShortage& s) {
  return nlohmann::json{s.rank, s.bytes, s.ranks, s.together, s.available, s.host, s.limit}.dump();
}

MemoryShortage DecodeShortage(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json[0], json[1], json[2], json[3], json[4], json[5], json[6]};
}

/// Counts the demand of a rank under one of its limits. Ranks see a shared limit at slightly different moments: the
/// least counts.
void Add(MemoryShortage& sum, int rank, const MemoryDemand& demand, const MemoryLimit& limit) {
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

double PartAvailable(const MemoryShortage& sum) {
  return static_cast<double>(sum.available) / static_cast<double>(sum.together);
}

}  // namespace

std::string MemoryShortage::Text(const std::string& purpose) const {
  if (ranks == 0) return "";
  const std::string others =
      ranks == 1 ? "" : fmt::format("{} ranks together need {}, and ", ranks, Gigabytes(together));
  return fmt::format("rank {} on {} needs {} for {}; {}{} {} available ({})", rank, host, Gigabytes(bytes), purpose,
                     others, Gigabytes(available), ranks == 1 ? "is" : "are", limit);
}

MemoryShortage FindShortage(std::span<const MemoryDemand> ranks) {
  std::map<std::string, MemoryShortage> sums;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const MemoryLimit& limit : ranks[rank].limits) {
      const std::string id = limit.id.empty() ? fmt::format("rank {}: {}", rank, limit.what) : limit.id;
      Add(sums[id], static_cast<int>(rank), ranks[rank], limit);
    }
  MemoryShortage worst;
  for (const auto& [id, sum] : sums)
    if (sum.together > sum.available && (worst.ranks == 0 || PartAvailable(sum) < PartAvailable(worst))) worst = sum;
  return worst;
}

MemoryShortage FindShortage(World& world, const MemoryDemand& mine) {
  std::vector<MemoryDemand> ranks;
  for (const std::string& text : world.Gather(Encode(mine))) ranks.push_back(DecodeDemand(text));
  return DecodeShortage(world.Broadcast(Encode(FindShortage(ranks))));
}

}  // namespace espalier
