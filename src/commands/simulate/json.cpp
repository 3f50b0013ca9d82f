#include <nlohmann/json.hpp>

#include "commands/plan/parts.hpp"
#include "commands/simulate/output.hpp"
#include "commands/simulate/routing.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kMilli = 1e-3, kSecondsOfDay = 86400;

Json Milliseconds(const ByCommAxis<double>& us) {
  Json json;
  for (const CommAxis axis : kAllCommAxes)
    if (axis != CommAxis::kHost || us[axis] > 0) json[std::string(Name(axis))] = us[axis] * kMilli;
  return json;
}

/// Null if it is unknown.
Json Milliseconds(const std::optional<double>& seconds) { return seconds ? Json(*seconds * 1e3) : Json(nullptr); }

Json RankJson(const Prediction& prediction, const RankTimes& times, int rank, int ranks) {
  Json json = {{"rank", rank}, {"ranks", ranks}, {"stage", times.stage}, {"end_ms", times.end_us * kMilli}};
  AddParts(json, times.breakdown);
  json["peak_bytes"] = PeakOf(prediction, rank);
  return json;
}

/// An entry for each rank; if there are many, for each class of ranks with equal times.
Json ByRank(const Prediction& prediction) {
  const Simulation& simulation = prediction.simulation;
  Json json = Json::array();
  if (prediction.ranks() > kMaxRanksListed) {
    for (const RankTimes& times : simulation.classes)
      json.push_back(RankJson(prediction, times, times.rank, times.ranks));
    return json;
  }
  for (int rank = 0; rank < prediction.ranks(); ++rank) {
    const auto of_class = static_cast<size_t>(simulation.class_of_rank[static_cast<size_t>(rank)]);
    json.push_back(RankJson(prediction, simulation.classes[of_class], rank, 1));
  }
  return json;
}

Json PartsJson(const ByStepPart<PartTimes>& parts) {
  Json json;
  for (int p = 0; p < kStepPartCount; ++p) {
    const PartTimes& t = parts[static_cast<size_t>(p)];
    json[std::string(Name(static_cast<StepPart>(p)))] = {{"kernels_ms", t.kernels_us * kMilli},
                                                         {"exposed_ms", t.exposed_us * kMilli},
                                                         {"hidden_ms", t.hidden_us * kMilli}};
  }
  return json;
}

Json SavesJson(const Saves& saves) {
  return {{"count", saves.count},
          {"every_steps", saves.every_steps},
          {"asynchronous", saves.asynchronous},
          {"bytes", saves.bytes},
          {"node_bytes", saves.node_bytes},
          {"rank_bytes", saves.rank_bytes},
          {"copy_ms", Milliseconds(saves.copy_s)},
          {"write_ms", Milliseconds(saves.write_s)},
          {"blocked_ms", Milliseconds(saves.blocked_s)}};
}

/// The batch sizes of the run's ramp, with the time of a step of each.
Json SizesJson(const Prediction& prediction) {
  const Deck& deck = prediction.deck();
  const std::vector<RampSize> sizes = BatchRamp(deck.batch).SizesWithin(deck.run.steps);
  Json json = Json::array();
  for (size_t i = 0; i < sizes.size(); ++i)
    json.push_back({{"first_step", sizes[i].first_step},
                    {"sequences", sizes[i].sequences},
                    {"step_ms", prediction.ramp_us[i] * kMilli}});
  return json;
}

void AddRates(Json& json, const Prediction& prediction, const Figures& f) {
  const Compilation& c = prediction.plan.training;
  json["tokens_per_step"] = c.batch.tokens;
  json["tokens_per_s"] = f.tokens_per_s;
  json["tokens_per_s_per_rank"] = f.tokens_per_s / prediction.ranks();
  json["mfu"] = f.mfu;
  json["mfu_full"] = f.mfu_full;
  json["peak_tflops"] = f.peak_tflops;
  if (const auto reasons = ReasonsForPlainAttention(prediction.plan); !reasons.empty())
    json["plain_attention"] = reasons;
  if (c.deck.model.experts.count > 0) {
    const FullestRanks fullest = FullestRanksOf(prediction.target.routing, c.deck);
    json["routing"] = {{"name", prediction.target.routing.text()},
                       {"fullest_rank", fullest.mean},
                       {"fullest_rank_most", fullest.most},
                       {"layers_beyond_buffer", fullest.beyond}};
  }
  json["steps"] = c.deck.run.steps;
  if (BatchRamp(c.deck.batch).Grows()) json["batch_sizes"] = SizesJson(prediction);
  json["days"] = f.run_s / kSecondsOfDay;
  json["node_hours"] = f.node_hours;
}

