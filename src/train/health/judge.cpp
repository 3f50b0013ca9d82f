#include "train/health/judge.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "espalier/util/median.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

/// The ranks of a node, and what their links to other nodes send and receive.
struct NodeHealth {
  std::vector<const RankFacts*> ranks;
  std::vector<double> sends, receives, latencies;

  const std::string& host() const { return ranks.front()->host; }
  std::set<int> Cores() const {
    std::set<int> all;
    for (const RankFacts* rank : ranks) all.insert(rank->cores.begin(), rank->cores.end());
    return all;
  }
  /// The lowest of its ranks.
  template <typename F>
  double Lowest(F figure) const {
    double lowest = figure(*ranks.front());
    for (const RankFacts* rank : ranks) lowest = std::min(lowest, static_cast<double>(figure(*rank)));
    return lowest;
  }
};

std::map<int, NodeHealth> NodesOf(const Health& health) {
  std::map<int, NodeHealth> nodes;
  for (const RankFacts& rank : health.ranks) nodes[rank.node].ranks.push_back(&rank);
  const auto node_of = [&](int rank) -> NodeHealth& { return nodes[health.ranks[static_cast<size_t>(rank)].node]; };
  for (const LinkRate& link : health.between) {
    node_of(link.from).sends.push_back(link.bytes_per_us);
    node_of(link.from).latencies.push_back(link.latency_us);
    node_of(link.to).receives.push_back(link.bytes_per_us);
  }
  return nodes;
}

double PairRate(const LinkModel& link) {
  return link.pair_bytes_per_us > 0 ? link.pair_bytes_per_us : link.bytes_per_us;
}

/// The value with which figures are compared.
struct Reference {
  double value = 0;  ///< 0: with nothing
  std::string text;  ///< "the median is"
};

/// The cluster file's rate if it has one, otherwise the median.
Reference ReferenceOf(const std::vector<LinkRate>& links, double rate) {
  if (rate > 0) return {rate, "the cluster file says"};
  std::vector<double> rates;
  for (const LinkRate& link : links) rates.push_back(link.bytes_per_us);
  return {links.empty() ? 0 : MedianOf(rates), "the median is"};
}

std::string Rate(double bytes_per_us) { return fmt::format("{:.4g} MB/s", bytes_per_us); }
/// A figure of a table, "-" for none.
std::string Cell(double figure) { return figure > 0 ? fmt::format("{:.4g}", figure) : "-"; }
std::string CellOfMedian(const std::vector<double>& figures) { return figures.empty() ? "-" : Cell(MedianOf(figures)); }

class Judge {
 public:
  Judge(const Health& health, const Cluster* cluster, double least)
      : health_(health), cluster_(cluster), least_(least), nodes_(NodesOf(health)) {}

  std::vector<std::string> Run() {
    Compare("fp32 matmuls on one core reach", "GFLOP/s", [](const RankFacts& rank) { return rank.gflops; });
    Compare("the memory of one core moves", "MB/s", [](const RankFacts& rank) { return rank.memory_rate; });
    Compare("the clock of its cores is", "MHz", [](const RankFacts& rank) { return rank.clock_mhz; });
    Compare("the free memory is", "GB", [](const RankFacts& rank) { return double(rank.free_bytes) * 1e-9; });
    CompareCounts("cores for its ranks", [](const NodeHealth& node) { return node.Cores().size(); });
    CompareCounts("NUMA nodes", [](const NodeHealth& node) { return static_cast<size_t>(node.ranks[0]->numa_nodes); });
    CompareCounts("GPUs", [](const NodeHealth& node) { return node.ranks[0]->gpus.size(); });
    JudgeGpus();
    JudgeNetwork();
    JudgeLinks(health_.within, cluster_ == nullptr ? 0 : PairRate(cluster_->node), {});
    return std::move(found_);
  }

 private:
  /// The lowest rank of each node with the median of all ranks.
  template <typename F>
  void Compare(const char* what, const char* unit, F figure) {
    std::vector<double> all;
    for (const RankFacts& rank : health_.ranks) all.push_back(figure(rank));
    const double median = MedianOf(all);
    for (const auto& [leader, node] : nodes_)
      if (const double lowest = node.Lowest(figure); lowest < least_ * median)
        found_.push_back(
            fmt::format("{}: {} {:.4g} {}, the median is {:.4g}", node.host(), what, lowest, unit, median));
  }
  template <typename F>
  void CompareCounts(const char* what, F count) {
    std::vector<double> all;
    for (const auto& [leader, node] : nodes_) all.push_back(static_cast<double>(count(node)));
    const double median = MedianOf(all);
    for (const auto& [leader, node] : nodes_)
      if (static_cast<double>(count(node)) < median)
        found_.push_back(fmt::format("{}: {}: {}, the median is {:g}", node.host(), what, count(node), median));
  }

