// espalier plan: the plan of a run for any number of ranks, computed in one process.
#include "espalier/program/plan.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/plan/failures.hpp"
#include "commands/plan/memory_choice.hpp"
#include "commands/plan/parts.hpp"
#include "commands/simulate/output.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/graph/columns.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/passes/fp8.hpp"
#include "espalier/report/text.hpp"
#include "espalier/schedule/schedule_file.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/units.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

constexpr size_t kProgramWidth = 120, kOperandIndent = 18, kLabelIndent = 12;

/// The name of a lane's axis: sends of a stage to its neighbours count as "pp".
std::string AxisName(const std::string& lane) { return lane == "pp-send" ? "pp" : lane; }

/// The smallest common size of GPU memory that suffices, and how much the next smaller one lacks.
void PrintFitOfGpus(int64_t arena_bytes, int64_t outside_bytes) {
  constexpr std::array<int, 6> kSizes = {16, 24, 40, 80, 141, 192};
  const auto left = [&](int size) { return size - static_cast<double>(arena_bytes + outside_bytes) / kGiga; };
  const auto* enough = std::ranges::find_if(kSizes, [&](int size) { return left(size) >= 0; });
  const std::string lacks =
      enough == kSizes.begin() ? "" : fmt::format("{:.1f} GB short on {} GB", -left(enough[-1]), enough[-1]);
  if (enough == kSizes.end())
    return fmt::print("fits        no GPU of {} to {} GB: {}\n", kSizes[0], kSizes.back(), lacks);
  fmt::print(
      "fits        GPUs of {0} GB and more: {1:.1f} GB free on {0} GB{2}{3}; with {4} for context and libraries\n",
      *enough, left(*enough), lacks.empty() ? "" : ", ", lacks, Gigabytes(outside_bytes));
}

/// With offload.device_bytes: whether the arena of the device has no more.
void PrintFitOfArena(int64_t peak_bytes, int64_t device_bytes) {
  if (device_bytes > 0)
    fmt::print("fits        offload.device_bytes = {}: {}, {} {}\n", device_bytes,
               peak_bytes <= device_bytes ? "yes" : "no", HumanBytes(std::abs(device_bytes - peak_bytes)),
               peak_bytes <= device_bytes ? "free" : "short");
}

void PrintFit(const Compilation& c, int64_t peak_bytes, int64_t staging_bytes) {
  PrintFitOfArena(peak_bytes, c.deck.offload.device_bytes);
  if (c.deck.run.device == RunDevice::kCuda) return PrintFitOfGpus(peak_bytes, c.deck.run.outside_bytes);
  const int64_t available = AvailableMemory();
  if (available == std::numeric_limits<int64_t>::max()) return;  // the system does not say
  fmt::print("fits        this host has {} available: enough for {} such ranks\n", HumanBytes(available),
             available / (peak_bytes + staging_bytes));
}

/// Peaks are maxima over all batch sizes; all other figures are for batch.global.
void PrintRamp(const Compilation& c) {
  const BatchRamp ramp(c.deck.batch);
  if (!ramp.Grows()) return;
  fmt::print("batch       {}\n", Describe(ramp));
  fmt::print(
      "            {} sizes with programs of their own; memory is that of the largest, all else is of {} sequences\n",
      ramp.Sizes().size(), c.batch.sequences);
}

nlohmann::ordered_json RampJson(const Compilation& c) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const RampSize& size : BatchRamp(c.deck.batch).Sizes())
    json.push_back({{"first_step", size.first_step},
                    {"sequences", size.sequences},
                    {"microbatches", size.sequences / c.batch.rows}});
  return json;
}

/// The layers in which `kind` reads one joined value, and all of its layers.
struct JoinedLayers {
  std::set<int> joined, all;
};
JoinedLayers JoinedLayersOf(const Graph& graph, OpKind kind) {
  JoinedLayers layers;
  for (const Op& op : graph.ops) {
    if (op.kind != kind || op.role != Role::kF) continue;
    layers.all.insert(op.layer);
    if (op.attributes.texts.contains(kColumns)) layers.joined.insert(op.layer);
  }
  return layers;
}

/// The matmuls that fusion.join_matmuls has joined, if any.
void PrintJoined(const Graph& graph) {
  const JoinedLayers gates = JoinedLayersOf(graph, OpKind::kSwiglu), heads = JoinedLayersOf(graph, OpKind::kAttention);
  if (gates.joined.empty() && heads.joined.empty()) return;
  fmt::print("joined      matmuls of gate and up in {} of {} layers, of q, k and v in {} of {}\n", gates.joined.size(),
             gates.all.size(), heads.joined.size(), heads.all.size());
}

