// The program in numbered steps (Main, at the end): environment, command line, command, errors. The steps of the
// default command are in src/commands/run.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "commands/commands.hpp"
#include "commands/console.hpp"
#include "commands/run/stop_signals.hpp"
#include "deck/text.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/util/agreed_error.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/print.hpp"
#include "espalier/util/printable_lines.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

constexpr std::string_view kTitle = "espalier: trains transformers over a lattice of ranks";
constexpr size_t kHelpWidth = 100;
constexpr int kMostRanks = 1 << 20;
constexpr int64_t kMostTokens = 1 << 30;

using Job = std::function<int()>;

/// Bounds of a number that are not part of the help.
template <typename T>
CLI::Validator Within(T least, T most) {
  CLI::Range range(least, most);
  range.description("");
  return range;
}

int ReadLauncherRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

/// Rank as the launcher tells it, 0 without a launcher. Read once: starting MPI may change the environment.
int& LauncherRank() {
  static int rank = ReadLauncherRank();
  return rank;
}

/// Of a command that starts no MPI. What is started in a job's shell inherits the variables of some rank: only in
/// mpirun's world of several processes does the rank tell which of them speaks.
int CommandRank() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr || std::atoi(size) < 2) LauncherRank() = 0;
  return LauncherRank();
}

/// Only the run has many ranks and something to save; of any other command the first rank alone does the work, and a
/// signal ends it.
Job OnFirstRank(Job job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    return CommandRank() == 0 ? job() : static_cast<int>(ExitStatus::kDone);
  };
}

/// Every rank does the work and returns its own status; the first one prints.
Job OnEveryRank(Job job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    if (CommandRank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) std::fclose(stdout);
    return job();
  };
}

[[noreturn]] void Refuse(const std::string& why) { throw UserError(ExitStatus::kDeck, "command line: " + why); }

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
  CLI::App* command = app.add_subcommand("run", "train; started by mpirun or srun, alone it is one rank");
  AddDeck(command, flags->options.arguments);
  command->add_option("-r,--restart", flags->options.restart, "continue from a checkpoint: latest, or its folder")
      ->type_name("latest|DIR");
  command->add_option("-d,--run-dir", flags->dir, "same as run.dir")->type_name("RUNDIR");
  command
      ->add_option("-t,--time-limit", flags->time_limit,
                   "same as run.time_limit: minutes, hh:mm:ss, d-hh:mm:ss, 30m, 2h, ...")
      ->type_name("TIME");
  command->add_option("-w,--watchdog", flags->watchdog, "same as run.watchdog_s")->type_name("SECONDS");
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
  CLI::App* command = app.add_subcommand("check", "print the effective deck with the origin of each value");
  AddDeck(command, options->arguments);
  command->callback([options, &job] { job = OnFirstRank([options] { return CheckCommand(*options); }); });
}

void AddPlan(CLI::App& app, Job& job) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "layout, schedule and memory for any number of ranks");
  AddDeck(command, options->arguments);
  command->add_option("--ranks", options->ranks, "ranks to plan for (the fewest that the deck allows)")
      ->type_name("N")
      ->check(Within(1, kMostRanks));
  command->add_option("--json", options->json, "write the plan to this file too")->type_name("FILE");
  command->add_option("--program", options->program, "print the instructions of this rank instead (doc/plan.md)")
      ->type_name("RANK")
      ->check(Within(0, kMostRanks));
  command->callback([options, &job] { job = OnFirstRank([options] { return PlanCommand(*options); }); });
}

void AddInspect(CLI::App& app, Job& job) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "what is in a checkpoint");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  command->add_flag("--verify", options->verify, "read every byte against its checksum");
  command->add_flag("--tensors", options->tensors, "list files and tensors too");
  command->add_flag("--deck", options->deck, "print its deck too");
  command->callback([options, &job] { job = OnEveryRank([options] { return InspectCommand(*options); }); });
}

