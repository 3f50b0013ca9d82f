// Messages between pairs of ranks: what each of them sends, when all pairs of a round measure at the same time.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "espalier/comm/world.hpp"

namespace espalier {

using Pairs = std::vector<std::pair<int, int>>;

/// The link on which `from` sends to `to`.
struct LinkRate {
  int from = 0, to = 0;
  double bytes_per_us = 0;
  double latency_us = 0;  ///< half of a round trip of one byte, the best of some

  auto Fields() { return std::tie(from, to, bytes_per_us, latency_us); }
};

/// Rounds in which each of `count` members meets another one; in all count - 1 of them it meets each once (the circle
/// method). An odd member out rests. At most `most` rounds.
std::vector<Pairs> Rounds(int count, int most);

/// Measures the pairs of ranks of each round in which this rank is; others wait for the next round. Collective, with
/// the same rounds on all ranks. Returns what this rank sends.
std::vector<LinkRate> MeasureLinks(World& world, const std::vector<Pairs>& rounds);

}  // namespace espalier