  void JudgeGpus() {
    std::vector<double> clocks, free;
    for (const RankFacts& rank : health_.ranks)
      for (const GpuFacts& gpu : rank.gpus) {
        clocks.push_back(gpu.most_clock_mhz);
        free.push_back(static_cast<double>(gpu.free_bytes));
      }
    for (const RankFacts& rank : health_.ranks) {
      if (!rank.gpu_problem.empty()) found_.push_back(fmt::format("{}: NVML: {}", rank.host, rank.gpu_problem));
      for (const GpuFacts& gpu : rank.gpus) JudgeGpu(rank.host, gpu, MedianOf(clocks), MedianOf(free));
    }
  }
  void JudgeGpu(const std::string& host, const GpuFacts& gpu, double clock, double free) {
    const auto add = [&](const std::string& what) {
      found_.push_back(fmt::format("{}: GPU {}: {}", host, gpu.bus_id, what));
    };
    if (gpu.ecc_errors > 0) add(fmt::format("{} errors of memory that could not be corrected", gpu.ecc_errors));
    if (gpu.remap_pending) add("rows of memory wait for a reset to be remapped");
    if (gpu.remap_failed) add("a row of memory could not be remapped");
    if (!gpu.slowed_by.empty()) add(fmt::format("slowed down by {}", fmt::join(gpu.slowed_by, ", ")));
    if (gpu.most_clock_mhz < least_ * clock)
      add(fmt::format("clock of at most {} MHz, the median is {:g}", gpu.most_clock_mhz, clock));
    if (static_cast<double>(gpu.free_bytes) < least_ * free)
      add(fmt::format("{} of memory are free, the median is {}", Gigabytes(gpu.free_bytes),
                      Gigabytes(static_cast<int64_t>(free))));
  }

  /// Nodes whose links are slow for the most part, then single links between other nodes.
  void JudgeNetwork() {
    const double rate = cluster_ == nullptr ? 0 : PairRate(cluster_->network);
    const Reference reference = ReferenceOf(health_.between, rate);
    std::set<int> named;
    for (const auto& [leader, node] : nodes_)
      for (const auto& [what, rates] : {std::pair("sends", &node.sends), std::pair("receives", &node.receives)})
        if (!rates->empty() && MedianOf(*rates) < least_ * reference.value) {
          found_.push_back(fmt::format("{} {} {} on the links of other nodes, {} {}", node.host(), what,
                                       Rate(MedianOf(*rates)), reference.text, Rate(reference.value)));
          named.insert(leader);
        }
    JudgeLinks(health_.between, rate, named);
  }
  /// Links without one of the nodes that are named.
  void JudgeLinks(const std::vector<LinkRate>& links, double rate, const std::set<int>& named) {
    const Reference reference = ReferenceOf(links, rate);
    for (const LinkRate& link : links) {
      const RankFacts &from = health_.ranks[static_cast<size_t>(link.from)],
                      &to = health_.ranks[static_cast<size_t>(link.to)];
      if (link.bytes_per_us >= least_ * reference.value || named.contains(from.node) || named.contains(to.node))
        continue;
      found_.push_back(fmt::format("rank {} on {} sends {} to rank {} on {}, {} {}", link.from, from.host,
                                   Rate(link.bytes_per_us), link.to, to.host, reference.text, Rate(reference.value)));
    }
  }

  const Health& health_;
  const Cluster* const cluster_;
  const double least_;
  const std::map<int, NodeHealth> nodes_;
  std::vector<std::string> found_;
};

std::string GpuTable(const Health& health) {
  std::string text;
  for (const RankFacts& rank : health.ranks)
    for (const GpuFacts& gpu : rank.gpus)
      text += fmt::format("{:16} {:18} {:>12} {:>12} {:>5}/{:<5} {:>6} {:>8}  {}\n", rank.host, gpu.bus_id,
                          Gigabytes(gpu.free_bytes), Gigabytes(gpu.total_bytes), gpu.clock_mhz, gpu.most_clock_mhz,
                          gpu.ecc_errors, gpu.remapped_rows, gpu.name);
  if (text.empty()) return text;
  return fmt::format("\n{:16} {:18} {:>12} {:>12} {:>11} {:>6} {:>8}  {}\n", "node", "GPU", "free", "memory",
                     "clock MHz", "ECC", "remapped", "name") +
         text;
}

}  // namespace

std::string HealthTable(const Health& health, const Cluster* cluster) {
  std::string text =
      fmt::format("{:16} {:>5} {:>5} {:>4} {:>10} {:>9} {:>9} {:>11} {:>10} {:>13} {:>10}\n", "node", "ranks", "cores",
                  "NUMA", "free", "clock MHz", "GFLOP/s", "memory MB/s", "sends MB/s", "receives MB/s", "latency us");
  for (const auto& [leader, node] : NodesOf(health))
    text += fmt::format("{:16} {:>5} {:>5} {:>4} {:>10} {:>9} {:>9} {:>11} {:>10} {:>13} {:>10}\n", node.host(),
                        node.ranks.size(), node.Cores().size(), Cell(node.ranks[0]->numa_nodes),
                        Gigabytes(static_cast<int64_t>(node.Lowest([](const RankFacts& r) { return r.free_bytes; }))),
                        Cell(node.Lowest([](const RankFacts& r) { return r.clock_mhz; })),
                        Cell(node.Lowest([](const RankFacts& r) { return r.gflops; })),
                        Cell(node.Lowest([](const RankFacts& r) { return r.memory_rate; })), CellOfMedian(node.sends),
                        CellOfMedian(node.receives), CellOfMedian(node.latencies));
  if (cluster != nullptr)
    text += fmt::format("{}: {} within a node, {} between nodes\n", cluster->path, Rate(PairRate(cluster->node)),
                        Rate(PairRate(cluster->network)));
  return text + GpuTable(health);
}

std::vector<std::string> Outliers(const Health& health, const Cluster* cluster, double least) {
  return Judge(health, cluster, least).Run();
}

}  // namespace espalier