void AddMemoryTo(Json& json, const Prediction& prediction, const Figures& f) {
  const Cluster::Device& device = prediction.target.cluster.compute;
  json["peak_bytes"] = f.peak_bytes;
  json["peak_rank"] = f.peak_rank;
  json["staging_bytes"] = f.staging_bytes;
  json["memory_bytes"] = device.memory_bytes;
  json["reserved_bytes"] = device.reserved_bytes;
  json["free_bytes"] = f.free_bytes;
  json["fits"] = f.fits();
  json["stages"] = StagesJson(prediction.plan);
}

}  // namespace

void AddParts(Json& json, const Breakdown& b) {
  json["compute_ms"] = b.compute_us * kMilli;
  json["idle_ms"] = b.idle_us * kMilli;
  json["exposed_ms"] = Milliseconds(b.exposed_us);
  json["hidden_ms"] = Milliseconds(b.hidden_us);
}

Json RangeJson(const TimeRange& s) { return {s.least * 1e3, s.most * 1e3}; }

Json StepJson(const Prediction& prediction, const Figures& figures) {
  const Breakdown& slowest = prediction.simulation.Slowest().breakdown;
  return {{"cluster", prediction.target.cluster.name},
          {"step_ms", prediction.simulation.step_us * kMilli},
          {"step_range_ms", RangeJson(figures.step_range_s)},
          {"idle_ms", slowest.idle_us * kMilli},
          {"exposed_comm_ms", figures.exposed_us * kMilli}};
}

Json ToJson(const Prediction& prediction, const Figures& f) {
  const Simulation& simulation = prediction.simulation;
  const Cluster& cluster = prediction.target.cluster;
  Json json;
  json["ranks"] = prediction.ranks();
  json["nodes"] = prediction.nodes();
  json["mesh"] = MeshJson(prediction.plan.training.mesh);
  json["device"] = DeckName(prediction.target.device);
  json["cluster"] = {{"name", cluster.name}, {"path", cluster.path}, {"device", cluster.compute.name}};
  if (const Deck& deck = prediction.plan.training.deck; deck.times != nullptr) json["costs"] = deck.times->Origin();
  json["parameters"] = prediction.plan.training.parameter_count;
  json["step_ms"] = simulation.step_us * kMilli;
  json["step_range_ms"] = RangeJson(f.step_range_s);
  AddRates(json, prediction, f);
  json["slowest_rank"] = simulation.Slowest().rank;
  AddParts(json, simulation.Slowest().breakdown);
  json["exposed_comm_ms"] = f.exposed_us * kMilli;
  json["parts"] = PartsJson(simulation.Slowest().parts);
  AddMemoryTo(json, prediction, f);
  json["checkpoint"] = SavesJson(f.saves);
  if (f.copies.every_steps > 0)
    json["memory_copies"] = {{"count", f.copies.count},
                             {"every_steps", f.copies.every_steps},
                             {"host_bytes", f.copies.host_bytes},
                             {"copy_ms", Milliseconds(f.copies.copy_s)},
                             {"blocked_ms", Milliseconds(f.copies.blocked_s)}};
  for (int k = 0; k < kCostSourceCount; ++k)
    json["sources"][std::string(Name(static_cast<CostSource>(k)))] = f.source_share[static_cast<size_t>(k)];
  json["classes"] = simulation.classes.size();
  json["by_rank"] = ByRank(prediction);
  return json;
}

}  // namespace espalier
