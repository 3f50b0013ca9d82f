// espalier sample: continues a text by a trained model, on one process. The same pipeline as training, without
// backward; each new token is one forward over the last seq_len tokens.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <span>

#include "commands.hpp"
#include "commands/sample/choose.hpp"
#include "commands/sample/text_form.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/executor/cpu_executor.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

/// The deck of a checkpoint, reduced to one process and one sequence. Throws before anything is compiled if the
/// checkpoint lacks a parameter of the model.
Deck SamplingDeck(const std::string& dir) {
  Deck deck = SavedDeck(dir, ReadMetadata(dir).deck,
                        {"parallel.pp=1", "parallel.dp_replicate=1", "parallel.dp_shard=1", "parallel.cp=1",
                         "parallel.tp=1", "batch.global=1", "batch.micro=1", "batch.ramp_start=0", "run.device=cpu",
                         "pipeline.schedule=1f1b", "pipeline.chunks=1", "pipeline.split=[]"});
  RequireFit(dir, ParameterTensors(deck), Coverage::kSome);
  return deck;
}

/// Returns `bytes`; throws if this host has less free memory.
int64_t Available(int64_t bytes) {
  SelfWorld world;
  const MemoryShortage shortage = FindShortage(world, {HostName(), bytes, MemoryLimits()});
  if (shortage.ranks != 0)
    throw UserError(ExitStatus::kDoesNotFit, shortage.Text("the model and one sequence (sample runs on one process)"));
  return bytes;
}

class Sampler {
 public:
  Sampler(const Deck& deck, const std::string& dir)
      : compilation_(Compile(deck, 1, Purpose::kSample)),
        program_(MakeProgram(compilation_, {})),
        arena_(Available(program_.arena_bytes)),
        executor_(program_, {}, arena_, nullptr, FindCpuKernel),
        positions_(static_cast<size_t>(Window())) {
    SetCpuThreads(ThreadCount(compilation_.deck));
    const std::vector<StateTensor> tensors = StateTensors(compilation_);
    SelfWorld world;
    Load(dir, tensors, LocalTensors(tensors, executor_, {}), compilation_.mesh, world, Coverage::kSome);
    std::iota(positions_.begin(), positions_.end(), 0);
  }

  int64_t Vocab() const { return compilation_.deck.model.vocab; }

  /// Logits after the last of `tokens` (at least one); only the last seq_len count.
  std::vector<float> Logits(const std::vector<int32_t>& tokens) {
    const int64_t used = std::min<int64_t>(Window(), static_cast<int64_t>(tokens.size()));
    std::vector<int32_t> ids(tokens.end() - used, tokens.end());
    ids.resize(static_cast<size_t>(Window()), 0);
    executor_.SetInput("positions", -1, positions_.data(), Window() * int64_t{sizeof(int32_t)});
    executor_.SetInput("ids", 0, ids.data(), Window() * int64_t{sizeof(int32_t)});
    executor_.RunStep();
    const Tensor logits = executor_.At("logits", 0);
    std::vector<float> row(static_cast<size_t>(Vocab()));
    for (int64_t v = 0; v < Vocab(); ++v) {
      const int64_t at = (used - 1) * Vocab() + v;
      row[static_cast<size_t>(v)] =
          logits.dtype == Dtype::kBf16 ? ToFloat(logits.As<Bf16>()[at]) : logits.As<float>()[at];
    }
    return row;
  }

 private:
  int64_t Window() const { return compilation_.deck.model.seq_len; }

  Compilation compilation_;
  Program program_;
  HostArena arena_;
  CpuExecutor executor_;
  std::vector<int32_t> positions_;
};

void Announce(const std::vector<int32_t>& tokens, int64_t window) {
  if (std::ssize(tokens) > window)
    fmt::print(stderr, "espalier: the prompt has {} tokens; the model sees the last {} of them (model.seq_len)\n",
               tokens.size(), window);
}

}  // namespace

namespace {

/// Continues one prompt; `number` tells the draws of several apart.
void Continue(const SampleOptions& options, const TextForm& form, const TextForm::Prompt& prompt, uint32_t number,
              Sampler& sampler) {
  const Drawing drawing{options.temperature, options.top_k, options.top_p};
  std::vector<int32_t> tokens = prompt.tokens;
  TextForm::Shower shower(form);
  // The prompt goes through the stream, which may need what is before a token.
  for (size_t i = 0; !options.ids && i < tokens.size(); ++i) shower.Push(tokens[i]);
  fmt::print("{}", prompt.shown);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const std::array<uint32_t, 4> random =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), number, 0},
                   {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    const std::vector<float> logits = sampler.Logits(tokens);
    const auto allowed = std::span(logits).first(static_cast<size_t>(form.vocab()));
    tokens.push_back(Choose(allowed, drawing, random[0] / 4294967296.0));
    if (options.stop && tokens.back() == form.end()) break;
    fmt::print("{}", shower.Push(tokens.back()));
    std::fflush(stdout);
  }
  fmt::print("{}\n", shower.Finish());
}

}  // namespace

int SampleCommand(const SampleOptions& options) {
  const std::string dir = Resolve(options.checkpoint, std::filesystem::path(options.checkpoint).parent_path());
  const Deck deck = SamplingDeck(dir);
  const TextForm form(options, deck, dir);
  if (options.stop && !form.end())
    throw UserError(ExitStatus::kDeck, "command line: --stop: it is not known which token ends a text");
  const std::vector<TextForm::Prompt> prompts = form.Prompts();
  Sampler sampler(deck, dir);
  for (size_t k = 0; k < prompts.size(); ++k) {
    Announce(prompts[k].tokens, deck.model.seq_len);
    Continue(options, form, prompts[k], static_cast<uint32_t>(k), sampler);
  }
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
