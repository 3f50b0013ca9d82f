// The program in numbered steps (Main, at the end): environment, command line, command, errors. The steps of the
// default command are in src/commands/run.cpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "commands/commands.hpp"
#include "commands/run/stop_signals.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/util/agreed_error.hpp"

namespace espalier {
namespace {

constexpr const char* kUsage = R"(espalier: trains transformers over a lattice of ranks

  espalier [run] DECK [key=value ...]      train; started by mpirun or srun, alone it is one rank
           [-r latest|DIR] [-d RUNDIR] [-t TIME] [-w SECONDS]
  espalier check DECK [key=value ...]      print the effective deck with the origin of each value
  espalier plan DECK [key=value ...]       layout, schedule and memory for any number of ranks
           [--ranks N] [--json FILE] [--program RANK]
  espalier inspect CHECKPOINT [--verify]   what is in a checkpoint
  espalier sample CHECKPOINT [--prompt T] [--tokens N] [--temperature X] [--seed N]
  espalier calibrate FILE --deck DECK [--deck DECK] [--ranks N] [key=value ...]
                                           measure the decks' products on this GPU, for run.product_plans
  espalier info                            version, compiler, backends
  espalier COMMAND --help                  the options of a command
)";

constexpr int kMostRanks = 1 << 20;
constexpr int64_t kMostTokens = 1 << 30;

using Job = std::function<int()>;

/// A command of the design that this version does not have.
struct LaterCommand {
  const char* name;
  const char* summary;
};
constexpr LaterCommand kLaterCommands[] = {{"export", "checkpoint to safetensors"},
                                           {"import", "safetensors to checkpoint"}};

int ReadLauncherRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

/// Rank as the launcher tells it, 0 without a launcher. Read once: starting MPI may change the environment.
int LauncherRank() {
  static const int rank = ReadLauncherRank();
  return rank;
}

/// Only the run has many ranks and something to save; of any other command the first rank alone does the work, and a signal ends it.
Job OnFirstRank(Job job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    return LauncherRank() == 0 ? job() : static_cast<int>(ExitStatus::kDone);
  };
}

[[noreturn]] void RefuseLater(const std::string& what) {
  throw UserError(ExitStatus::kDeck, fmt::format("command line: {}: not available in this version", what));
}

void AddDeck(CLI::App* command, DeckArguments& arguments) {
  command->add_option("DECK", arguments.deck, "deck (TOML)")->required();
  command->add_option("key=value", arguments.overrides, "keys of the deck, such as run.steps=20");
}

/// A flag that stands for a key. Its place among the key=value arguments is not known, so the key may not be given
/// beside it.
void AddFlag(const char* flag, const std::string& key, const std::string& value, std::vector<std::string>& overrides) {
  for (const std::string& text : overrides)
    if (text.starts_with(key + "="))
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("command line: {} is given twice, as {} and as {} {} (leave one out)", key, text, flag, value));
  overrides.push_back(key + "=" + value);
}

void AddRun(CLI::App& app, Job& job) {
  struct Flags {
    RunOptions options;
    std::optional<std::string> dir, time_limit, watchdog;  // "" is a value too, and no good one
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("run", "train");
  AddDeck(command, flags->options.arguments);
  command->add_option("-r,--restart", flags->options.restart, "continue from a checkpoint: latest, or its folder");
  command->add_option("-d,--run-dir", flags->dir, "same as run.dir");
  command->add_option("-t,--time-limit", flags->time_limit,
                      "same as run.time_limit (minutes, hh:mm:ss, d-hh:mm:ss, 30m, 2h, ...)");
  command->add_option("-w,--watchdog", flags->watchdog, "same as run.watchdog_s");
  command->callback([flags, &job] {
    std::vector<std::string>& overrides = flags->options.arguments.overrides;
    if (flags->dir) AddFlag("-d", "run.dir", TomlString(*flags->dir), overrides);
    if (flags->time_limit) AddFlag("-t", "run.time_limit", TomlString(*flags->time_limit), overrides);
    if (flags->watchdog) AddFlag("-w", "run.watchdog_s", *flags->watchdog, overrides);
    job = [flags] { return RunCommand(flags->options); };
  });
}

void AddCheck(CLI::App& app, Job& job) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "parse, validate, print the effective deck");
  AddDeck(command, options->arguments);
  command->callback([options, &job] { job = OnFirstRank([options] { return CheckCommand(*options); }); });
}

void AddPlan(CLI::App& app, Job& job) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "compile for any number of ranks and print the plan");
  AddDeck(command, options->arguments);
  command->add_option("--ranks", options->ranks, "ranks to plan for (the fewest that the deck allows)")
      ->check(CLI::Range(1, kMostRanks));
  command->add_option("--json", options->json, "write the plan to this file");
  command->add_option("--program", options->program, "print the instructions of this rank instead")->check(CLI::Range(0, kMostRanks));
  for (const char* later : {"--cluster", "--svg"})
    command->add_option_function<std::string>(
        later, [later](const std::string&) { RefuseLater(fmt::format("plan {}", later)); }, "not in this version");
  command->add_flag_callback(
      "--search", [] { RefuseLater("plan --search"); }, "not in this version");
  command->callback([options, &job] { job = OnFirstRank([options] { return PlanCommand(*options); }); });
}