void AddSample(CLI::App& app, Job& job) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* command = app.add_subcommand("sample", "continue a text, or token ids, by a trained model");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompt, "text to continue (models of data.format = text)");
  prompt->type_name("TEXT");
  command->add_option("--ids", options->ids, "token ids to continue, such as \"1 2 3\"; prints ids")
      ->type_name("IDS")
      ->excludes(prompt);
  command->add_option("--tokens", options->tokens, "tokens to add")
      ->type_name("N")
      ->check(Within(int64_t{1}, kMostTokens))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: always the likeliest token (greedy)")
      ->type_name("X")
      ->check(Within(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the draws")
      ->type_name("N")
      ->check(Within(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->callback([options, &job] { job = OnFirstRank([options] { return SampleCommand(*options); }); });
}

void AddCalibrate(CLI::App& app, Job& job) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand("calibrate", "measure the decks' products on this GPU, for run.product_plans");
  command->add_option("FILE", options->file, "plan file to write")->required();
  command->add_option("--deck", options->decks, "deck (TOML); may be given more than once")
      ->type_name("DECK")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--ranks", options->ranks, "ranks of each deck (the fewest that it allows)")
      ->type_name("N")
      ->check(Within(1, kMostRanks));
  command->add_option("key=value", options->overrides, "keys of the decks, such as batch.micro=4");
  command->callback([options, &job] { job = OnFirstRank([options] { return CalibrateCommand(*options); }); });
}

void AddOthers(CLI::App& app, Job& job) {
  app.add_subcommand("info", "version, compiler, backends")->callback([&job] { job = OnFirstRank(InfoCommand); });
  app.add_subcommand("doc-deck", "print doc/deck.md")->group("")->callback([&job] {
    job = OnFirstRank(DocDeckCommand);
  });
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

/// "-h TOPIC", "--help TOPIC", "--help=TOPIC" or "help TOPIC" in place of a command; no arguments at all ask for help
/// too.
bool AsksForHelp(const std::vector<std::string>& arguments, std::string& topic) {
  if (arguments.empty()) return true;
  const std::string& first = arguments[0];
  if (first.starts_with("--help=")) return topic = first.substr(7), true;
  if (first != "-h" && first != "--help" && first != "help") return false;
  if (arguments.size() > 1) topic = arguments[1];
  return true;
}

/// Those that the help lists.
std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  const auto found = std::ranges::find_if(all, [&](const CLI::App* command) { return command->check_name(name); });
  return found == all.end() ? nullptr : *found;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : Commands(app)) names.push_back(command->get_name());
  return names;
}

/// "[-r latest|DIR]", "--deck DECK".
std::string UsageOf(const CLI::Option& option) {
  const std::string name = option.get_snames().empty() ? "--" + option.get_lnames()[0] : "-" + option.get_snames()[0];
  const std::string text = option.get_items_expected_max() == 0 ? name : name + " " + option.get_type_name();
  return option.get_required() ? text : "[" + text + "]";
}

/// A command with its arguments and what it does, for the general help.
std::string UsageOf(const CLI::App& command) {
  constexpr size_t kSummary = 42, kIndent = 11;
  std::string head = "  espalier " + (command.get_name() == "run" ? "[run]" : command.get_name()),
              options(kIndent, ' ');
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional())
      head += option->get_required() ? " " + option->get_name() : fmt::format(" [{} ...]", option->get_name());
    else if (option != command.get_help_ptr())
      options += (options.size() == kIndent ? "" : " ") + UsageOf(*option);
  }
  std::string text = fmt::format("{:<{}} {}", head, kSummary - 1, command.get_description());
  text = Wrap(text, kHelpWidth, kSummary) + "\n";
  if (options.size() > kIndent) text += Wrap(options, kHelpWidth, kIndent) + "\n";
  return text;
}

std::string GeneralHelp(const CLI::App& app) {
  std::string text = fmt::format("{}\n\n", kTitle);
  for (const CLI::App* command : Commands(app)) text += UsageOf(*command);
  return text + "  espalier COMMAND --help\n  espalier help [COMMAND | SECTION | KEY | all]\n  espalier --version\n";
}

/// Help on a command, or on a section or key of decks.
Job Help(const CLI::App& app, const std::string& topic) {
  if (const CLI::App* command = FindCommand(app, topic))
    return OnFirstRank(
        [text = command->help("espalier")] { return fmt::print("{}", text), static_cast<int>(ExitStatus::kDone); });
  return OnFirstRank([usage = GeneralHelp(app), topic] { return HelpCommand(usage, topic); });
}