void PrintSchedule(const std::string& name, const Schedule& schedule) {
  fmt::print("\nschedule    {} (a column is one forward of a microbatch in a chunk; B and W as long each)\n{}", name,
             Draw(schedule));
}

/// A unit in which the largest of some figures has digits before the point.
struct ByteUnit {
  explicit ByteUnit(int64_t largest) : large(static_cast<double>(largest) >= kGiB) {}
  bool large;
  double bytes() const { return large ? kGiB : kMiB; }
  const char* name() const { return large ? "GiB" : "MiB"; }
};

void PrintClassNames() {
  for (int k = 0; k < kMemoryClassCount; ++k) fmt::print(" {:>13}", Name(static_cast<MemoryClass>(k)));
}

/// In GiB if the largest rank has at least one, otherwise in MiB.
void PrintMemory(const WorldPlan& plan) {
  const ByteUnit unit(plan.peak_bytes);
  fmt::print("\nmemory of the largest rank of each stage, {} at its peak\n{:>5} {:<9} {:>10}", unit.name(), "stage",
             "layers", "peak");
  PrintClassNames();
  fmt::print("\n");
  for (const StagePlan& stage : plan.stages) {
    fmt::print("{:>5} {:<9} {:>10.2f}", stage.stage, RangesText(stage.layers), double(stage.peak_bytes) / unit.bytes());
    for (int64_t bytes : stage.bytes) fmt::print(" {:>13.2f}", double(bytes) / unit.bytes());
    fmt::print("\n");
  }
}

/// The memory of the host, if any is used, and the copies of a step.
void PrintHostMemory(const WorldPlan& plan) {
  if (plan.host_bytes == 0) return;
  const ByteUnit unit(plan.host_bytes);
  fmt::print("\nmemory of the host, of the rank of each stage that has most there, {}\n{:>5} {:<9} {:>10}", unit.name(),
             "stage", "layers", "peak");
  PrintClassNames();
  fmt::print(" {:>13} {:>13}\n", "copied out", "copied in");
  for (const StagePlan& stage : plan.stages) {
    fmt::print("{:>5} {:<9} {:>10.2f}", stage.stage, RangesText(stage.layers), double(stage.host_bytes) / unit.bytes());
    for (int64_t bytes : stage.host_bytes_by_class) fmt::print(" {:>13.2f}", double(bytes) / unit.bytes());
    for (const Space to : {Space::kHost, Space::kDevice})
      fmt::print(" {:>13.2f}", double(stage.copied_bytes[to]) / unit.bytes());
    fmt::print("\n");
  }
  fmt::print("host        {} ({}, {} bytes) of the largest rank\n", HumanBytes(plan.host_bytes),
             DecimalBytes(plan.host_bytes), plan.host_bytes);
}

void PrintPlainAttention(const WorldPlan& plan) {
  for (const std::string& reason : ReasonsForPlainAttention(plan))
    fmt::print("attention   not by cuDNN ({}): our own kernels compute it, many times slower\n", reason);
}

