// The programs of a run, compiled again: their memory, the trace of a step, and the simulation of the same step.
#include <fmt/core.h>

#include <filesystem>
#include <map>

#include "commands/plan/memory_choice.hpp"
#include "commands/report/gather.hpp"
#include "commands/simulate/predict.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/choices.hpp"
#include "espalier/deck/step_range.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxTraceBytes = int64_t{1} << 30;

using PlanPointer = std::shared_ptr<const WorldPlan>;

/// The settings of a run's last start.
struct Setup {
  std::string deck, device, costs, schedule;
  int ranks = 0;
};

Setup SetupOf(const RunHistory& history) {
  const Event* start = history.LastStart();
  const std::optional<int64_t> ranks = start == nullptr ? std::nullopt : IntegerOf(start->fields, "ranks");
  if (!ranks || *ranks < 1 || *ranks > std::numeric_limits<int>::max())
    throw UserError(ExitStatus::kData,
                    fmt::format("{} has no event \"start\" with its ranks", MetricsFile(history.folder)));
  return {TextOf(start->fields, "deck"), TextOf(start->fields, "device"), TextOf(start->fields, "costs"),
          TextOf(start->fields, "schedule"), static_cast<int>(*ranks)};
}

/// Reads run.costs and pipeline.file. Throws UserError (kData) if a file is not what it was when the run started.
LoadedDeck WithOrder(LoadedDeck loaded, const Setup& setup) {
  ReadOrder(loaded.deck);
  const auto compare = [](const char* key, const std::string& then, const std::string& now) {
    if (now != then)
      throw UserError(
          ExitStatus::kData,
          fmt::format("{}: the order of the run's programs was by \"{}\", and here is \"{}\"", key, then, now));
  };
  compare("run.costs", setup.costs, loaded.deck.times == nullptr ? "" : loaded.deck.times->Origin());
  compare("pipeline.file", setup.schedule, OriginOfSchedule(loaded.deck));
  return loaded;
}

/// kCpu or kCuda: the device for which the run compiled its programs.
RunDevice DeviceOfRun(const Deck& deck, const std::string& device) {
  for (const RunDevice known : {RunDevice::kCpu, RunDevice::kCuda})
    if (device == DeckName(known)) return known;
  return PlanDevice(deck).device;
}

PlanPointer PlanOf(Deck deck, RunDevice device, int ranks) {
  deck.run.device = device;
  if (const auto memory = ChooseMemoryOfPlan(deck, ranks, nullptr)) deck = memory->deck;
  return std::make_shared<const WorldPlan>(PlanWorld(deck, ranks));
}

std::shared_ptr<const Program> ProgramOf(const PlanPointer& plan, int rank) {
  if (rank < 0 || rank >= std::ssize(plan->representative)) return nullptr;
  return {plan, &plan->programs.at(plan->representative[static_cast<size_t>(rank)])};
}

/// By stage: the rank whose program needs most memory.
std::map<int, int> LargestRanks(const WorldPlan& plan) {
  std::map<int, int> largest;
  for (const auto& [rank, program] : plan.programs) {
    const auto [at, fresh] = largest.try_emplace(program.stage, rank);
    if (program.arena_bytes > plan.programs.at(at->second).arena_bytes) at->second = rank;
  }
  return largest;
}

ProgramsOnPage MemoryOf(const WorldPlan& plan) {
  ProgramsOnPage programs;
  programs.rank_peak_bytes = plan.rank_peak_bytes;
  const ProgramMaker maker(plan.training);
  for (const auto& [stage, rank] : LargestRanks(plan)) {
    MemoryOnPage memory{stage, rank, {}, "", 0};
    const Program program = maker.Make(plan.training.mesh.CoordinateOf(rank), {}, &memory.course);
    memory.peak_instruction = memory.course.peak < 0 ? "before the first" : Describe(program, memory.course.peak);
    memory.arena_bytes = program.arena_bytes;
    programs.memory.push_back(std::move(memory));
  }
  return programs;
}

