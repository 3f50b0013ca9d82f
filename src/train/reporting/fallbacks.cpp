#include "train/reporting/fallbacks.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <map>
#include <string>
#include <vector>

#include "espalier/comm/agreement.hpp"

namespace espalier {

void AnnounceFallbacks(const Device& device, World& world) {
  std::map<std::string, std::vector<size_t>> ranks_of;
  const std::vector<std::vector<std::string>> of_ranks = Gathered(world, device.TakeFallbacks());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const std::string& text : of_ranks[rank]) ranks_of[text].push_back(rank);
  for (const auto& [text, ranks] : ranks_of)
    spdlog::warn(
        "{}{}", text,
        of_ranks.size() == 1 ? "" : fmt::format(" (on {} ranks, the first is {})", ranks.size(), ranks.front()));
}

void SayFallbacks(const Device& device, int rank) {
  for (const std::string& text : device.TakeFallbacks()) spdlog::warn("rank {}: {}", rank, text);
}

}  // namespace espalier
