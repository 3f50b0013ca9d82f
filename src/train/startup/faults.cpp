#include "train/startup/faults.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <map>
#include <vector>

#include "espalier/util/environment.hpp"

namespace espalier {
namespace {

std::string FaultsOfAll(World& world) {
  const std::string mine = FromEnvironment("ESPALIER_FAULT").value_or("");
  if (world.Or(mine.empty() ? 0 : 1) == 0) return "";
  std::map<std::string, std::vector<int>> ranks_of;
  int rank = 0;
  for (const std::string& fault : world.Gather(mine)) {
    if (!fault.empty()) ranks_of[fault].push_back(rank);
    ++rank;
  }
  std::string text;
  for (const auto& [fault, ranks] : ranks_of) {
    const std::string more = ranks.size() == 1 ? "" : fmt::format(" and {} more", ranks.size() - 1);
    text += fmt::format("{}{} on rank {}{}", text.empty() ? "" : ", ", fault, ranks.front(), more);
  }
  return world.Broadcast(text);
}

}  // namespace

std::string AnnounceFaults(World& world) {
  const std::string faults = FaultsOfAll(world);
  if (world.Rank() == 0 && !faults.empty())
    spdlog::warn("ESPALIER_FAULT is set: this run makes a fault on purpose: {}", faults);
  return faults;
}

}  // namespace espalier
