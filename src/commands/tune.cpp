// espalier tune: the fastest layout of a deck on a cluster, searched in one process.
#include "espalier/tune/tune.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/refuse.hpp"
#include "commands/simulate/output.hpp"
#include "commands/simulate/routing.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/costs/uncertainty.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

constexpr double kPerCent = 100;
constexpr int64_t kRoutingSeed = 1234;

/// The part of it that a layout leaves free.
int64_t ReserveOf(const TuneCommandOptions& options, const Cluster& cluster) {
  const double bytes =
      options.reserve ? *options.reserve * kGiga : kReserve * static_cast<double>(cluster.compute.memory_bytes);
  const int64_t most = cluster.BytesForPrograms();
  if (bytes >= static_cast<double>(most))
    Refuse(
        fmt::format("--reserve {:g}: leaves nothing for programs (allowed: less than the {:.4g} GB that {} has for "
                    "them)",
                    bytes / kGiga, double(most) / kGiga, cluster.compute.name));
  return static_cast<int64_t>(bytes);
}

/// Rates of a candidate's step on a cluster.
struct Rates {
  double step_s, tokens_per_s, mfu;
  double free_gb;
};
Rates RatesOf(const Candidate& candidate, int ranks, const Cluster& cluster) {
  const Deck& deck = candidate.deck;
  const double step_s = candidate.step_us / 1e6, tokens = static_cast<double>(TokensPerStep(deck));
  const double tflops =
      deck.precision.compute == Dtype::kBf16 ? cluster.compute.bf16_tflops : cluster.compute.fp32_tflops;
  return {step_s, tokens / step_s, FlopsPerToken(deck).causal * tokens / (step_s * ranks * tflops * 1e12),
          double(cluster.BytesForPrograms() - candidate.peak_bytes) / kGiga};
}

Uncertainty UncertaintyOf(const Candidate& candidate, const Cluster& cluster) {
  return UncertaintyOf(cluster, 1 - candidate.measured_share);
}
TimeRange RangeOf(const Candidate& candidate, const Cluster& cluster) {
  return RangeOf(candidate.step_us / 1e6, UncertaintyOf(candidate, cluster));
}

double Share(double us, const Candidate& candidate) { return kPerCent * us / candidate.step_us; }

class Printer {
 public:
  /// `joined`: ChoiceWithJoinedHeads.
  Printer(const TuneResult& result, const std::optional<Candidate>& joined, const TuneCommandOptions& options,
          const Cluster& cluster, int ranks)
      : result_(result), joined_(joined), options_(options), cluster_(cluster), ranks_(ranks) {}

  void Print() const {
    const Deck& deck = result_.ranking[0].deck;
    fmt::print("tuned       {} on {} x {} ({})\n", deck.name, ranks_, cluster_.compute.name, cluster_.path);
    if (const BatchRamp ramp(deck.batch); ramp.Grows())
      fmt::print("batch       {}: times are of {} sequences, peaks the largest of all sizes\n", Describe(ramp),
                 deck.batch.global);
    fmt::print(
        "memory      {:.4g} GB of {:.4g} GB per device for programs: {:.3g} GB are reserved by the cluster file, and "
        "{:.3g} GB stay free (--reserve)\n",
        double(result_.memory_bytes) / kGiga, double(cluster_.compute.memory_bytes) / kGiga,
        double(cluster_.compute.reserved_bytes) / kGiga,
        double(cluster_.BytesForPrograms() - result_.memory_bytes) / kGiga);
    fmt::print("layouts     {} considered: {} invalid, {} too large by their lower bound, {} scored by formula\n",
               result_.considered, result_.invalid, result_.too_large, result_.scored);
    fmt::print(
        "simulated   {} of {} compiled{}{}\n", result_.ranking.size(), result_.compiled,
        result_.compiled_too_large > 0 ? fmt::format("; {} did not fit once compiled", result_.compiled_too_large) : "",
        result_.expected_too_large > 0 ? fmt::format("; {} others are not expected to fit", result_.expected_too_large)
                                       : "");
    if (!result_.offload.empty())
      fmt::print("offload     {}, since nothing fits without; of the fastest, what \"auto\" takes if that is faster\n",
                 result_.offload);
    PrintRanking();
    PrintChoice();
    PrintReasons();
  }