/// Descriptions within the width of a page.
class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrap(option->get_description(), kHelpWidth - kColumn, 0);
  }

 private:
  static constexpr size_t kColumn = 36;
};

/// The first argument is meant as a command or as a deck.
void CheckCommandOrDeck(const CLI::App& app, const std::string& first) {
  if (first.starts_with("-") || FindCommand(app, first) || std::filesystem::exists(first)) return;
  if (first.ends_with(".toml") || first.find('/') != first.npos)
    return;  // meant as a deck: its reader says what is wrong
  const std::vector<std::string> names = CommandNames(app);
  Refuse(fmt::format("{}: neither a command nor a deck that exists{} (commands: {})", first,
                     DidYouMean(Nearest(first, names)), fmt::join(names, ", ")));
}

/// Arguments that a command does not have.
[[noreturn]] void RefuseExtras(const CLI::App& app) {
  const CLI::App* command = app.get_subcommands().at(0);
  std::vector<std::string> names, messages;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const std::string& extra : app.remaining(true)) {
    const std::string name = extra.substr(0, extra.find('='));
    messages.push_back(extra.starts_with("-")
                           ? fmt::format("command line: {}: unknown option of {}{} (allowed: {})", extra,
                                         command->get_name(), DidYouMean(Nearest(name, names)), fmt::join(names, ", "))
                           : fmt::format("command line: {}: {} takes no such argument", extra, command->get_name()));
  }
  throw UserError(ExitStatus::kDeck, std::move(messages));
}

/// Arguments -> what to do. A deck or a flag in place of a command means run.
Job ReadCommandLine(std::vector<std::string> arguments) {
  Job job;
  CLI::App app("", "espalier");
  app.formatter(std::make_shared<HelpFormatter>());
  AddCommands(app, job);
  std::string topic;
  if (AsksForHelp(arguments, topic)) return Help(app, topic);
  if (arguments[0] == "--version" || arguments[0] == "-V") return OnFirstRank(VersionCommand);
  CheckCommandOrDeck(app, arguments[0]);
  if (!FindCommand(app, arguments[0])) arguments.insert(arguments.begin(), "run");
  std::ranges::reverse(arguments);
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return Help(app, app.get_subcommands().at(0)->get_name());
  } catch (const CLI::ExtrasError&) {
    RefuseExtras(app);
  } catch (const CLI::ParseError& error) {
    Refuse(error.what());
  }
  return job;
}

/// The first rank reports. The launcher ends all ranks when one exits with an error, so the others leave it the time to
/// print. A wrong deck, and what the ranks have agreed on, is the same on every rank; anything else may have happened
/// to one rank alone, which then speaks.
int Report(const UserError& error) {
  const int rank = LauncherRank();
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  const bool same = error.status() == ExitStatus::kDeck || dynamic_cast<const AgreedError*>(&error) != nullptr;
  if (rank != 0 && same) return static_cast<int>(error.status());
  const size_t n = error.messages().size();
  PrintError("espalier: {}{}\n", n == 1 ? "error" : fmt::format("{} errors", n),
             rank == 0 ? "" : fmt::format(" (rank {})", rank));
  for (const std::string& message : error.messages()) PrintError("{}\n", PrintableLines(message));
  return static_cast<int>(error.status());
}

int ReportFault(const char* kind, const std::exception& error) {
  PrintError("espalier: {} (rank {}): {}\n", kind, LauncherRank(), error.what());
  return static_cast<int>(ExitStatus::kFault);
}

int Main(std::vector<std::string> arguments) {
  // 1. Environment: signals are noted from here on; which rank this is, before anything can change it.
  OpenStandardStreams();
  CatchStopSignals();
  LauncherRank();
  ChooseColours();
  try {
    CheckEnvironment();
    // 2. Command line: what to do.
    const Job job = ReadCommandLine(std::move(arguments));
    // 3. The command: deck, compile, run, report.
    return job();
    // 4. Errors: the user's, ours, the environment's.
  } catch (const UserError& error) {
    return Report(error);
  } catch (const InvariantError& error) {
    return ReportFault("an error of this program", error);
  } catch (const std::exception& error) {
    return ReportFault("error", error);
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main({argv + 1, argv + argc}); }
