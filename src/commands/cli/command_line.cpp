#include "commands/cli/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "commands/cli/arguments.hpp"
#include "commands/cli/completion.hpp"
#include "commands/cli/machine_commands.hpp"
#include "commands/cli/manual_page.hpp"
#include "commands/cli/options.hpp"
#include "commands/cli/supervise_commands.hpp"
#include "commands/cli/trained_models.hpp"
#include "commands/cli/usage.hpp"
#include "commands/commands.hpp"
#include "commands/refuse.hpp"
#include "espalier/deck/find_input.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"

namespace espalier {

void AddDeck(CLI::App* command, DeckArguments& arguments) {
  command->add_option("DECK", arguments.deck, "deck (TOML)")->required();
  command->add_option("key=value", arguments.overrides,
                      "keys of the deck, such as run.steps=20; further decks, which override it");
}

void AddFlag(const char* flag, const std::string& key, const std::string& value, std::vector<std::string>& overrides) {
  for (const std::string& text : overrides)
    if (text.starts_with(key + "="))
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("command line: {} is given twice, as {} and as {} {} (leave one out)", key, text, flag, value));
  overrides.push_back(key + "=" + value);
}

namespace {

constexpr double kMaxGigabytes = 1e9;
constexpr double kMinHours = 1e-3, kMaxHours = 1e9;

void AddRun(CLI::App& app, CommandJob& job) {
  struct Flags {
    RunOptions options;
    std::optional<std::string> dir, time_limit, watchdog;  // "" is a value too, but an invalid one
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("run", "train; started by mpirun or srun, alone it is one rank; espalier train is the same");
  command->alias("train");
  AddDeck(command, flags->options.arguments);
  command->add_option("-r,--restart", flags->options.restart, "continue from a checkpoint: latest, or its folder")
      ->type_name("latest|DIR");
  command->add_option("-d,--run-dir", flags->dir, "same as run.dir")->type_name("RUNDIR");
  command
      ->add_option("-t,--time-limit", flags->time_limit,
                   "same as run.time_limit: minutes, hh:mm:ss, d-hh:mm:ss, 30m, 2h, ...")
      ->type_name("TIME");
  command->add_option("-w,--watchdog", flags->watchdog, "same as run.watchdog_s")->type_name("SECONDS");
  Verbosity& verbosity = flags->options.verbosity;
  CLI::Option* quiet = command->add_flag_callback(
      "-q,--quiet", [&verbosity] { verbosity = Verbosity::kQuiet; }, "print warnings, errors and the result only");
  command
      ->add_flag_callback(
          "-v,--verbose", [&verbosity] { verbosity = Verbosity::kVerbose; }, "print routine details too")
      ->excludes(quiet);
  command->callback([flags, &job] {
    std::vector<std::string>& overrides = flags->options.arguments.overrides;
    if (flags->dir) AddFlag("-d", "run.dir", TomlString(*flags->dir), overrides);
    if (flags->time_limit) AddFlag("-t", "run.time_limit", TomlString(*flags->time_limit), overrides);
    if (flags->watchdog) AddFlag("-w", "run.watchdog_s", *flags->watchdog, overrides);
    job = [flags] { return RunCommand(flags->options); };
  });
}

void AddCheck(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "print the effective deck with the origin of each value");
  AddDeck(command, options->arguments);
  CLI::Option* deck = command->get_option("DECK")->required(false);
  AddRanks(command, options->ranks, "ranks that the degrees must fit (any number)");
  CLI::Option* nodes =
      command
          ->add_flag("--nodes", options->of_nodes,
                     "instead of DECK: measure the nodes of this job and name outliers; started as run is")
          ->excludes(deck);
  command->add_option("--cluster", options->nodes.cluster, "of --nodes: cluster file with the rates of its links")
      ->type_name("FILE")
      ->needs(nodes);
  command->add_option("--least", options->nodes.least, "of --nodes: share of the median, or of the file's rate (0.7)")
      ->type_name("SHARE")
      ->check(Within(0.0, 1.0))
      ->needs(nodes);
  command->callback([options, deck, &job] {
    if (options->of_nodes) {
      job = OnRanksOfJob([options] { return static_cast<int>(CheckNodes(options->nodes)); });
      return;
    }
    if (deck->empty()) throw CLI::RequiredError("DECK");
    job = OnFirstRank([options] { return CheckCommand(*options); });
  });
}

void AddRouting(CLI::App* command, std::string& routing) {
  command
      ->add_option("--routing", routing,
                   "tokens of each expert: balanced (the default), skew=X (Zipf's exponent), or the folder of a run")
      ->type_name("ROUTING");
}

/// The options of a search, except those that `plan` defines itself.
void AddSearch(CLI::App* command, TuneCommandOptions& options) {
  command->add_option("--fix", options.fixed, "key that keeps the deck's value, such as parallel.tp; may be repeated")
      ->type_name("KEY")
      ->allow_extra_args(false);
  command->add_option("--top", options.top, "rows of the ranking")
      ->type_name("N")
      ->check(Within(1, kMaxRanks))
      ->capture_default_str();
  command
      ->add_option("--reserve", options.reserve,
                   fmt::format("memory of each device that the layout leaves free, besides what the cluster file "
                               "reserves ({:.0f} % of the device's)",
                               100 * kReserve))
      ->type_name("GB")
      ->check(Within(0.0, kMaxGigabytes));
  command->add_flag("--fewest", options.fewest,
                    "print the fewest ranks on which a layout fits, too (of powers of two), with its speed");
  AddRouting(command, options.routing);
  command->add_option("-o,--output", options.output, "write the chosen layout as a deck to include")->type_name("FILE");
}

void AddPlan(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "layout, schedule and memory for any number of ranks");
  AddDeck(command, options->arguments);
  AddRanks(command, options->ranks, "ranks to plan for (the fewest that the deck allows)");
  command->add_option("--json", options->json, "write the plan to this file too")->type_name("FILE");
  command->add_option("--program", options->program, "print the instructions of this rank instead (doc/plan.md)")
      ->type_name("RANK")
      ->check(Within(0, kMaxRanks));
  CLI::Option* passes =
      command->add_flag("--passes", options->passes, "print what each pass of the compiler changes instead");
  CLI::Option* schedule = command->add_flag("--schedule", options->schedule,
                                            "print the pipeline schedule as CSV instead, as pipeline.file reads it");
  CLI::Option* cluster = command->add_option("--cluster", options->cluster, "cluster file (TOML): time the step on it");
  cluster->type_name("FILE");
  for (const char* name : {"--json", "--program", "--cluster"}) passes->excludes(command->get_option(name));
  for (const char* name : {"--json", "--program", "--cluster", "--passes"})
    schedule->excludes(command->get_option(name));
  CLI::Option* failures = command->add_option(
      "--failures", options->failures,
      "print what follows the loss of 1 to K nodes instead: layouts, time to recover, best intervals of saves");
  failures->type_name("K")->expected(0, 1)->default_str("2")->check(Within(1, kMaxRanks))->needs(cluster);
  failures->excludes(command->get_option("--program"));
  command
      ->add_option("--node-mtbf", options->node_mtbf_hours,
                   "mean time between failures of a node (failures.node_mtbf_hours of the cluster file)")
      ->type_name("HOURS")
      ->check(Within(kMinHours, kMaxHours))
      ->needs(failures);
  auto search = std::make_shared<TuneCommandOptions>();
  auto searches = std::make_shared<bool>(false);
  CLI::Option* flag = command->add_flag("--search", *searches, "same as espalier tune, on that cluster");
  AddSearch(command, *search);
  flag->needs(cluster)->excludes(failures);
  for (const char* name : {"--fix", "--top", "--reserve", "--fewest", "--routing", "--output"})
    command->get_option(name)->needs(flag);
  command->callback([options, search, searches, &job] {
    search->arguments = options->arguments;
    search->ranks = options->ranks;
    search->cluster = options->cluster;
    search->json = options->json;
    job = OnFirstRank([=] { return *searches ? TuneCommand(*search) : PlanCommand(*options); });
  });
}

