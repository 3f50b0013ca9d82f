// espalier plan: everything that can be said before launch, for any number of ranks, in this one process.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "espalier/checkpoint/saver.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/error.hpp"
#include "state.hpp"

namespace espalier {
namespace {

constexpr int kMostRanksListed = 1024;
constexpr double kMiB = 1024.0 * 1024.0;

/// Lanes by the name of their axis: what a stage sends to its neighbours counts as "pp".
std::string AxisName(const std::string& lane) { return lane == "pp-send" ? "pp" : lane; }

/// "0-9" or "0-3,8-11".
std::string RangesText(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end > i) text += fmt::format("-{}", numbers[end]);
    i = end + 1;
  }
  return text;
}

/// What a checkpoint copies on the rank that writes most; 0 if nothing is copied.
int64_t LargestStaging(const Compilation& c) {
  return c.deck.checkpoint.asynchronous || c.deck.run.device == "cuda" ? std::ranges::max(StagingBytes(StateTensors(c), c.mesh)) : 0;
}

void PrintPlan(const WorldPlan& plan, int64_t staging_bytes) {
  const Compilation& c = plan.training;
  const int ranks = c.mesh.Ranks();
  fmt::print("ranks       {}: {}\n", ranks, c.mesh.ToString());
  fmt::print("model       {}: {} parameters, {} in computation\n", c.deck.model.family, c.parameter_count, c.deck.precision.compute);
  const ModelFlops flops = FlopsPerToken(c.deck);
  fmt::print("flops       {:.6e} per token, causal; {:.6e} with full attention\n", flops.causal, flops.full);
  fmt::print("step        {} tokens: {} sequences in {} microbatches\n", c.deck.batch.global * c.deck.model.seq_len, c.deck.batch.global,
             c.microbatches);
  fmt::print("programs    {} for {} ranks; the largest has {} instructions\n", plan.programs.size(), ranks, [&] {
    size_t most = 0;
    for (const auto& [rank, program] : plan.programs) most = std::max(most, program.instructions.size());
    return most;
  }());
  fmt::print("\nschedule    {} (a column is one forward of a microbatch in a chunk; B and W as long each)\n{}", c.schedule.name, Draw(c.schedule));
  fmt::print("\nmemory of the largest rank of each stage, MiB at its peak\n{:>5} {:<9} {:>10}", "stage", "layers", "peak");
  for (int k = 0; k < kMemoryClassCount; ++k) fmt::print(" {:>13}", Name(static_cast<MemoryClass>(k)));
  fmt::print("\n");
  for (const StagePlan& stage : plan.stages) {
    fmt::print("{:>5} {:<9} {:>10.1f}", stage.stage, RangesText(stage.layers), double(stage.peak_bytes) / kMiB);
    for (int64_t bytes : stage.bytes) fmt::print(" {:>13.1f}", double(bytes) / kMiB);
    fmt::print("\n");
  }
  fmt::print("largest     {} bytes\n", plan.peak_bytes);
  fmt::print("staging     {} bytes beside it, for checkpoints written while training goes on\n", staging_bytes);
  fmt::print("\nmessages of a step, largest rank\n");
  for (const auto& [lane, count] : plan.messages)
    fmt::print("{:>5} {:>8} messages {:>16} bytes\n", AxisName(lane), count.count, count.bytes);
  if (plan.messages.empty()) fmt::print("      none\n");
}

nlohmann::ordered_json ToJson(const WorldPlan& plan, int64_t staging_bytes) {
  const Compilation& c = plan.training;
  nlohmann::ordered_json json;
  json["ranks"] = c.mesh.Ranks();
  for (const auto& [axis, degree] : c.mesh.DeckDegrees()) json["mesh"][std::string(axis)] = degree;
  json["parameters"] = c.parameter_count;
  const ModelFlops flops = FlopsPerToken(c.deck);
  json["flops_per_token"] = {{"causal", flops.causal}, {"full", flops.full}};
  json["tokens_per_step"] = c.deck.batch.global * c.deck.model.seq_len;
  json["peak_bytes"] = plan.peak_bytes;
  if (c.mesh.Ranks() <= kMostRanksListed) json["rank_peak_bytes"] = plan.rank_peak_bytes;
  json["staging_bytes"] = staging_bytes;
  json["stages"] = nlohmann::ordered_json::array();
  for (const StagePlan& stage : plan.stages) {
    nlohmann::ordered_json entry = {{"stage", stage.stage}, {"layers", stage.layers}, {"peak_bytes", stage.peak_bytes}};
    for (int k = 0; k < kMemoryClassCount; ++k)
      entry["bytes"][std::string(Name(static_cast<MemoryClass>(k)))] = stage.bytes[static_cast<size_t>(k)];
    json["stages"].push_back(std::move(entry));
  }
  json["messages"] = nlohmann::ordered_json::object();
  for (const auto& [lane, count] : plan.messages)
    json["messages"][AxisName(lane)] = {{"count", count.count}, {"bytes", count.bytes}};
  return json;
}

}  // namespace

int PlanCommand(const PlanOptions& options) {
  const LoadedDeck loaded = LoadDeck(options.arguments.deck, options.arguments.overrides);
  const int ranks = options.ranks > 0 ? options.ranks : SmallestRanks(loaded.deck);
  ResolveMesh(loaded, ranks);
  if (options.program >= ranks) throw UserError(ExitStatus::kDeck, fmt::format("command line: --program: there is no rank {} of {}", options.program, ranks));
  const WorldPlan plan = PlanWorld(loaded.deck, ranks);
  if (options.program >= 0) {
    fmt::print("{}", Print(plan.programs.at(plan.representative[static_cast<size_t>(options.program)])));
    return static_cast<int>(ExitStatus::kDone);
  }
  const int64_t staging_bytes = LargestStaging(plan.training);
  PrintPlan(plan, staging_bytes);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << ToJson(plan, staging_bytes).dump(1) << "\n";
    if (!file.flush()) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written", options.json));
  }
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
