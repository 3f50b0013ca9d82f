#include "train/run.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "espalier/comm/agreement.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/report/terminal.hpp"
#include "espalier/train/choose_device.hpp"
#include "train/reporting/peak.hpp"
#include "train/run_files.hpp"
#include "train/startup/memory_choice.hpp"
#include "train/state/init_from.hpp"
#include "train/state/initialize_weights.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

void WriteDeckOfRun(const Deck& deck, const std::string& given) {
  const std::string left = WriteEffectiveDeck(deck.run.dir, EffectiveDeck(deck), given);
  if (!left.empty())
    spdlog::info("{}/deck.toml stays as it is: {}; the effective deck is in every checkpoint", deck.run.dir, left);
}

ReportOptions OptionsOfReport(const Deck& deck, const World& world, const PeakRate& peak) {
  ReportOptions options;
  options.rank = world.Rank();
  options.metrics_path = (fs::path(deck.run.dir) / "metrics.jsonl").string();
  if (deck.report.tensorboard) options.events_folder = (fs::path(deck.run.dir) / "tensorboard").string();
  options.colours = WantsColours() ? Colours::kYes : Colours::kNo;
  options.steps = deck.run.steps;
  options.ramp = BatchRamp(deck.batch);
  options.every_steps = deck.report.every_steps;
  options.flops_per_token = FlopsPerToken(deck);
  options.peak_flops = peak.flops;
  options.peak_source = peak.source;
  options.sleeps = deck.run.device == RunDevice::kSleep;
  if (options.sleeps) options.dilation = deck.run.dilation;
  return options;
}

}  // namespace

Run SetUp(const RunOptions& options, std::string faults, Start& start, World& world, MpiWorld* mpi, RunLog& log,
          Parts& parts) {
  const bool root = world.Rank() == 0;
  const Deck& deck = start.deck();
  const LoadedDeck requested_deck = start.loaded;

  // Devices. The choice is written into the deck.
  const Threads threads = deck.run.device == RunDevice::kSleep ? Threads{} : AgreeOnThreads(deck, world);
  Device& device = parts.Keep(ChooseDevice(start.loaded.deck, world, mpi, threads.count));
  if (root)
    for (const std::string& line : SettingsWithoutEffect(start.loaded)) spdlog::warn("{}", line);

  // Programs and their memory, while rank 0 checks in the background that the programs of all ranks fit together.
  log.SetActivity("compiling the programs");
  const Deck compiled = WithChosenMemory(start.loaded.deck, world, device);
  auto& world_check = parts.Make<WorldCheck>(compiled, device.Kind(), world);
  const auto& programs = parts.Make<Programs>(compiled, world, mpi, device);
  const InstructionTimes* instruction_times = nullptr;
  OnAllRanks(world, [&] { instruction_times = &parts.Make<InstructionTimes>(deck, programs, world.Rank()); });
  auto& measured_costs = parts.Make<MeasuredCosts>(deck, programs, world, mpi);
  auto& watch = parts.Make<Watch>(deck, programs, world, mpi);
  const Evaluation* evaluation = nullptr;
  if (start.data.validation)
    evaluation = &parts.Make<Evaluation>(deck, programs, world, std::move(start.data.validation));

  // Report and checkpoints.
  const PeakRate peak = PeakOfRun(deck, device, world);
  Reporter* reporter = nullptr;
  OnAllRanks(world, [&] {
    ReportOptions report = OptionsOfReport(deck, world, peak);
    report.verbosity = options.verbosity;
    report.log = &log;
    reporter = &parts.Make<Reporter>(std::move(report));
    if (root) WriteDeckOfRun(deck, options.arguments.deck);
  });
  auto& checkpoints =
      parts.Make<Checkpointing>(deck, requested_deck, start.data, programs, world, mpi, start.memory.get(), *reporter);
  auto& stop_reasons = parts.Make<StopReasons>(deck, world, options.began);
  auto& tracer = parts.Make<Tracer>(deck, programs, world, *reporter);

  return {options,     world,     std::move(faults),  start,          threads,    device,
          world_check, programs,  *instruction_times, measured_costs, evaluation, watch,
          peak,        *reporter, checkpoints,        stop_reasons,   tracer};
}

int64_t Restore(const Run& run, Start& start) {
  if (!run.device.Computes()) return 0;
  const int64_t step = run.checkpoints.Restore(start);
  const std::string& from = start.deck().run.init_from;
  if (start.IsFresh()) {
    InitializeWeights(run.programs.compilation(), run.programs.training().executor());
    if (!from.empty()) LoadInitialWeights(start.loaded, run.programs, run.world);
    run.programs.CopyWeights();
  } else if (!from.empty() && run.IsRankZero()) {
    spdlog::info("run.init_from = \"{}\" is not read: this run continues from its checkpoint", from);
  }
  return step;
}

}  // namespace espalier
