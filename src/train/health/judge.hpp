// Which nodes, GPUs and links of a job are worse than the others, or than a cluster file says. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "train/health/facts.hpp"
#include "train/health/links.hpp"

namespace espalier {

struct Health {
  std::vector<RankFacts> ranks;
  std::vector<LinkRate> within, between;  ///< links of ranks on one node, and on two
};

/// A table of nodes, and one of GPUs if there are any. `cluster` may be null.
std::string HealthTable(const Health& health, const Cluster* cluster);

/// A line for each outlier: "host4 sends 1.2 MB/s to other nodes, the median is 940 MB/s". `least`: CheckNodesOptions.
std::vector<std::string> Outliers(const Health& health, const Cluster* cluster, double least);

}  // namespace espalier
