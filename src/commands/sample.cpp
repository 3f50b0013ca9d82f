// espalier sample: continues texts by a trained model, on one process.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "commands.hpp"
#include "commands/output_file.hpp"
#include "commands/sample/choose.hpp"
#include "commands/sample/logits_file.hpp"
#include "commands/sample/sampler.hpp"
#include "commands/sample/text_events.hpp"
#include "commands/sample/text_form.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

/// The deck of a checkpoint, reduced to one process and one sequence. Throws before anything is compiled if the
/// checkpoint lacks a parameter of the model.
Deck SamplingDeck(const std::string& dir) {
  Deck deck = SavedDeck(dir, ReadMetadata(dir).deck,
                        {"parallel.pp=1", "parallel.dp_replicate=1", "parallel.dp_shard=1", "parallel.cp=1",
                         "parallel.tp=1", "parallel.ep=1", "batch.global=1", "batch.micro=1", "batch.ramp_start=0",
                         "run.device=cpu", "pipeline.schedule=1f1b", "pipeline.chunks=1", "pipeline.split=[]"});
  RequireFit(dir, ParameterTensors(deck), Coverage::kSome);
  return deck;
}

void Announce(const std::vector<TextForm::Prompt>& prompts, int64_t window) {
  for (const TextForm::Prompt& prompt : prompts)
    if (std::ssize(prompt.tokens) > window)
      fmt::print(stderr, "espalier: the prompt has {} tokens; the model sees the last {} of them (model.seq_len)\n",
                 prompt.tokens.size(), window);
}

/// `longest`: tokens of the longest text that the model has continued.
void ReportIfSlow(int64_t longest, int64_t window) {
  if (longest > window)
    fmt::print(stderr,
               "espalier: the model sees {} tokens (model.seq_len): in a longer text each new token took as long as a "
               "prompt of {}\n",
               window, window);
}

/// The text shown so far, and how many tokens precede its last one.
struct Continued {
  std::string text;
  int64_t seen = 0;
};

/// Shows a part of the text.
void Show(Continued& to, const std::string& part) {
  fmt::print("{}", part);
  std::fflush(stdout);
  to.text += part;
}

/// Continues one prompt; `number` selects an independent sequence of draws. `file` may be null.
Continued Continue(const SampleOptions& options, const TextForm& form, const TextForm::Prompt& prompt, uint32_t number,
                   Sampler& sampler, LogitsFile* file) {
  sampler.Restart();
  Sampler::Observer observe;
  const Sampling sampling{options.temperature, options.top_k, options.top_p};
  std::vector<int32_t> tokens = prompt.tokens;
  if (file != nullptr)
    observe = [&](int64_t at, const std::vector<float>& logits) {
      file->Append(tokens[static_cast<size_t>(at)], logits);
    };
  TextForm::Shower shower(form);
  // Pushes the prompt through the stream, which may need the context of a token.
  for (size_t i = 0; !options.ids && i < tokens.size(); ++i) shower.Push(tokens[i]);
  Continued result;
  Show(result, prompt.shown);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const std::array<uint32_t, 4> random =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), number, 0},
                   {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    const std::vector<float> logits = sampler.Logits(tokens, observe);
    const auto allowed = std::span(logits).first(static_cast<size_t>(form.vocab()));
    tokens.push_back(Choose(allowed, sampling, random[0] / 4294967296.0));
    if (options.stop && tokens.back() == form.end()) break;
    Show(result, shower.Push(tokens.back()));
  }
  Show(result, shower.Finish() + "\n");
  if (file != nullptr) file->EndPrompt();
  result.seen = std::ssize(tokens) - 1;
  return result;
}

}  // namespace

int SampleCommand(const SampleOptions& options) {
  CheckWritable("--logits", options.logits);
  const std::string dir = Resolve(options.checkpoint, std::filesystem::path(options.checkpoint).parent_path());
  const std::string folder = options.tensorboard ? FolderOfTexts(options, dir) : "";
  const Deck deck = SamplingDeck(dir);
  WaitBriefly(deck);  // before prompts are read, which is possible only once
  const TextForm form(options, deck, dir);
  if (options.stop && !form.end())
    throw UserError(ExitStatus::kDeck, "command line: --stop: it is not known which token ends a text");
  const std::vector<TextForm::Prompt> prompts = form.Prompts();
  Announce(prompts, deck.model.seq_len);
  int64_t longest = 1;
  for (const TextForm::Prompt& prompt : prompts) longest = std::max(longest, std::ssize(prompt.tokens));
  Sampler sampler(deck, dir, longest, longest + options.tokens - 1);
  // Only for people; programs read both outputs.
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "espalier: {}: checksums agree; {}\n", dir, kNotProved);
  std::optional<LogitsFile> file;
  if (!options.logits.empty()) file.emplace(options.logits, prompts.size(), deck.model.vocab);
  int64_t seen = 0;
  std::vector<std::string> texts;
  for (size_t k = 0; k < prompts.size(); ++k) {
    Continued done = Continue(options, form, prompts[k], static_cast<uint32_t>(k), sampler, file ? &*file : nullptr);
    seen = std::max(seen, done.seen);
    texts.push_back(std::move(done.text));
  }
  if (file) file->Close();
  if (options.tensorboard) WriteTexts(folder, options, dir, texts);
  ReportIfSlow(seen, deck.model.seq_len);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