 private:
  void PrintRanking() const {
    fmt::print("\n{:>4} {:>9} {:>10} {:>6} {:>8} {:>7} {:>8} {:>5}", "rank", "step", "tokens/s", "MFU", "peak GB",
               "free", "compute", "idle");
    for (CommAxis axis : Axes()) fmt::print(" {:>5}", Name(axis));
    fmt::print(" {:>9}  {}\n", "measured", "layout");
    const size_t shown = std::min(result_.ranking.size(), static_cast<size_t>(options_.top));
    for (size_t i = 0; i < shown; ++i) PrintRow(i);
    if (result_.choice >= shown) PrintRow(result_.choice);
    fmt::print(
        "     shares in % of the step, of the rank that ends last; tp, cp, ep, dp, pp: exposed communication; "
        "measured: share of its time that was measured\n");
  }
  /// With that of copies to and from the host, if a layout has some.
  std::vector<CommAxis> Axes() const {
    std::vector<CommAxis> axes(kCommAxes.begin(), kCommAxes.end());
    if (std::ranges::any_of(result_.ranking, [](const Candidate& c) {
          return c.breakdown.exposed_us[CommAxis::kHost] + c.breakdown.hidden_us[CommAxis::kHost] > 0;
        }))
      axes.push_back(CommAxis::kHost);
    return axes;
  }
  void PrintRow(size_t i) const {
    const Candidate& c = result_.ranking[i];
    const Rates rates = RatesOf(c, ranks_, cluster_);
    fmt::print("{:>3}{} {:>7.4g} s {:>10} {:>4.1f} % {:>8.4g} {:>7.3g} {:>6.1f} % {:>5.1f}", i + 1,
               i == result_.choice ? "*" : " ", rates.step_s, HumanCount(rates.tokens_per_s), kPerCent * rates.mfu,
               double(c.peak_bytes) / kGiga, rates.free_gb, Share(c.breakdown.compute_us, c),
               Share(c.breakdown.idle_us, c));
    for (CommAxis axis : Axes()) fmt::print(" {:>5.1f}", Share(c.breakdown.exposed_us[axis], c));
    fmt::print(" {:>7.0f} %  {}; {}\n", kPerCent * c.measured_share, c.layout, c.limit);
  }

  void PrintChoice() const {
    const Candidate& choice = result_.ranking[result_.choice];
    fmt::print("\nmargin      the second is {:.1f} % slower than the first\n", kPerCent * result_.margin);
    if (result_.near_ties > 0)
      fmt::print("near ties   {} more within {:.0f} %, the model's own error: their order is not certain\n",
                 result_.near_ties, kPerCent * kModelError);
    fmt::print("chosen      {}{}\n", choice.layout, WhyChosen());
    PrintBaseline(choice);
    fmt::print("range       {} ({})\n", RangeText(RangeOf(choice, cluster_)), UncertaintyOf(choice, cluster_).reason);
    if (joined_)
      fmt::print(
          "advice      fusion.join_matmuls = \"{}\" would take {:.4g} s instead of {:.4g} s, peak {:.4g} GB; it "
          "changes "
          "rounding\n",
          DeckName(joined_->deck.fusion.join_matmuls), joined_->step_us / 1e6, choice.step_us / 1e6,
          double(joined_->peak_bytes) / kGiga);
  }
  /// The gain of the choice over the layouts that are tried first by hand.
  void PrintBaseline(const Candidate& choice) const {
    constexpr const char* kMeaning = "1F1B or interleaved, without cp, dp_replicate and overlap.interleave";
    if (!result_.baseline)
      return fmt::print("baseline    none of the simulated layouts is conventional: {}\n", kMeaning);
    const Candidate& best = result_.ranking[*result_.baseline];
    if (*result_.baseline == result_.choice)
      return fmt::print("baseline    the chosen layout is the best conventional one, {}\n", kMeaning);
    fmt::print("baseline    {}: {:.4g} s, {:.4g} times the chosen {:.4g} s; the best conventional layout, {}\n",
               best.layout, best.step_us / 1e6, best.step_us / choice.step_us, choice.step_us / 1e6, kMeaning);
  }
  std::string WhyChosen() const {
    const Candidate &choice = result_.ranking[result_.choice], &first = result_.ranking[0];
    if (result_.choice == 0) return "";
    const bool measured = choice.measured_share > first.measured_share;
    return fmt::format(": {:.1f} % slower than the first, which is within the error, but {}",
                       kPerCent * (choice.step_us / first.step_us - 1),
                       measured ? fmt::format("{:.0f} % of its time was measured instead of {:.0f} %",
                                              kPerCent * choice.measured_share, kPerCent * first.measured_share)
                                : "its settings are plainer");
  }

