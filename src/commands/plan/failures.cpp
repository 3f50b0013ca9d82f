#include "commands/plan/failures.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "commands/commands.hpp"
#include "commands/plan/parts.hpp"
#include "commands/refuse.hpp"
#include "espalier/tune/goodput.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

constexpr double kSecondsOfHour = 3600;

/// Time to send the state of a node to or from another one, over the links of all its ranks.
std::optional<double> NetworkSeconds(const Saves& saves, const Cluster& cluster, int ranks) {
  const double rate = cluster.network.pair_bytes_per_us * std::min(cluster.ranks_per_node, ranks);
  return rate > 0 ? std::optional(static_cast<double>(saves.node_bytes) / rate * kMicro) : std::nullopt;
}

/// Each rank copies its state into its node's memory, then to a partner node while training goes on. A new start gets
/// what a node needs from other nodes: after a failure with a spare, that is the lost node's part; in another layout,
/// nearly all of it.
StateSource FromMemory(const Situation& s, const Cluster& cluster) {
  StateSource source{.name = "memory"};
  const Saves& saves = s.figures.saves;
  const std::optional<double> network_s = NetworkSeconds(saves, cluster, s.ranks);
  if (!saves.copy_s)
    source.unknown = fmt::format("{} has no device.host_bytes_per_us", cluster.path);
  else if (!network_s)
    source.unknown = fmt::format("{} has no network.pair_bytes_per_us", cluster.path);
  else
    source.save_s = *saves.copy_s, source.behind_s = *network_s, source.load_s = *network_s + *saves.copy_s;
  return source;
}

/// Files are read at the rates at which they are written.
StateSource FromFiles(const Situation& s, const Cluster& cluster) {
  StateSource source{.name = "files"};
  const Saves& saves = s.figures.saves;
  if (!saves.write_s) {
    source.unknown = fmt::format("{} has no storage.node_bytes_per_us", cluster.path);
  } else if (saves.staged && !saves.copy_s) {
    source.unknown = fmt::format("{} has no device.host_bytes_per_us", cluster.path);
  } else {
    const double copy_s = saves.copy_s.value_or(0);
    source.load_s = *saves.write_s + copy_s;
    source.behind_s = saves.asynchronous ? *saves.write_s : 0;
    source.save_s = (saves.staged ? copy_s : 0) + (saves.asynchronous ? 0 : *saves.write_s);
  }
  return source;
}

GoodputQuestion QuestionOf(const StateSource& source, double interval_s, double mtbf_s) {
  return {.interval_s = interval_s,
          .save_s = source.save_s,
          .restart_s = source.recover_s + source.behind_s,
          .mtbf_s = mtbf_s};
}

BestInterval BestOf(const StateSource& source, double mtbf_s, double step_s) {
  BestInterval best{.young_s = YoungIntervalS(source.save_s, mtbf_s), .daly_s = DalyIntervalS(source.save_s, mtbf_s)};
  best.interval_s = std::max({best.daly_s, source.behind_s, step_s});
  best.goodput = Goodput(QuestionOf(source, best.interval_s, mtbf_s));
  best.least_goodput = Goodput(QuestionOf(source, best.interval_s, mtbf_s / 2));
  best.most_goodput = Goodput(QuestionOf(source, best.interval_s, mtbf_s * 2));
  return best;
}

class Planner {
 public:
  explicit Planner(FailureQuestion question) : question_(std::move(question)) {
    const Cluster& cluster = question_.target.cluster;
    plan_.deck = question_.loaded.deck.name;
    plan_.cluster = cluster;
    if (question_.node_mtbf_hours) {
      plan_.node_mtbf_s = *question_.node_mtbf_hours * kSecondsOfHour;
      plan_.mtbf_origin = "--node-mtbf";
    } else if (cluster.failures.node_mtbf_hours > 0) {
      plan_.node_mtbf_s = cluster.failures.node_mtbf_hours * kSecondsOfHour;
      plan_.mtbf_origin = fmt::format("failures.node_mtbf_hours of {}", cluster.path);
    }
  }

