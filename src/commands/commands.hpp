// One function per command of the executable: it does the command's work and returns the exit status, or throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commands/simulate/slow_parts.hpp"
#include "espalier/supervise/supervise.hpp"
#include "espalier/train/check_nodes.hpp"
#include "espalier/train/evaluate_files.hpp"
#include "espalier/train/measure.hpp"
#include "espalier/train/selftest.hpp"
#include "espalier/train/trainer.hpp"

namespace espalier {

/// Printed by each command that reads a checkpoint and compares only its checksums.
inline constexpr const char* kNotProved =
    "the proof of the weights was not computed: a start of the run does that (doc/checkpoint.md, Proof)";

/// Trains, on all ranks of the job.
int RunCommand(const RunOptions& options);

/// Trains on hosts that may fail: starts the ranks, again after each failure.
int SuperviseCommand(const SuperviseOptions& options);

/// Cleans one host between two starts; called by `supervise` through the launcher.
int OnHostCommand(const OnHostOptions& options);

struct CheckOptions {
  DeckArguments arguments;
  int ranks = 0;          ///< number of ranks for which to check the degrees; 0: any
  bool of_nodes = false;  ///< CheckNodes instead
  CheckNodesOptions nodes;
};
/// Prints the effective deck with the origin of each value.
int CheckCommand(const CheckOptions& options);

struct PlanOptions {
  DeckArguments arguments;
  int ranks = 0;                          ///< 0: the fewest that the deck's degrees allow
  std::string json;                       ///< file to write the plan to; empty: none
  int program = -1;                       ///< print the program of this rank instead; -1: none
  bool passes = false;                    ///< print what each pass of the compiler changes instead
  bool schedule = false;                  ///< print the pipeline schedule as CSV instead
  std::string cluster;                    ///< cluster file: times the step too; empty: none
  int failures = 0;                       ///< print what follows the loss of so many nodes instead; 0: no
  std::optional<double> node_mtbf_hours;  ///< mean time between failures of a node; not set: the cluster file's
};
/// Compiles for any number of ranks and prints layout, schedule, memory and messages.
int PlanCommand(const PlanOptions& options);

struct SimulateCommandOptions {
  DeckArguments arguments;
  int ranks = 0;                 ///< 0: the fewest that the deck's degrees allow
  std::string cluster;           ///< cluster file; empty: run.cluster of a deck that sleeps
  std::string json, trace, svg;  ///< files to write; empty: none
  bool unfolded = false;         ///< simulate every rank separately
  std::optional<double> jitter;  ///< not set: the cluster's
  int64_t seed = 1234;           ///< seed of the jitter and of a skewed routing
  std::string routing;           ///< ReadRouting; empty: balanced
  SlowArguments slow;
};
/// Times a step of the programs of all ranks on a cluster. UserError (kDoesNotFit) after everything is printed and
/// written if a rank needs more memory than its device has.
int SimulateCommand(const SimulateCommandOptions& options);

struct TuneCommandOptions {
  DeckArguments arguments;
  int ranks = 0;                   ///< 0: the fewest that the deck's degrees allow
  std::string cluster;             ///< cluster file
  std::string routing;             ///< ReadRouting; empty: balanced
  std::vector<std::string> fixed;  ///< keys that stay at the deck's value
  int top = 10;                    ///< rows of the ranking
  bool fewest = false;             ///< search the smallest number of ranks on which a layout fits, too
  std::optional<double> reserve;   ///< GB of each device that a layout leaves free; not set: kReserve of its memory
  std::string output, json;        ///< files to write; empty: none
};
/// The share of a device's memory that a chosen layout leaves free by default, besides what the cluster file reserves.
inline constexpr double kReserve = 0.02;
/// Finds the fastest layout that fits, prints the ranking and writes the chosen one as a deck to include. UserError
/// (kDoesNotFit) if none fits.
int TuneCommand(const TuneCommandOptions& options);

struct InspectOptions {
  std::string checkpoint;
  bool verify = false;   ///< read every byte against its checksum
  bool tensors = false;  ///< list files and tensors
  bool deck = false;     ///< print its deck
};
/// Prints what a checkpoint holds.
int InspectCommand(const InspectOptions& options);

struct ReportCommandOptions {
  std::vector<std::string> runs;  ///< folders: their run.dir
  std::string output;             ///< file; empty: report.html in the first run
  std::string svg;                ///< folder for the pictures; empty: none
  std::string cluster;            ///< cluster file to simulate on; empty: report.costs or run.cluster of the decks
};
/// Writes one page about one or several runs.
int ReportCommand(const ReportCommandOptions& options);

struct ImportOptions {
  std::string folder;                   ///< Hugging Face's
  std::string run_dir;                  ///< folder of the run to make
  std::vector<std::string> overrides;   ///< keys of its deck
  bool without_dropout = false;         ///< train without the model's dropout
  std::optional<int64_t> experts = {};  ///< copies of each feed-forward network, as experts
  int64_t per_token = 2;                ///< of them
};
/// Makes a run at step 0 of a Hugging Face folder.
int ImportCommand(const ImportOptions& options);

struct ExportOptions {
  std::string checkpoint;
  std::string folder;                   ///< to make
  std::string dtype = "fp32";           ///< or "bf16"
  int64_t shard_bytes = 5'000'000'000;  ///< most bytes of a file, unless one tensor has more
};
/// Makes a Hugging Face folder of a checkpoint's weights.
int ExportCommand(const ExportOptions& options);

struct SampleOptions {
  std::string checkpoint;
  std::vector<std::string> prompts;  ///< texts; "-": every line of stdin is one
  std::optional<std::string> ids;    ///< token ids, such as "1 2 3", instead of texts
  std::string tokenizer;             ///< empty: the checkpoint's; without one tokens are bytes
  bool bos = false;                  ///< begin with the beginning-of-text token
  bool stop = false;                 ///< stop at the end-of-text token
  int64_t tokens = 200;
  double temperature = 0;  ///< 0: greedy
  int64_t top_k = 0;       ///< 0: all
  double top_p = 1;        ///< 1: all
  int64_t seed = 1234;
  std::string logits;                      ///< file to write; empty: none
  std::optional<std::string> tensorboard;  ///< folder for an event file of the texts; "": the run's
};
/// Continues texts by a trained model.
int SampleCommand(const SampleOptions& options);

struct EvaluateCommandOptions {
  EvaluateOptions evaluate;
  bool documents = false;  ///< print each document too
  std::string json;        ///< file to write; empty: none
};
/// Prints loss and perplexity of a trained model on files. Runs on many ranks. Keys of the deck are among the files.
int EvaluateCommand(EvaluateCommandOptions options);

struct TokenizeOptions {
  std::string tokenizer;
  std::vector<std::string> files;  ///< files, globs, folders
  std::string output;
  std::string field = "text";  ///< field of .jsonl with the text
  std::string end_token;       ///< name, id, or "none"; empty: the tokenizer's
  bool bos = false;
  int64_t shard_tokens = 0;  ///< 0: one file
  int64_t part_bytes = int64_t{4} << 20;
  int threads = 0;  ///< 0: one per processor
  bool skip_bad = false;
  bool show = false;  ///< print ids instead of writing
};
/// Makes token files of text files.
int TokenizeCommand(const TokenizeOptions& options);

struct CalibrateOptions {
  MeasureOptions measure;  ///< `file` empty: no cluster file
  std::string gemm_plans;  ///< file for run.gemm_plans to write; empty: none
  bool attention = false;  ///< time attention's backward instead
  int ranks = 0;  ///< number of ranks for which the decks are planned; 0: the fewest that a deck's degrees allow

  /// Whether one process measures, without a cluster file.
  bool OnOneGpu() const { return !gemm_plans.empty() || attention; }
};
/// Throws UserError (kDeck) for options that exclude or need each other.
void CheckCalibrateOptions(const CalibrateOptions& options);
/// Times the fastest algorithm of each matmul of the decks on this machine's GPU, and writes a file for
/// run.gemm_plans. Needs the CUDA module.
int CalibrateGemms(const CalibrateOptions& options);
/// Times attention's backward of the decks on this machine's GPU, and prints the fastest run.attention_backward. Needs
/// the CUDA module.
int CalibrateAttention(const CalibrateOptions& options);

/// Prints version, compiler, libraries and which backends are built in.
int InfoCommand();

/// Prints the version in one line.
int VersionCommand();

/// Prints the general help (`usage` first, then the sections), or the help on a topic: a section, a key or "all".
int HelpCommand(const std::string& usage, const std::string& topic);

/// Prints doc/deck.md.
int DocDeckCommand();

}  // namespace espalier