  void PrintReasons() const {
    if (!result_.rejections.empty()) fmt::print("\nwhy not\n");
    for (const Rejection& rejection : result_.rejections) fmt::print("  {}: {}\n", rejection.layout, rejection.reason);
    for (const std::string& rule : result_.rules) fmt::print("  {}\n", rule);
  }

  const TuneResult& result_;
  const std::optional<Candidate>& joined_;
  const TuneCommandOptions& options_;
  const Cluster& cluster_;
  const int ranks_;
};

/// The chosen deck with a comment about its predicted results.
std::string ChosenDeck(const TuneResult& result, const Deck& deck, const Cluster& cluster, int ranks) {
  const Candidate& choice = result.ranking[result.choice];
  const Rates rates = RatesOf(choice, ranks, cluster);
  return fmt::format(
      "# Chosen by espalier tune for {} on {} x {}: include this after the deck,\n"
      "#   include = [\"{}.toml\", \"this file\"]\n"
      "# Predicted: {:.4g} s per step, {} tokens/s, MFU {:.1f} %, peak {:.4g} GB of {:.4g} GB; {:.0f} % of the time "
      "from\n"
      "# measured costs; {} other layouts within {:.0f} %. A step usually takes {}\n"
      "# ({}).\n\n{}",
      deck.name, ranks, cluster.compute.name, deck.name, rates.step_s, HumanCount(rates.tokens_per_s),
      kPerCent * rates.mfu, double(choice.peak_bytes) / kGiga, double(cluster.BytesForPrograms()) / kGiga,
      kPerCent * choice.measured_share, result.near_ties, kPerCent * kModelError, RangeText(RangeOf(choice, cluster)),
      UncertaintyOf(choice, cluster).reason, AsDeck(choice, deck));
}

nlohmann::ordered_json TuneJson(const Candidate& c, int ranks, const Cluster& cluster) {
  const Rates rates = RatesOf(c, ranks, cluster);
  nlohmann::ordered_json json;
  json["layout"] = c.layout;
  const Deck::Parallel& p = c.deck.parallel;
  json["mesh"] = {{"pp", p.pp}, {"dp_replicate", p.dp_replicate}, {"dp_shard", p.dp_shard}, {"cp", p.cp}, {"tp", p.tp}};
  json["ep"] = p.ep;
  json["step_ms"] = c.step_us / 1e3;
  json["step_range_ms"] = RangeJson(RangeOf(c, cluster));
  json["formula_ms"] = c.formula_us / 1e3;
  json["tokens_per_s"] = rates.tokens_per_s;
  json["mfu"] = rates.mfu;
  json["peak_bytes"] = c.peak_bytes;
  json["least_bytes"] = c.least_bytes;
  AddParts(json, c.breakdown);
  json["measured_share"] = c.measured_share;
  json["limit"] = c.limit;
  return json;
}

nlohmann::ordered_json TuneJson(const TuneResult& result, const Deck& deck, int ranks, const Cluster& cluster) {
  nlohmann::ordered_json json;
  json["ranks"] = ranks;
  json["cluster"] = cluster.path;
  json["memory_bytes"] = result.memory_bytes;
  json["reserve_bytes"] = cluster.BytesForPrograms() - result.memory_bytes;
  json["considered"] = result.considered;
  json["invalid"] = result.invalid;
  json["too_large"] = result.too_large;
  json["scored"] = result.scored;
  json["compiled"] = result.compiled;
  json["compiled_too_large"] = result.compiled_too_large;
  json["expected_too_large"] = result.expected_too_large;
  json["margin"] = result.margin;
  json["near_ties"] = result.near_ties;
  json["choice"] = result.choice;
  json["offload"] = result.offload;
  json["baseline"] = result.baseline ? nlohmann::ordered_json(*result.baseline) : nlohmann::ordered_json(nullptr);
  json["deck"] = AsDeck(result.ranking[result.choice], deck);
  json["ranking"] = nlohmann::ordered_json::array();
  for (const Candidate& c : result.ranking) json["ranking"].push_back(TuneJson(c, ranks, cluster));
  json["rejections"] = nlohmann::ordered_json::array();
  for (const Rejection& r : result.rejections)
    json["rejections"].push_back({{"layout", r.layout}, {"reason", r.reason}});
  json["rules"] = result.rules;
  return json;
}