void AddTune(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<TuneCommandOptions>();
  CLI::App* command = app.add_subcommand("tune", "find the fastest layout that fits, for any number of ranks");
  AddDeck(command, options->arguments);
  AddRanks(command, options->ranks, "ranks to tune for (the fewest that the deck allows)");
  command->add_option("--cluster", options->cluster, "cluster file (TOML)")->type_name("FILE")->required();
  AddSearch(command, *options);
  command->add_option("--json", options->json, "write the ranking to this file too")->type_name("FILE");
  command->callback([options, &job] { job = OnFirstRank([options] { return TuneCommand(*options); }); });
}

/// Adds the options that disturb a simulated step.
void AddDisturbances(CLI::App* command, SimulateCommandOptions& options) {
  command->add_option("--jitter", options.jitter, "relative standard deviation of kernel times (the cluster's)")
      ->type_name("X")
      ->check(Within(0.0, 1.0));
  command->add_option("--seed", options.seed, "of the jitter and of a skewed routing")
      ->type_name("N")
      ->check(Within(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  AddRouting(command, options.routing);
  const auto slow = [&](const char* name, std::vector<std::string>& arguments, const char* meaning, const char* type) {
    command->add_option(name, arguments, meaning)->type_name(type)->allow_extra_args(false);
  };
  slow("--slow-rank", options.slow.ranks, "kernels of rank R take FACTOR times as long; may be repeated", "R=FACTOR");
  slow("--slow-link", options.slow.links, "transfers of rank R take FACTOR times as long; may be repeated", "R=FACTOR");
  slow("--slow-node", options.slow.nodes, "both, of all ranks of node N; may be repeated", "N=FACTOR");
}

void AddSimulate(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<SimulateCommandOptions>();
  CLI::App* command = app.add_subcommand("simulate", "time a step on a cluster, for any number of ranks");
  AddDeck(command, options->arguments);
  AddRanks(command, options->ranks, "ranks to simulate (the fewest that the deck allows)");
  command->add_option("--cluster", options->cluster, "cluster file (TOML); of a deck that sleeps, run.cluster")
      ->type_name("FILE");
  command->add_option("--json", options->json, "write the figures to this file too")->type_name("FILE");
  command->add_option("--trace", options->trace, "write a trace for Perfetto to this file")->type_name("FILE");
  command->add_option("--svg", options->svg, "write a picture of the step to this file")->type_name("FILE");
  command->add_flag("--unfolded", options->unfolded, "simulate every rank by itself: the same times, more slowly");
  AddDisturbances(command, *options);
  command->callback([options, &job] { job = OnFirstRank([options] { return SimulateCommand(*options); }); });
}

void AddInspect(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "what is in a checkpoint");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  command->add_flag("--verify", options->verify, "read every byte against its checksum");
  command->add_flag("--tensors", options->tensors, "list files and tensors too");
  command->add_flag("--deck", options->deck, "print its deck too");
  command->callback([options, &job] { job = OnEveryRank([options] { return InspectCommand(*options); }); });
}

void AddReport(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<ReportCommandOptions>();
  CLI::App* command = app.add_subcommand("report", "one page about runs: curves, time, memory, checkpoints, events");
  command->add_option("RUN...", options->runs, "folder of a run, its run.dir; several are compared")->required();
  command->add_option("-o,--output", options->output, "page to write (report.html in the first run)")
      ->type_name("FILE.html");
  command->add_option("--svg", options->svg, "write every picture as a file into this folder too")->type_name("FOLDER");
  command
      ->add_option("--cluster", options->cluster,
                   "cluster file (TOML): simulate a step on it (report.costs or run.cluster of the deck)")
      ->type_name("FILE");
  command->callback([options, &job] { job = OnFirstRank([options] { return ReportCommand(*options); }); });
}

void AddImport(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand("import", "make a run at step 0 of a Hugging Face model");
  command->add_option("HF_DIR", options->folder, "folder with config.json and safetensors")->required();
  command->add_option("RUN_DIR", options->run_dir, "folder of the run to make")->required();
  command->add_option("key=value", options->overrides, "keys of its deck, such as run.steps=20");
  command->add_flag("--without-dropout", options->without_dropout,
                    "leave out the model's dropout: it trains without it");
  CLI::Option* experts =
      command
          ->add_option("--experts", options->experts,
                       "make a mixture of N experts of the dense model: each is a copy of its layer's feed-forward "
                       "network, routers are fresh")
          ->type_name("N");
  command->add_option("--per-token", options->per_token, "experts that serve a token, with --experts")
      ->type_name("K=2")
      ->needs(experts);
  command->callback([options, &job] { job = OnFirstRank([options] { return ImportCommand(*options); }); });
}

/// "5GB", "300MB", "10KB" or bytes; powers of 1000, as in Hugging Face's libraries.
int64_t ReadSize(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::map<std::string, int64_t> units = {{"", 1}, {"KB", 1000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}};
  const auto found = units.find(unit);
  int64_t bytes = 0;
  if (error != std::errc{} || number < 1 || found == units.end() ||
      __builtin_mul_overflow(number, found->second, &bytes))
    Refuse(fmt::format("--shard-size: {} is no size (allowed: such as 5GB, 300MB, 10KB, or bytes)", text));
  return bytes;
}

void AddExport(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<ExportOptions>();
  auto size = std::make_shared<std::string>("5GB");
  CLI::App* command = app.add_subcommand("export", "make a Hugging Face folder of a checkpoint's weights");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  command->add_option("HF_DIR", options->folder, "folder to make")->required();
  command->add_option("--dtype", options->dtype, "element type: fp32, which is exact, or bf16")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--shard-size", *size, "most bytes of a file, such as 5GB or 300MB")
      ->type_name("SIZE")
      ->capture_default_str();
  command->callback([options, size, &job] {
    options->shard_bytes = ReadSize(*size);
    job = OnFirstRank([options] { return ExportCommand(*options); });
  });
}

void AddTokenize(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "make token files of text files; restartable");
  command
      ->add_option("TOKENIZER", options->tokenizer,
                   "tokenizer.json or tokenizer.model, or a Hugging Face folder with one")
      ->required();
  command->add_option("FILES", options->files, "files, globs, folders; of .jsonl every line is a document")->required();
  command->add_option("-o,--output", options->output, "token file to write")->type_name("FILE");
  command->add_option("--field", options->field, "of the objects in .jsonl: the text")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--end-token", options->end_token,
                   "after each document: a token's name, its id, or none (the tokenizer's end of text)")
      ->type_name("TOKEN");
  command->add_flag("--bos", options->bos, "the token that begins a text before each document");
  command->add_option("--shard-tokens", options->shard_tokens, "write files of so many tokens: FILE-00000, ...")
      ->type_name("N")
      ->check(Within(int64_t{1}, std::numeric_limits<int64_t>::max()));
  command->add_option("--part-bytes", options->part_bytes, "of text that a thread takes at a time")
      ->type_name("N")
      ->check(Within(int64_t{256}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "(one per processor)")->type_name("N")->check(Within(1, 4096));
  command->add_flag("--skip-bad", options->skip_bad, "skip and count lines that are no document, files not in UTF-8");
  command->add_flag("--show", options->show, "print the ids of each document as JSON, and write nothing");
  command->callback([options, &job] { job = OnFirstRank([options] { return TokenizeCommand(*options); }); });
}