/// The last step that was traced; nothing if there is none.
std::optional<int64_t> TracedStep(const RunHistory& history) {
  const std::vector<const Event*> traces = history.EventsOf("trace");
  return traces.empty() ? std::nullopt : IntegerOf(traces.back()->fields, "step");
}

TimelineOnPage ReadMeasured(const RunHistory& history, const PlanPointer& plan) {
  const std::optional<int64_t> step = TracedStep(history);
  if (!step) return {std::nullopt, "no step was measured instruction by instruction: train with report.trace=10:10"};
  const std::string path = (fs::path(history.folder) / "trace" / fmt::format("step-{:08}.json", *step)).string();
  try {
    Timeline timeline =
        ReadTrace(ReadFile(path, {"trace", kMaxTraceBytes}), path, [&](int rank) { return ProgramOf(plan, rank); });
    return {std::move(timeline), ""};
  } catch (const UserError& error) {
    return {std::nullopt, "the measured step is not shown: " + InOneLine(error)};
  }
}

/// The cluster file for the simulation: --cluster, the one that the run measured, or the one for which it waited.
std::string ClusterOf(const Deck& deck, const std::string& cluster) {
  if (!cluster.empty()) return cluster;
  if (deck.run.device == RunDevice::kSleep) return deck.run.cluster;
  return fs::exists(deck.report.costs) ? deck.report.costs : "";
}

/// The same step on a cluster. `run_plan` has the programs of the run.
TimelineOnPage SimulateStep(const LoadedDeck& loaded, const Setup& setup, const std::string& path, RunDevice run_device,
                            const PlanPointer& run_plan) {
  if (path.empty())
    return {
        std::nullopt,
        "no step was simulated: give --cluster FILE (inputs/clusters has some, and espalier calibrate measures this "
        "machine)"};
  try {
    const Target target = ChooseTarget(loaded, path);
    const PlanPointer plan =
        target.device == run_device ? run_plan : PlanOf(run_plan->training.deck, target.device, setup.ranks);
    SimulateOptions options;
    options.record = true;
    Timeline timeline = SimulatePlan(*plan, target, options).timeline;
    timeline.title = fmt::format("{}, simulated on {}", setup.deck, target.cluster.name);
    // Programs of the simulation belong to the plan: keep it.
    for (Track& track : timeline.tracks) track.program = ProgramOf(plan, track.rank);
    return {std::move(timeline), ""};
  } catch (const UserError& error) {
    return {std::nullopt, "the step could not be simulated: " + InOneLine(error)};
  }
}

}  // namespace

void AddPrograms(RunOnPage& run, const LoadedDeck& of_run, const std::string& cluster) {
  try {
    const Setup setup = SetupOf(run.history);
    const LoadedDeck loaded = WithOrder(of_run, setup);
    ResolveMesh(loaded, setup.ranks);
    const RunDevice device = DeviceOfRun(loaded.deck, setup.device);
    const PlanPointer plan = PlanOf(loaded.deck, device, setup.ranks);
    run.programs = MemoryOf(*plan);
    const int64_t sequences =
        BatchRamp(loaded.deck.batch).SequencesOf(TracedStep(run.history).value_or(loaded.deck.run.steps));
    const PlanPointer of_step = sequences == loaded.deck.batch.global
                                    ? plan
                                    : PlanOf(WithSequences(loaded.deck, sequences), device, setup.ranks);
    run.measured = ReadMeasured(run.history, of_step);
    run.simulated = SimulateStep(loaded, setup, ClusterOf(loaded.deck, cluster), device, of_step);
  } catch (const UserError& error) {
    const std::string why = "its deck cannot be compiled here: " + InOneLine(error);
    run.programs.why_none = why;
    run.measured.why_none = why;
  }
}

}  // namespace espalier
