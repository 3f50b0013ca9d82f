#include "commands/simulate/routing.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands/refuse.hpp"
#include "espalier/history/run_history.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr std::string_view kSkew = "skew=", kLoads = "experts_loads";
constexpr double kMostSkew = 10;

using Loads = std::vector<std::vector<double>>;  // by layer with experts, and expert

Routing Skewed(const std::string& argument, const Deck& deck, int64_t seed) {
  double exponent = 0;
  const char *first = argument.data() + kSkew.size(), *last = argument.data() + argument.size();
  const auto [end, error] = std::from_chars(first, last, exponent);
  if (error != std::errc() || end != last || !(exponent >= 0) || exponent > kMostSkew)
    Refuse(fmt::format("--routing {}: no exponent (allowed: 0, where all experts are equally popular, to {:g})",
                       argument, kMostSkew));
  return SkewedRouting(deck.model, exponent, seed);
}

/// The loads of the last line that has them; empty: none has.
Loads LastLoads(const std::string& file, int64_t& step) {
  Loads loads;
  InputLines lines(file, {.what = "metrics of a run", .most_bytes = kMaxMetricsBytes}, kMaxMetricsLine);
  for (InputLines::Line line; lines.Next(line);) {
    if (line.text.find(kLoads) == line.text.npos) continue;
    const nlohmann::json fields = nlohmann::json::parse(line.text, nullptr, false);
    if (!fields.is_object() || !fields.contains(kLoads)) continue;
    try {
      loads = fields.at(std::string(kLoads)).get<Loads>();
      step = IntegerOf(fields, "step").value_or(0);
    } catch (const nlohmann::json::exception&) {
    }
  }
  return loads;
}

Routing Recorded(const std::string& argument, const Deck& deck) {
  const std::string file = std::filesystem::is_directory(argument) ? MetricsFile(argument) : argument;
  int64_t step = 0;
  const Loads of_layers = LastLoads(file, step);
  const Deck::Model& m = deck.model;
  const auto refuse = [&](const std::string& why) {
    throw UserError(ExitStatus::kData, fmt::format("--routing {}: {}: {}", argument, file, why));
  };
  if (of_layers.empty())
    refuse(fmt::format("no step has {} (a run with experts writes it every report.every_steps)", kLoads));
  Loads loads(1);
  size_t next = 0;
  for (int layer = 1; layer <= m.layers; ++layer) {
    std::vector<double>& of_layer = loads.emplace_back();
    if (!KindOf(m, layer).experts) continue;
    if (next < of_layers.size()) of_layer = of_layers[next];
    ++next;
  }
  if (next != of_layers.size())
    refuse(fmt::format("step {} has loads of {} layers with experts, the deck has {}", step, of_layers.size(), next));
  for (const std::vector<double>& layer : of_layers) {
    if (std::ssize(layer) != m.experts.count)
      refuse(fmt::format("step {} has loads of {} experts, experts.count is {}", step, layer.size(), m.experts.count));
    if (std::ranges::any_of(layer, [](double load) { return !(load >= 0); }) ||
        std::accumulate(layer.begin(), layer.end(), 0.0) <= 0)
      refuse(fmt::format("step {} has a layer whose loads are no numbers of tokens", step));
  }
  return {std::move(loads), fmt::format("step {} of {}", step, file)};
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
    return routing.IsBalanced() ? ""
                                : routing.text() + ": no effect, since parallel.ep = 1 gives each rank all experts";
  if (routing.IsBalanced()) return "balanced: every rank has equally many rows of experts (--routing)";
  const FullestRanks fullest = FullestRanksOf(routing, deck);
  return fmt::format(
      "{}: the fullest rank of a layer has {:.2f} times the rows of balanced routing, {:.2f} at most; {:.0f} % of "
      "layers have rows in a further pass (experts.buffer {:g})",
      routing.text(), fullest.mean, fullest.most, 100 * fullest.beyond, deck.model.experts.buffer);
}

}  // namespace espalier
