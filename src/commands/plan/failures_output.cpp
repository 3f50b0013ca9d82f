// The figures of plan --failures for people and machines (doc/plan.md, "After the loss of nodes").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "commands/plan/failures.hpp"
#include "commands/simulate/output.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/units.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kWidth = 120, kLabel = 12;

std::string Seconds(double s) { return DurationText(s / kMicro); }
void PrintNote(const std::string& text) { fmt::print("{}\n", Wrap(text, kWidth, kLabel)); }

/// Steps that fit into a time: as many as fast ones and as slow ones.
std::string StepsIn(double s, const TimeRange& step_s) {
  const auto count = [&](double one) { return std::max<int64_t>(1, std::llround(s / one)); };
  const int64_t few = count(step_s.most), many = count(step_s.least);
  return few == many ? fmt::format("{}", few) : fmt::format("{} to {}", few, many);
}

void PrintHead(const FailurePlan& plan) {
  const Situation& own = plan.situations[0];
  fmt::print("cluster     {} ({}): {} nodes of {} x {}\n", plan.cluster.name, plan.cluster.path, own.nodes,
             std::min(plan.cluster.ranks_per_node, own.ranks), plan.cluster.compute.name);
  if (plan.node_mtbf_s > 0)
    PrintNote(fmt::format("failures    a node fails every {:g} hours ({}), so one of {} every {}",
                          plan.node_mtbf_s / 3600, plan.mtbf_origin, own.nodes, HumanDuration(own.mtbf_s)));
  else
    PrintNote(
        fmt::format("failures    how often is not known, so there is no goodput: give --node-mtbf HOURS, or set "
                    "failures.node_mtbf_hours in {}",
                    plan.cluster.path));
}

void PrintLayouts(const FailurePlan& plan) {
  fmt::print("\nlayouts     the fastest that fit; the global batch and its samples stay\n");
  fmt::print("{:>4} {:>5} {:>5} {:>6} {:>6} {:>9} {:>20} {:>7} {:>8}  {}\n", "lost", "left", "used", "spares", "ranks",
             "step", "usual range", "speed", "peak GB", "layout");
  for (const Situation& s : plan.situations) {
    if (s.layout.empty()) {
      fmt::print("{:>4} {:>5} no layout on {} nodes, or down to half of them, is valid and fits\n", s.lost, s.left,
                 s.left);
      continue;
    }
    fmt::print("{:>4} {:>5} {:>5} {:>6} {:>6} {:>9} {:>20} {:>5.1f} % {:>8.4g}  {}\n", s.lost, s.left, s.nodes,
               s.left - s.nodes, s.ranks, Seconds(s.figures.step_s), RangeText(s.figures.step_range_s), 100 * s.speed,
               double(s.figures.peak_bytes) / kGiga, s.layout);
  }
  PrintNote("range       " + plan.situations[0].figures.range_reason);
}

void PrintRecovery(const FailurePlan& plan) {
  const Cluster::Failures& f = plan.cluster.failures;
  fmt::print("\nrecover     from a failure until work goes on; lost = 0: a spare takes the lost node's place\n");
  fmt::print("{:>4} {:>8} {:>9} {:>9} {:>9} {:>10}\n", "lost", "from", "detect", "launch", "load", "recover");
  for (const Situation& s : plan.situations)
    for (const StateSource& source : s.sources) {
      if (!source.unknown.empty())
        fmt::print("{:>4} {:>8} not known: {}\n", s.lost, source.name, source.unknown);
      else
        fmt::print("{:>4} {:>8} {:>9} {:>9} {:>9} {:>10}\n", s.lost, source.name, Seconds(f.detect_s),
                   Seconds(f.launch_s), Seconds(source.load_s), Seconds(source.recover_s));
    }
}

