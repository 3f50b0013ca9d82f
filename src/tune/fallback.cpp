#include "espalier/tune/fallback.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

// Fewer nodes use each node better by less than this: smaller groups, shorter pipelines.
constexpr double kBestGain = 0.95;
// So many numbers of nodes are simulated, among the ones within this factor of the fastest by formula.
constexpr double kFormulaError = 1.15;
constexpr size_t kSimulatedCounts = 2;

class Fallbacks {
 public:
  Fallbacks(const Deck& deck, int ranks, const Costs& costs, const FallbackOptions& options)
      : deck_(deck), ranks_(ranks), costs_(costs), options_(options) {
    deck_.parallel.dp_shard = -1;  // other numbers of ranks have other ones
    if (const std::optional<double> us = FormulaUs(NodesOf(ranks, costs.cluster()))) Learn(ranks_, *us);
  }

  Fallback After(int lost) {
    Fallback fallback{.lost = lost, .left = NodesOf(ranks_, costs_.cluster()) - lost};
    for (int nodes : Hopeful(fallback.left)) {
      const std::optional<Candidate>& found = Tuned(nodes);
      if (!found || (fallback.layout && fallback.layout->step_us <= found->step_us)) continue;
      fallback.nodes = nodes;
      fallback.ranks = RanksOf(nodes);
      fallback.layout = found;
    }
    return fallback;
  }

 private:
  int RanksOf(int nodes) const { return std::min(ranks_, nodes * costs_.cluster().ranks_per_node); }

  /// Numbers of nodes up to `most`, the fastest by formula first. Between `most` and half of it is a power of two,
  /// which suits the common batches and models.
  std::vector<int> Hopeful(int most) {
    double fastest = std::numeric_limits<double>::max();
    std::vector<std::pair<double, int>> found;
    for (int nodes = most; nodes >= (most + 1) / 2 && least_rank_us_ * kBestGain / RanksOf(nodes) <= fastest; --nodes)
      if (const std::optional<double> us = FormulaUs(nodes)) {
        found.emplace_back(*us, -nodes);
        fastest = std::min(fastest, *us);
      }
    std::ranges::sort(found);
    std::vector<int> hopeful;
    for (const auto& [us, nodes] : found)
      if (us <= kFormulaError * fastest && hopeful.size() < kSimulatedCounts) hopeful.push_back(-nodes);
    return hopeful;
  }

  void Learn(int ranks, double us) { least_rank_us_ = std::min(least_rank_us_, us * ranks); }

  std::optional<double> FormulaUs(int nodes) {
    const auto [entry, is_new] = formula_us_.try_emplace(nodes);
    if (is_new) {
      entry->second = FastestByFormula(deck_, RanksOf(nodes), costs_, options_.tune);
      if (entry->second) Learn(RanksOf(nodes), *entry->second);
    }
    return entry->second;
  }

  const std::optional<Candidate>& Tuned(int nodes) {
    const auto [entry, is_new] = tuned_.try_emplace(nodes);
    if (is_new) entry->second = TuneFor(RanksOf(nodes));
    return entry->second;
  }

  std::optional<Candidate> TuneFor(int ranks) const try {
    const TuneResult result = Tune(deck_, ranks, costs_, options_.tune);
    return result.ranking[result.choice];
  } catch (const UserError& error) {
    if (error.status() != ExitStatus::kDoesNotFit) throw;
    return std::nullopt;  // once compiled
  }

  Deck deck_;
  const int ranks_;
  const Costs& costs_;
  const FallbackOptions& options_;
  double least_rank_us_ = std::numeric_limits<double>::max();  // time of a step times ranks, the least by formula
  std::map<int, std::optional<double>> formula_us_;            // by number of nodes
  std::map<int, std::optional<Candidate>> tuned_;
};

}  // namespace

int NodesOf(int ranks, const Cluster& cluster) { return (ranks + cluster.ranks_per_node - 1) / cluster.ranks_per_node; }

std::vector<Fallback> FallbackLayouts(const Deck& deck, int ranks, const Costs& costs, const FallbackOptions& options) {
  const int nodes = NodesOf(ranks, costs.cluster());
  CHECK(options.losses < nodes, "a job of {} nodes cannot lose {}", nodes, options.losses);
  Fallbacks fallbacks(deck, ranks, costs, options);
  std::vector<Fallback> all;
  for (int lost = 1; lost <= options.losses; ++lost) all.push_back(fallbacks.After(lost));
  return all;
}

}  // namespace espalier