  FailurePlan Run() {
    CheckNodes();
    AddOwn();
    FallbackOptions options;
    options.losses = question_.losses;
    const Cluster& cluster = question_.target.cluster;
    const double reserve = kReserve * static_cast<double>(cluster.compute.memory_bytes);
    options.tune.memory_bytes = cluster.BytesForPrograms() - static_cast<int64_t>(reserve);
    const Costs costs(question_.target.cluster, question_.target.routing);
    for (const Fallback& fallback : FallbackLayouts(question_.loaded.deck, question_.ranks, costs, options))
      Add(fallback);
    return std::move(plan_);
  }

 private:
  void CheckNodes() const {
    const Cluster& cluster = question_.target.cluster;
    const int nodes = NodesOf(question_.ranks, cluster);
    if (nodes < 2)
      Refuse(
          fmt::format("--failures: {} ranks are one node of {}, and none is left when it fails (give --ranks above "
                      "{})",
                      question_.ranks, cluster.name, cluster.ranks_per_node));
    if (question_.losses >= nodes)
      Refuse(fmt::format("--failures {}: {} ranks are {} nodes of {} (allowed: 1 to {})", question_.losses,
                         question_.ranks, nodes, cluster.name, nodes - 1));
  }

  void AddOwn() {
    const int nodes = NodesOf(question_.ranks, question_.target.cluster);
    Situation own{.left = nodes, .nodes = nodes, .ranks = question_.ranks};
    const Prediction prediction = Predict(question_.loaded.deck, own.ranks, question_.target, {});
    own.layout = LayoutName(prediction.deck(), own.ranks);
    Fill(own, prediction);
    RefuseIfItDoesNotFit(prediction, own.figures);
    AddGoodputs(own);
    plan_.situations.push_back(std::move(own));
  }

  void Add(const Fallback& fallback) {
    Situation s{.lost = fallback.lost, .left = fallback.left, .nodes = fallback.nodes, .ranks = fallback.ranks};
    if (fallback.layout) {
      s.layout = fallback.layout->layout;
      s.keys = AsDeck(*fallback.layout, question_.loaded.deck);
      Fill(s, Predict(fallback.layout->deck, s.ranks, question_.target, {}));
      AddGoodputs(s);
    }
    plan_.situations.push_back(std::move(s));
  }

  void Fill(Situation& s, const Prediction& prediction) const {
    s.mesh = MeshJson(prediction.plan.training.mesh);
    s.figures = FiguresOf(prediction);
    s.deck_interval_s = s.figures.saves.every_steps * (s.figures.step_range_s.least + s.figures.step_range_s.most) / 2;
    s.speed = plan_.situations.empty() ? 1 : plan_.situations[0].figures.step_s / s.figures.step_s;
    s.mtbf_s = plan_.node_mtbf_s / s.nodes;
  }

  void AddGoodputs(Situation& s) const {
    const Cluster::Failures& failures = question_.target.cluster.failures;
    for (StateSource source : {FromMemory(s, question_.target.cluster), FromFiles(s, question_.target.cluster)}) {
      if (source.unknown.empty()) {
        source.recover_s = failures.detect_s + failures.launch_s + source.load_s;
        if (s.mtbf_s > 0) {
          source.best = BestOf(source, s.mtbf_s, s.figures.step_range_s.most);
          if (source.name == "files" && s.deck_interval_s > 0)
            source.goodput_of_deck = Goodput(QuestionOf(source, s.deck_interval_s, s.mtbf_s));
        }
      }
      s.sources.push_back(std::move(source));
    }
  }

  FailureQuestion question_;
  FailurePlan plan_;
};

}  // namespace

FailurePlan PlanFailures(FailureQuestion question) { return Planner(std::move(question)).Run(); }

}  // namespace espalier
