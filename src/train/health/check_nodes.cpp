// espalier check --nodes.
#include "espalier/train/check_nodes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "espalier/comm/agreement.hpp"
#include "train/health/judge.hpp"
#include "train/job.hpp"

namespace espalier {
namespace {

/// Rounds in which each rank meets ranks of its node, and ranks with its place on other nodes.
constexpr int kRoundsWithin = 3, kRoundsBetween = 16;

/// The ranks of each node, by its lowest rank.
std::map<int, std::vector<int>> RanksOfNodes(const std::vector<RankFacts>& facts) {
  std::map<int, std::vector<int>> ranks;
  for (int rank = 0; rank < std::ssize(facts); ++rank) ranks[facts[static_cast<size_t>(rank)].node].push_back(rank);
  return ranks;
}

/// All nodes at the same time.
std::vector<Pairs> RoundsWithin(const std::map<int, std::vector<int>>& nodes) {
  std::vector<Pairs> rounds(kRoundsWithin);
  for (const auto& [leader, ranks] : nodes) {
    const std::vector<Pairs> of_node = Rounds(static_cast<int>(ranks.size()), kRoundsWithin);
    for (size_t round = 0; round < of_node.size(); ++round)
      for (const auto& [a, b] : of_node[round])
        rounds[round].emplace_back(ranks[static_cast<size_t>(a)], ranks[static_cast<size_t>(b)]);
  }
  return rounds;
}

/// All ranks of a node at the same time, so that they share its network as in a run.
std::vector<Pairs> RoundsBetween(const std::map<int, std::vector<int>>& nodes) {
  std::vector<const std::vector<int>*> lists;
  for (const auto& [leader, ranks] : nodes) lists.push_back(&ranks);
  std::vector<Pairs> rounds;
  for (const Pairs& pairs : Rounds(static_cast<int>(lists.size()), kRoundsBetween)) {
    Pairs& of_ranks = rounds.emplace_back();
    for (const auto& [a, b] : pairs) {
      const auto &from = *lists[static_cast<size_t>(a)], &to = *lists[static_cast<size_t>(b)];
      for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
        of_ranks.emplace_back(std::min(from[i], to[i]), std::max(from[i], to[i]));
    }
  }
  return rounds;
}

/// Prints on rank 0; the number of outliers.
int64_t Report(const Health& health, const std::optional<Cluster>& cluster, double least) {
  const Cluster* rates = cluster ? &*cluster : nullptr;
  const std::vector<std::string> outliers = Outliers(health, rates, least);
  fmt::print("{}\n", HealthTable(health, rates));
  for (const std::string& outlier : outliers) fmt::print("outlier: {}\n", outlier);
  if (outliers.empty()) fmt::print("no outliers: nothing is below {:g} of what it is compared with\n", least);
  std::fflush(stdout);
  return std::ssize(outliers);
}

}  // namespace

ExitStatus CheckNodes(const CheckNodesOptions& options) {
  return RunJob([&](World& world, MpiWorld* mpi, Parts&) {
    std::optional<Cluster> cluster;
    OnAllRanks(world, [&] {
      if (world.Rank() == 0 && !options.cluster.empty()) cluster = LoadCluster(options.cluster);
    });
    Health health{.ranks = OfAllRanks(world, std::vector{MeasureFacts(world, mpi)}), .within = {}, .between = {}};
    const std::map<int, std::vector<int>> nodes = RanksOfNodes(health.ranks);
    health.within = OfAllRanks(world, MeasureLinks(world, RoundsWithin(nodes)));
    health.between = OfAllRanks(world, MeasureLinks(world, RoundsBetween(nodes)));
    const int64_t found = world.Rank() == 0 ? Report(health, cluster, options.least) : 0;
    return world.Max(found) == 0 ? ExitStatus::kDone : ExitStatus::kFault;
  });
}

}  // namespace espalier