int PrintText(const std::string& text) {
  fmt::print("{}", text);
  return static_cast<int>(ExitStatus::kDone);
}

void AddOthers(CLI::App& app, CommandJob& job) {
  app.add_subcommand("info", "version, compiler, backends")->callback([&job] { job = OnFirstRank(InfoCommand); });
  app.add_subcommand("doc-deck", "print doc/deck.md")->group("")->callback([&job] {
    job = OnFirstRank(DocDeckCommand);
  });
  app.add_subcommand("doc-man", "print the manual page")->group("")->callback([&app, &job] {
    job = OnFirstRank([text = ManualPage(app)] { return PrintText(text); });
  });
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("doc-completion", "print the completion for a shell")->group("");
  completion->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([shell, &app, &job] {
    job = OnFirstRank([text = *shell == "bash" ? BashCompletion(app) : ZshCompletion(app)] { return PrintText(text); });
  });
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  const auto found = std::ranges::find_if(all, [&](const CLI::App* command) { return command->check_name(name); });
  return found == all.end() ? nullptr : *found;
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

CommandJob HelpOnCommand(const CLI::App& command) {
  return OnFirstRank([text = command.help("espalier")] { return PrintText(text); });
}

/// Help on a command, on a section or key of decks, or on both if they have the same name.
CommandJob Help(const CLI::App& app, const std::string& topic) {
  const CLI::App* command = FindCommand(app, topic);
  if (command == nullptr) return OnFirstRank([usage = GeneralHelp(app), topic] { return HelpCommand(usage, topic); });
  if (std::ranges::find(DeckSections(), topic, &DeckSection::name) == DeckSections().end())
    return HelpOnCommand(*command);
  return OnFirstRank([text = command->help("espalier"), topic] { return PrintText(text + "\n" + HelpText(topic)); });
}

/// The first argument is meant as a command or as a deck.
void CheckCommandOrDeck(const CLI::App& app, const std::string& first) {
  if (first.starts_with("-") || FindCommand(app, first) || FindInput(first)) return;
  if (first.ends_with(".toml") || first.find('/') != first.npos)
    return;  // meant as a deck: its reader reports the error
  const std::vector<std::string> names = CommandNames(app);
  const std::string deck = ShippedDeckNamed(first);
  Refuse(fmt::format("{}: neither a command nor a deck that exists{} (commands: {})", first,
                     DidYouMean(deck.empty() ? Nearest(first, names) : deck), fmt::join(names, ", ")));
}

/// Errors for arguments that the parser did not accept.
void AddExtras(const CLI::App& app, std::vector<std::string>& errors) {
  for (const std::string& extra : app.remaining(true))
    errors.push_back(
        fmt::format("command line: {}: {} takes no such argument", extra, app.get_subcommands().at(0)->get_name()));
}

}  // namespace

