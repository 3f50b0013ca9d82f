#include "commands/simulate/routing.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "commands/refuse.hpp"
#include "espalier/history/run_history.hpp"
#include "espalier/model/layer_kinds.hpp"

namespace espalier {
namespace {

constexpr std::string_view kSkew = "skew=";
constexpr double kMaxSkew = 10;

Routing Skewed(const std::string& argument, const Deck& deck, int64_t seed) {
  double exponent = 0;
  const char *first = argument.data() + kSkew.size(), *last = argument.data() + argument.size();
  const auto [end, error] = std::from_chars(first, last, exponent);
  if (error != std::errc() || end != last || !(exponent >= 0) || exponent > kMaxSkew)
    Refuse(fmt::format("--routing {}: no exponent (allowed: 0, where all experts are equally popular, to {:g})",
                       argument, kMaxSkew));
  return SkewedRouting(deck.model, exponent, seed);
}

Routing Recorded(const std::string& argument, const Deck& deck) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(ExitStatus::kData, fmt::format("--routing {}: {}", argument, why));
  };
  const std::optional<ExpertLoads> recorded = ReadHistory(argument).loads;
  if (!recorded) refuse("no step has experts_loads (runs of models with experts have it every report.every_steps)");
  const auto& [step, by_layer] = *recorded;
  const Deck::Model& m = deck.model;
  std::vector<std::vector<double>> loads(1);
  size_t next = 0;
  for (int layer = 1; layer <= m.AllLayers(); ++layer) {
    std::vector<double>& of_layer = loads.emplace_back();
    if (KindOf(m, layer).experts && next++ < by_layer.size()) of_layer = by_layer[next - 1];
  }
  if (next != by_layer.size())
    refuse(fmt::format("step {} has loads of {} layers with experts, the deck has {}", step, by_layer.size(), next));
  if (std::ssize(by_layer[0]) != m.experts.count)
    refuse(
        fmt::format("step {} has loads of {} experts, experts.count is {}", step, by_layer[0].size(), m.experts.count));
  for (const std::vector<double>& layer : by_layer)
    if (std::accumulate(layer.begin(), layer.end(), 0.0) <= 0)
      refuse(fmt::format("step {} has a layer whose experts served no token", step));
  return {std::move(loads), fmt::format("step {} of {}", step, argument)};
}

}  // namespace

Routing ReadRouting(const std::string& argument, const Deck& deck, int64_t seed) {
  if (argument.empty() || argument == "balanced") return {};
  if (deck.model.experts.count == 0)
    Refuse(fmt::format("--routing {}: {} has no experts (leave it out)", argument, deck.name));
  return argument.starts_with(kSkew) ? Skewed(argument, deck, seed) : Recorded(argument, deck);
}

FullestRanks FullestRanksOf(const Routing& routing, const Deck& deck) {
  FullestRanks fullest;
  if (routing.IsBalanced()) return fullest;
  const std::vector<double> loads = routing.LargestLoads(deck.model.experts.count / deck.parallel.ep);
  fullest.mean = std::accumulate(loads.begin(), loads.end(), 0.0) / double(loads.size());
  fullest.most = std::ranges::max(loads);
  if (deck.parallel.ep > 1)
    fullest.beyond =
        double(std::ranges::count_if(loads, [&](double load) { return load > deck.model.experts.buffer; })) /
        double(loads.size());
  return fullest;
}

std::string RoutingText(const Routing& routing, const Deck& deck) {
  if (deck.model.experts.count == 0) return "";
  if (deck.parallel.ep == 1)
    return routing.IsBalanced() ? "" : routing.text() + ": every rank has as many rows, since parallel.ep = 1";
  if (routing.IsBalanced()) return "balanced: every rank has equally many rows of experts (--routing)";
  const FullestRanks fullest = FullestRanksOf(routing, deck);
  return fmt::format(
      "{}: the fullest rank of a layer has {:.2f} times the rows of balanced routing, {:.2f} at most; {:.0f} % of "
      "layers have rows in a further pass (experts.buffer {:g})",
      routing.text(), fullest.mean, fullest.most, 100 * fullest.beyond, deck.model.experts.buffer);
}

}  // namespace espalier