/// `steps`: how run.steps follows from run.epochs; empty: the deck sets it.
void PrintPlan(const WorldPlan& plan, const std::optional<MemoryChoice>& memory, int64_t staging_bytes,
               const PlannedDevice& device, const std::string& steps) {
  const Compilation& c = plan.training;
  const int ranks = c.mesh.Ranks();
  fmt::print("ranks       {}: {}\n", ranks, c.mesh.ToString());
  fmt::print("planned for {} ({})\n", DeckName(device.device), device.reason);
  fmt::print("model       {}, {} parameters, {} compute\n", DeckName(c.deck.model.family),
             ExactCount(c.parameter_count), DeckName(c.deck.precision.compute));
  if (c.deck.precision.matmul == MatmulPrecision::kFp8)
    fmt::print("{}\n", Wrap("fp8         " + Describe(CountFp8Matmuls(*c.graph), c.deck.precision.fp8_scaling),
                            kProgramWidth, kLabelIndent));
  const ModelFlops flops = FlopsPerToken(c.deck);
  fmt::print("flops       {} per token, causal; {} with full attention; {} per step and rank\n",
             HumanFlops(flops.causal), HumanFlops(flops.full),
             HumanFlops(flops.causal * static_cast<double>(c.batch.tokens) / ranks));
  fmt::print("step        {} tokens: {} in {}\n", c.batch.tokens, Counted(c.batch.sequences, "sequence"),
             Counted(c.batch.microbatches, "microbatch"));
  if (!steps.empty()) fmt::print("{}\n", Wrap("run.steps   " + steps, kProgramWidth, kLabelIndent));
  PrintRamp(c);
  fmt::print("programs    {} for {} ranks; the largest has {} instructions\n", plan.programs.size(), ranks, [&] {
    size_t most = 0;
    for (const auto& [rank, program] : plan.programs) most = std::max(most, program.instructions.size());
    return most;
  }());
  PrintOrder(c.deck);
  PrintJoined(*c.graph);
  PrintSchedule(DescribeSchedule(c.deck), c.schedule);
  PrintMemory(plan);
  if (memory) PrintMemoryChoice(*memory);
  PrintHostMemory(plan);
  fmt::print("largest     {} ({}, {} bytes)\n", HumanBytes(plan.peak_bytes), DecimalBytes(plan.peak_bytes),
             plan.peak_bytes);
  fmt::print("staging     {} ({} bytes) of the host's memory besides, for checkpoints written while training goes on\n",
             HumanBytes(staging_bytes), staging_bytes);
  const int64_t copies_bytes = LargestMemoryCopies(c);
  if (copies_bytes > 0)
    fmt::print("copies      {} ({} bytes) of the host's memory besides, for two generations of copies every {}\n",
               HumanBytes(copies_bytes), copies_bytes, Counted(c.deck.checkpoint.memory_steps, "step"));
  PrintFit(c, plan.peak_bytes, staging_bytes + copies_bytes + plan.host_bytes);
  PrintPlainAttention(plan);
  fmt::print("\nmessages of a step, largest rank\n");
  for (const auto& [lane, count] : plan.messages)
    fmt::print("{:>5} {:>8} messages {:>10}\n", AxisName(lane), count.count, HumanBytes(count.bytes));
  if (plan.messages.empty()) fmt::print("      none\n");
}

/// One line per instruction, wrapped; doc/plan.md explains the columns.
void PrintProgram(const Program& program) {
  std::istringstream lines(Print(program));
  fmt::print(
      "# index lane role+microbatch op (inputs) -> (outputs), each name@offset+bytes in the arena (doc/plan.md)\n");
  for (std::string line; std::getline(lines, line);) fmt::print("{}\n", Wrap(line, kProgramWidth, kOperandIndent));
}

nlohmann::ordered_json PlanJson(const Fp8Matmuls& matmuls) {
  nlohmann::ordered_json json = {
      {"matmuls", matmuls.in_fp8}, {"matmuls_in_bf16", matmuls.in_bf16}, {"weights_in_bf16", matmuls.weights}};
  if (matmuls.expert_gradients > 0) json["expert_gradients_in_bf16"] = matmuls.expert_gradients;
  return json;
}

nlohmann::ordered_json PlanJson(const WorldPlan& plan, int64_t staging_bytes) {
  const Compilation& c = plan.training;
  nlohmann::ordered_json json;
  json["ranks"] = c.mesh.Ranks();
  json["device"] = DeckName(c.deck.run.device);
  json["mesh"] = MeshJson(c.mesh);
  if (c.deck.times != nullptr) json["costs"] = c.deck.times->Origin();
  json["parameters"] = c.parameter_count;
  const ModelFlops flops = FlopsPerToken(c.deck);
  json["flops_per_token"] = {{"causal", flops.causal}, {"full", flops.full}};
  json["tokens_per_step"] = c.batch.tokens;
  if (BatchRamp(c.deck.batch).Grows()) json["batch_sizes"] = RampJson(c);
  json["peak_bytes"] = plan.peak_bytes;
  if (c.mesh.Ranks() <= kMaxRanksListed) json["rank_peak_bytes"] = plan.rank_peak_bytes;
  if (plan.host_bytes > 0) json["host_bytes"] = plan.host_bytes;
  if (plan.host_bytes > 0 && c.mesh.Ranks() <= kMaxRanksListed) json["rank_host_bytes"] = plan.rank_host_bytes;
  json["staging_bytes"] = staging_bytes;
  if (const int64_t copies = LargestMemoryCopies(c); copies > 0) json["memory_copies_bytes"] = copies;
  if (const std::set<std::string> reasons = ReasonsForPlainAttention(plan); !reasons.empty())
    json["plain_attention"] = reasons;
  if (plan.training.deck.run.device == RunDevice::kCuda) json["outside_bytes"] = plan.training.deck.run.outside_bytes;
  if (c.deck.precision.matmul == MatmulPrecision::kFp8) json["fp8"] = PlanJson(CountFp8Matmuls(*c.graph));
  json["stages"] = StagesJson(plan);
  json["messages"] = nlohmann::ordered_json::object();
  for (const auto& [lane, count] : plan.messages)
    json["messages"][AxisName(lane)] = {{"count", count.count}, {"bytes", count.bytes}};
  return json;
}