void PrintGoodput(const FailurePlan& plan) {
  if (plan.node_mtbf_s == 0) return;
  fmt::print("\ngoodput     the share of time whose work lasts, with the best interval between saves\n");
  fmt::print("{:>4} {:>8} {:>9} {:>9} {:>9} {:>9} {:>12} {:>9} {:>20} {:>9}\n", "lost", "into", "waits", "Young",
             "Daly", "best", "steps", "goodput", "if 1/2, 2 x as rare", "progress");
  for (const Situation& s : plan.situations)
    for (const StateSource& source : s.sources)
      if (const auto& best = source.best)
        fmt::print("{:>4} {:>8} {:>9} {:>9} {:>9} {:>9} {:>12} {:>7.2f} % {:>20} {:>7.2f} %\n", s.lost, source.name,
                   Seconds(source.save_s), Seconds(best->young_s), Seconds(best->daly_s), Seconds(best->interval_s),
                   StepsIn(best->interval_s, s.figures.step_range_s), 100 * best->goodput,
                   fmt::format("{:.2f}, {:.2f} %", 100 * best->least_goodput, 100 * best->most_goodput),
                   100 * best->goodput * s.speed);
  const Situation& own = plan.situations[0];
  for (const StateSource& source : own.sources)
    if (source.goodput_of_deck)
      fmt::print("deck        checkpoints every {:.0f} steps ({}): goodput {:.2f} %\n", own.figures.saves.every_steps,
                 Seconds(own.deck_interval_s), 100 * *source.goodput_of_deck);
}

Json Number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json ToJson(const StateSource& source) {
  Json json = {{"from", source.name}};
  if (!source.unknown.empty()) {
    json["unknown"] = source.unknown;
    return json;
  }
  json.update({{"save_s", source.save_s},
               {"behind_s", source.behind_s},
               {"load_s", source.load_s},
               {"recover_s", source.recover_s}});
  if (const auto& best = source.best)
    json["best"] = {{"young_s", best->young_s},
                    {"daly_s", best->daly_s},
                    {"interval_s", best->interval_s},
                    {"goodput", best->goodput},
                    {"goodput_range", {best->least_goodput, best->most_goodput}}};
  if (source.name == "files") json["goodput_of_deck"] = Number(source.goodput_of_deck);
  return json;
}

Json ToJson(const Situation& s) {
  Json json = {{"lost", s.lost}, {"left", s.left}, {"nodes", s.nodes}, {"ranks", s.ranks}};
  json["layout"] = s.layout.empty() ? Json(nullptr) : Json(s.layout);
  if (s.layout.empty()) return json;
  json["deck"] = s.keys;
  json["mesh"] = s.mesh;
  json["peak_bytes"] = s.figures.peak_bytes;
  json["step_ms"] = s.figures.step_s * 1e3;
  json["step_range_ms"] = RangeJson(s.figures.step_range_s);
  json["speed"] = s.speed;
  json["mtbf_s"] = s.mtbf_s > 0 ? Json(s.mtbf_s) : Json(nullptr);
  json["state"] = Json::array();
  for (const StateSource& source : s.sources) json["state"].push_back(ToJson(source));
  return json;
}

}  // namespace

void PrintFailures(const FailurePlan& plan) {
  PrintHead(plan);
  PrintLayouts(plan);
  PrintRecovery(plan);
  PrintGoodput(plan);
}

nlohmann::ordered_json ToJson(const FailurePlan& plan) {
  Json json = {{"cluster", {{"name", plan.cluster.name}, {"path", plan.cluster.path}}},
               {"ranks_per_node", plan.cluster.ranks_per_node},
               {"node_mtbf_hours", plan.node_mtbf_s > 0 ? Json(plan.node_mtbf_s / 3600) : Json(nullptr)},
               {"detect_s", plan.cluster.failures.detect_s},
               {"launch_s", plan.cluster.failures.launch_s},
               {"uncertainty", plan.situations[0].figures.range_reason},
               {"situations", Json::array()}};
  for (const Situation& s : plan.situations) json["situations"].push_back(ToJson(s));
  return json;
}

}  // namespace espalier