/// "dp 2 1f1b micro 1, offload optimizer 1.00 activations layers 0-3": a candidate with what is on the host.
std::string WithOffload(const Candidate& c) {
  const Deck::Offload& o = c.deck.offload;
  std::string text;
  for (const auto& [name, share] : {std::pair("optimizer", o.optimizer), std::pair("activations", o.activations),
                                    std::pair("parameters", o.parameters), std::pair("gradients", o.gradients)})
    if (share != 0) text += fmt::format(" {} {:.2f}", name, share);
  if (!o.layers.empty()) text += " layers " + o.layers;
  return c.layout + (text.empty() ? "" : ", offload" + text);
}

/// On so many ranks, or on all of them if it fits on no fewer.
const Candidate& ChoiceOn(const std::optional<FewestRanks>& fewest, const TuneResult& all) {
  const TuneResult& result = fewest ? fewest->result : all;
  return result.ranking[result.choice];
}

void PrintFewest(const std::optional<FewestRanks>& fewest, const TuneResult& all, int ranks, const Cluster& cluster) {
  const Candidate& choice = ChoiceOn(fewest, all);
  const int fewer = fewest ? fewest->ranks : ranks;
  const Rates rates = RatesOf(choice, fewer, cluster);
  fmt::print("\nfewest      {} x {} (powers of two and {} were tried): {:.4g} s, {} tokens/s, peak {:.4g} GB; {}\n",
             fewer, cluster.compute.name, ranks, rates.step_s, HumanCount(rates.tokens_per_s),
             double(choice.peak_bytes) / kGiga, WithOffload(choice));
}

nlohmann::ordered_json FewestJson(const std::optional<FewestRanks>& fewest, const TuneResult& all, int ranks,
                                  const Cluster& cluster) {
  const Candidate& choice = ChoiceOn(fewest, all);
  nlohmann::ordered_json json = TuneJson(choice, fewest ? fewest->ranks : ranks, cluster);
  json["ranks"] = fewest ? fewest->ranks : ranks;
  json["layout"] = WithOffload(choice);
  return json;
}

}  // namespace

int TuneCommand(const TuneCommandOptions& options) {
  LoadedDeck loaded = LoadDeck(options.arguments.deck, options.arguments.overrides);
  RequirePatternsMatch(loaded);
  ReadOrder(loaded.deck);
  const Deck& deck = loaded.deck;
  const int ranks = options.ranks > 0 ? options.ranks : SmallestRanks(deck);
  const Costs costs(LoadCluster(options.cluster), ReadRouting(options.routing, deck, kRoutingSeed));
  CheckWritable("-o", options.output);
  CheckWritable("--json", options.json);
  TuneOptions tune;
  tune.fixed = options.fixed;
  tune.memory_bytes = costs.cluster().BytesForPrograms() - ReserveOf(options, costs.cluster());
  const TuneResult result = TuneWithOffload(deck, ranks, costs, tune);
  const std::optional<Candidate> joined = ChoiceWithJoinedHeads(result, ranks, costs, tune);
  const std::optional<FewestRanks> fewest =
      options.fewest ? FindFewestRanks(deck, ranks, costs, tune) : std::optional<FewestRanks>();
  const std::string text = ChosenDeck(result, deck, costs.cluster(), ranks);
  WriteOutput(options.output, text);
  nlohmann::ordered_json json = TuneJson(result, deck, ranks, costs.cluster());
  json["joined"] = joined ? nlohmann::ordered_json{{"join_matmuls", DeckName(joined->deck.fusion.join_matmuls)},
                                                   {"step_ms", joined->step_us / 1e3},
                                                   {"peak_bytes", joined->peak_bytes}}
                          : nlohmann::ordered_json(nullptr);
  if (options.fewest) json["fewest"] = FewestJson(fewest, result, ranks, costs.cluster());
  WriteOutput(options.json, json.dump(1) + "\n");
  Printer(result, joined, options, costs.cluster(), ranks).Print();
  if (options.fewest) PrintFewest(fewest, result, ranks, costs.cluster());
  if (options.output.empty())
    fmt::print("\n{}", text);
  else
    fmt::print("\nwrote       {}\n", options.output);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