CommandLine::CommandLine()
    : app_(std::make_unique<CLI::App>("trains transformers over a lattice of ranks", "espalier")) {
  CLI::App& app = *app_;
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  AddRun(app, job_);
  AddSupervise(app, job_);
  AddCheck(app, job_);
  AddPlan(app, job_);
  AddSimulate(app, job_);
  AddTune(app, job_);
  AddInspect(app, job_);
  AddTokenize(app, job_);
  AddImport(app, job_);
  AddExport(app, job_);
  AddSample(app, job_);
  AddEvaluate(app, job_);
  AddReport(app, job_);
  AddCalibrate(app, job_);
  AddSelfTest(app, job_);
  AddOnHost(app, job_);
  AddOthers(app, job_);
}

CommandLine::~CommandLine() = default;

CommandJob CommandLine::Read(std::vector<std::string> arguments) {
  CLI::App& app = *app_;
  std::string topic;
  if (AsksForHelp(arguments, topic)) return Help(app, topic);
  if (arguments[0] == "--version" || arguments[0] == "-V") return OnFirstRank(VersionCommand);
  CheckCommandOrDeck(app, arguments[0]);
  if (!FindCommand(app, arguments[0])) arguments.insert(arguments.begin(), "run");
  const CLI::App& command = *FindCommand(app, arguments[0]);
  SortedArguments sorted = SortArguments(command, {arguments.begin() + 1, arguments.end()});
  std::vector<std::string>& errors = sorted.errors;
  std::vector<std::string> known(sorted.known.rbegin(), sorted.known.rend());
  known.push_back(arguments[0]);
  try {
    app.parse(known);
  } catch (const CLI::CallForHelp&) {
    return HelpOnCommand(command);
  } catch (const CLI::ExtrasError&) {
    AddExtras(app, errors);
  } catch (const CLI::ParseError& error) {
    const std::string_view what = error.what();
    const bool no_deck = what.starts_with("DECK is required");
    errors.push_back(fmt::format("command line: {}{}", what, no_deck ? ", such as llama/tiny.toml" : ""));
  } catch (const UserError& error) {
    errors.insert(errors.end(), error.messages().begin(), error.messages().end());
  }
  if (errors.empty()) return job_;
  std::ranges::move(ErrorsOfDeck(command, sorted.positionals), std::back_inserter(errors));
  throw UserError(ExitStatus::kDeck, std::move(errors));
}

}  // namespace espalier