/// Prints the program of a rank, or everything but programs.
void PrintPlan(const PlanOptions& options, const WorldPlan& plan, const std::optional<MemoryChoice>& memory,
               int64_t staging_bytes, const PlannedDevice& device, const std::string& steps) {
  if (options.program >= 0)
    PrintProgram(plan.programs.at(plan.representative[static_cast<size_t>(options.program)]));
  else
    PrintPlan(plan, memory, staging_bytes, device, steps);
}

void PrintTimes(const Prediction& prediction, const Figures& figures) {
  const Breakdown& slowest = prediction.simulation.Slowest().breakdown;
  fmt::print(
      "\ntime        {} a step on {}: compute {}, exposed communication {}, idle {} (espalier simulate says more)\n"
      "range       {} ({})\n",
      DurationText(prediction.simulation.step_us), prediction.target.cluster.name, DurationText(slowest.compute_us),
      DurationText(figures.exposed_us), DurationText(slowest.idle_us), RangeText(figures.step_range_s),
      figures.range_reason);
}

/// With --failures: what follows the loss of nodes.
int PlanForFailures(const PlanOptions& options, const LoadedDeck& loaded, int ranks) {
  const FailurePlan plan =
      PlanFailures({loaded, ranks, ChooseTarget(loaded, options.cluster), options.failures, options.node_mtbf_hours});
  WriteOutput(options.json, ToJson(plan).dump(1) + "\n");
  PrintFailures(plan);
  return static_cast<int>(ExitStatus::kDone);
}

/// With --cluster: plans for the cluster's device and times the step.
int PlanOnCluster(const PlanOptions& options, const CountedSteps& counted, int ranks) {
  const LoadedDeck& loaded = counted.loaded;
  const Prediction prediction = Predict(loaded.deck, ranks, ChooseTarget(loaded, options.cluster), {});
  const Figures figures = FiguresOf(prediction);
  nlohmann::ordered_json json = PlanJson(prediction.plan, figures.staging_bytes);
  json.update(StepJson(prediction, figures));
  if (prediction.memory) json.update(MemoryChoiceJson(*prediction.memory));
  WriteOutput(options.json, json.dump(1) + "\n");
  PrintPlan(options, prediction.plan, prediction.memory, figures.staging_bytes,
            {prediction.target.device, prediction.target.reason}, counted.words);
  if (options.program < 0) PrintTimes(prediction, figures);
  RefuseIfItDoesNotFit(prediction, figures);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace

int PlanCommand(const PlanOptions& options) {
  CountedSteps counted = CountSteps(LoadDeck(options.arguments.deck, options.arguments.overrides));
  if (!options.cluster.empty()) counted.loaded = RequireSteps(std::move(counted.loaded));
  LoadedDeck& loaded = counted.loaded;
  const int ranks = options.ranks > 0 ? options.ranks : SmallestRanks(loaded.deck);
  ReadOrder(loaded.deck);
  ResolveMesh(loaded, ranks);
  RequirePatternsMatch(loaded);
  if (options.program >= ranks)
    throw UserError(
        ExitStatus::kDeck,
        fmt::format("command line: --program: rank {} is not below the number of ranks, {}", options.program, ranks));
  CheckWritable("--json", options.json);
  if (options.failures > 0) return PlanForFailures(options, loaded, ranks);
  if (!options.cluster.empty()) return PlanOnCluster(options, counted, ranks);
  const PlannedDevice device = PlanDevice(loaded.deck);
  loaded.deck.run.device = device.device;
  const std::optional<MemoryChoice> memory = ChooseMemoryOfPlan(loaded.deck, ranks, nullptr);
  if (memory) loaded.deck = memory->deck;
  if (options.schedule) {
    fmt::print("{}", ToCsv(Compile(loaded.deck, ranks, Purpose::kTrain, DeviceOf(loaded.deck)).schedule));
    return static_cast<int>(ExitStatus::kDone);
  }
  if (options.passes) {
    PrintPasses(loaded.deck, ranks);
    return static_cast<int>(ExitStatus::kDone);
  }
  const WorldPlan plan = PlanWorld(loaded.deck, ranks);
  const int64_t staging_bytes = LargestStaging(plan.training);
  nlohmann::ordered_json json = PlanJson(plan, staging_bytes);
  if (memory) json.update(MemoryChoiceJson(*memory));
  WriteOutput(options.json, json.dump(1) + "\n");
  PrintPlan(options, plan, memory, staging_bytes, device, counted.words);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
