// Decks and clusters of the tuner's tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/deck/parse.hpp"
#include "source_tree.hpp"
#include "tune/layout.hpp"

namespace espalier {

inline Costs CostsOf(const std::string& cluster) {
  return Costs(LoadCluster(InTree("inputs/clusters/") + cluster + ".toml"));
}

/// A deck of inputs/llama, for GPUs.
inline Deck LlamaDeck(const std::string& name, std::vector<std::string> overrides = {}) {
  overrides.push_back("run.device=cuda");
  return LoadDeck(InTree("inputs/llama/") + name + ".toml", overrides).deck;
}

/// A Llama of 16 layers that compiles in milliseconds, with the proportions of real models.
inline Deck ShortDeck(std::vector<std::string> overrides = {}) {
  std::vector<std::string> all = {"model.layers=16",    "model.dim=2048",     "model.heads=16",
                                  "model.kv_heads=8",   "model.ffn_dim=7168", "model.vocab=32000",
                                  "model.seq_len=4096", "batch.global=64",    "parallel.reduce=step"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return LlamaDeck("8b", all);
}

/// Spearman's rank correlation of two lists without ties.
inline double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto ranks = [](const std::vector<double>& x) {
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return x[i]; });
    std::vector<double> rank(x.size());
    for (size_t r = 0; r < order.size(); ++r) rank[order[r]] = static_cast<double>(r);
    return rank;
  };
  const std::vector<double> ra = ranks(a), rb = ranks(b);
  const auto n = static_cast<double>(a.size());
  double squares = 0;
  for (size_t i = 0; i < ra.size(); ++i) squares += (ra[i] - rb[i]) * (ra[i] - rb[i]);
  return 1 - 6 * squares / (n * (n * n - 1));
}

}  // namespace espalier
