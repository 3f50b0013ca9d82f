#include "commands/cli/trained_models.hpp"

#include <limits>
#include <memory>
#include <string>

#include "commands/cli/options.hpp"
#include "commands/commands.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxTokens = 1 << 30;

}  // namespace

void AddSample(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* command = app.add_subcommand("sample", "continue a text, or token ids, by a trained model");
  command->add_option("CHECKPOINT", options->checkpoint, "its folder")->required();
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompts, "text to continue; -: every line of stdin; may be repeated");
  prompt->type_name("TEXT")->allow_extra_args(false);
  command->add_option("--ids", options->ids, "token ids to continue, such as \"1 2 3\"; prints ids")
      ->type_name("IDS")
      ->excludes(prompt);
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json or tokenizer.model (the checkpoint's)")
      ->type_name("FILE");
  command->add_flag("--bos", options->bos, "begin with the token that begins a text");
  command->add_flag("--stop", options->stop, "end at the token that ends a text");
  command->add_option("--tokens", options->tokens, "tokens to add")
      ->type_name("N")
      ->check(Within(int64_t{1}, kMaxTokens))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: always the likeliest token (greedy)")
      ->type_name("X")
      ->check(Within(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--top-k", options->top_k, "draw among the N likeliest tokens only; 0: all")
      ->type_name("N")
      ->check(Within(int64_t{0}, kMaxTokens))
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "draw among the likeliest that together have this probability")
      ->type_name("X")
      ->check(Within(1e-9, 1.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the draws")
      ->type_name("N")
      ->check(Within(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->add_option("--logits", options->logits, "write the logits after each token to this file (safetensors)")
      ->type_name("FILE");
  command
      ->add_option("--tensorboard", options->tensorboard,
                   "write the texts for TensorBoard too, into this folder (tensorboard/samples of the run)")
      ->type_name("[FOLDER]")
      ->expected(0, 1);
  command->callback([options, &job] { job = OnFirstRank([options] { return SampleCommand(*options); }); });
}

void AddEvaluate(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<EvaluateCommandOptions>();
  EvaluateOptions& evaluate = options->evaluate;
  CLI::App* command =
      app.add_subcommand("evaluate", "loss and perplexity of a trained model on files; started as run is");
  command->add_option("CHECKPOINT", evaluate.checkpoint, "its folder")->required();
  command
      ->add_option("FILES", evaluate.files,
                   "files and globs of any format of doc/data.md; keys of the deck, such as precision.compute=fp32")
      ->required();
  command
      ->add_option("--stride", evaluate.stride,
                   "tokens from one window of model.seq_len to the next (model.seq_len); each target counts once. The "
                   "first token of a document is no target, since nothing is before it, unless --bos")
      ->type_name("N")
      ->check(Within(int64_t{1}, kMaxTokens));
  command->add_flag("--bos", evaluate.bos, "each document begins with the token that begins a text");
  command->add_option("--tokenizer", evaluate.tokenizer, "tokenizer.json or tokenizer.model (the checkpoint's)")
      ->type_name("FILE");
  command->add_flag("--documents", options->documents, "print each document too");
  command->add_option("--json", options->json, "write every document to this file too")->type_name("FILE");
  command->callback([options, &job] { job = OnRanksOfJob([options] { return EvaluateCommand(*options); }); });
}

}  // namespace espalier