void AddInspect(CLI::App& app, Job& job) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "what is in a checkpoint");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  command->add_flag("--verify", options->verify, "read every byte against its checksum");
  command->callback([options, &job] { job = OnFirstRank([options] { return InspectCommand(*options); }); });
}

void AddSample(CLI::App& app, Job& job) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* command = app.add_subcommand("sample", "continue a text by a trained model");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  command->add_option("--prompt", options->prompt, "text to continue");
  command->add_option("--tokens", options->tokens, "tokens to add")
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the draws")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->callback([options, &job] { job = OnFirstRank([options] { return SampleCommand(*options); }); });
}

void AddCalibrate(CLI::App& app, Job& job) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand("calibrate", "measure the products of decks on this GPU");
  command->add_option("FILE", options->file, "plan file to write")->required();
  command->add_option("--deck", options->decks, "deck (TOML); may be given more than once")->required()->allow_extra_args(false);
  command->add_option("--ranks", options->ranks, "ranks of each deck (the fewest that it allows)")->check(CLI::Range(1, kMostRanks));
  command->add_option("key=value", options->overrides, "keys of the decks, such as batch.micro=4");
  command->callback([options, &job] { job = OnFirstRank([options] { return CalibrateCommand(*options); }); });
}

void AddOthers(CLI::App& app, Job& job) {
  app.add_subcommand("info", "version, compiler, backends")->callback([&job] { job = OnFirstRank(InfoCommand); });
  app.add_subcommand("doc-deck", "print doc/deck.md")->group("")->callback([&job] {
    job = OnFirstRank(DocDeckCommand);
  });
  for (const LaterCommand& later : kLaterCommands) {
    CLI::App* command = app.add_subcommand(later.name, later.summary)->allow_extras()->group("");
    command->callback([name = later.name] { RefuseLater(name); });
  }
}

void AddCommands(CLI::App& app, Job& job) {
  app.require_subcommand(1);
  AddRun(app, job);
  AddCheck(app, job);
  AddPlan(app, job);
  AddInspect(app, job);
  AddSample(app, job);
  AddCalibrate(app, job);
  AddOthers(app, job);
}

/// "-h TOPIC", "--help TOPIC" or "--help=TOPIC" in place of a command; no arguments at all ask for help too.
bool AsksForHelp(const std::vector<std::string>& arguments, std::string& topic) {
  if (arguments.empty()) return true;
  const std::string& first = arguments[0];
  if (first.starts_with("--help=")) return topic = first.substr(7), true;
  if (first != "-h" && first != "--help") return false;
  if (arguments.size() > 1) topic = arguments[1];
  return true;
}

bool IsCommand(const CLI::App& app, const std::string& name) {
  const auto all = [](const CLI::App*) { return true; };
  return std::ranges::any_of(app.get_subcommands(all), [&](const CLI::App* c) { return c->check_name(name); });
}

/// Arguments -> what to do. A deck or a flag in place of a command means run.
Job ReadCommandLine(std::vector<std::string> arguments) {
  std::string topic;
  if (AsksForHelp(arguments, topic)) return OnFirstRank([topic] { return HelpCommand(kUsage, topic); });
  if (arguments[0] == "--version") return OnFirstRank(InfoCommand);
  Job job;
  CLI::App app("", "espalier");
  AddCommands(app, job);
  if (!IsCommand(app, arguments[0])) arguments.insert(arguments.begin(), "run");
  std::ranges::reverse(arguments);
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return OnFirstRank([text = app.help()] { return fmt::print("{}", text), static_cast<int>(ExitStatus::kDone); });
  } catch (const CLI::ParseError& error) {
    throw UserError(ExitStatus::kDeck, fmt::format("command line: {}", error.what()));
  }
  return job;
}

/// The first rank reports. The launcher ends all ranks when one exits with an error, so the others leave it the time to
/// print. A wrong deck, and what the ranks have agreed on, is the same on every rank; anything else may have happened to
/// one rank alone, which then speaks.
int Report(const UserError& error) {
  const int rank = LauncherRank();
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  const bool same = error.status() == ExitStatus::kDeck || dynamic_cast<const AgreedError*>(&error) != nullptr;
  if (rank != 0 && same) return static_cast<int>(error.status());
  const size_t n = error.messages().size();
  fmt::print(stderr, "espalier: {} mistake{}{}\n", n, n == 1 ? "" : "s",
             rank == 0 ? "" : fmt::format(" (rank {})", rank));
  for (const std::string& message : error.messages()) fmt::print(stderr, "{}\n", message);
  return static_cast<int>(error.status());
}

int ReportFault(const char* kind, const std::exception& error) {
  fmt::print(stderr, "espalier: {} (rank {}): {}\n", kind, LauncherRank(), error.what());
  return static_cast<int>(ExitStatus::kFault);
}

int Main(std::vector<std::string> arguments) {
  // 1. Environment: signals are noted from here on; which rank this is, before anything can change it.
  CatchStopSignals();
  LauncherRank();
  try {
    // 2. Command line: what to do.
    const Job job = ReadCommandLine(std::move(arguments));
    // 3. The command: deck, compile, run, report.
    return job();
    // 4. Errors: the user's, ours, the environment's.
  } catch (const UserError& error) {
    return Report(error);
  } catch (const InvariantError& error) {
    return ReportFault("a mistake of this program", error);
  } catch (const std::exception& error) {
    return ReportFault("error", error);
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main({argv + 1, argv + argc}); }
