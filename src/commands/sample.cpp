// espalier sample: continues a text by a trained model, on one process. The same pipeline as training, without
// backward; each new token is one forward over the last seq_len tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "commands.hpp"
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

constexpr int64_t kBytes = 256;

/// The deck of a checkpoint, reduced to one process and one sequence. Throws before anything is compiled if the
/// checkpoint lacks a parameter of the model.
Deck SamplingDeck(const std::string& dir) {
  Deck deck = SavedDeck(dir, ReadMetadata(dir).deck,
                        {"parallel.pp=1", "parallel.dp_replicate=1", "parallel.dp_shard=1", "parallel.cp=1",
                         "parallel.tp=1", "batch.global=1", "batch.micro=1", "run.device=cpu", "pipeline.schedule=1f1b",
                         "pipeline.chunks=1", "pipeline.split=[]"});
  RequireFit(dir, StateTensors(BuildModel(deck, SplitLayers(deck, 1), deck.batch.micro, Purpose::kSample)),
             Coverage::kSome);
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

/// The likeliest token, or one drawn from softmax(logits / temperature) by `uniform` in [0, 1).
int32_t Choose(const std::vector<float>& logits, double temperature, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<double> sums;
  double sum = 0;
  for (float x : logits) sums.push_back(sum += std::exp((double(x) - double(*best)) / temperature));
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  return static_cast<int32_t>(std::min<std::ptrdiff_t>(chosen - sums.begin(), std::ssize(logits) - 1));
}

[[noreturn]] void Refuse(const std::string& why) { throw UserError(ExitStatus::kDeck, "command line: " + why); }

/// "1 2 3" or "1,2,3".
std::vector<int32_t> ReadIds(const std::string& text, int64_t vocab) {
  std::string words = text;
  std::ranges::replace(words, ',', ' ');
  std::istringstream stream(words);
  std::vector<int32_t> ids;
  for (std::string word; stream >> word;) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= vocab)
      Refuse(fmt::format("--ids: {} is not a token id (allowed: 0 to {})", word, vocab - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) Refuse("--ids: no token id");
  return ids;
}

/// The tokens to continue; a newline if nothing is given. Every byte of a text is a token: the vocabulary of a text
/// model has at least 256 entries.
std::vector<int32_t> ReadPrompt(const SampleOptions& options, const Deck& deck) {
  if (options.ids) return ReadIds(*options.ids, deck.model.vocab);
  if (deck.data.format != DataFormat::kText)
    Refuse(fmt::format(
        "sample: this model was trained on token ids (data.format = \"{}\"), and this version has no tokenizer: "
        "give --ids, such as --ids \"1 2 3\"{}",
        DeckName(deck.data.format), options.prompt ? ", instead of --prompt" : ""));
  const std::string text = options.prompt && !options.prompt->empty() ? *options.prompt : "\n";
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

/// For texts the byte itself, or the number of a token that is no byte; for ids the number.
std::string TokenText(int32_t token, bool as_ids) {
  if (as_ids) return fmt::format(" {}", token);
  return token < kBytes ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
}

void Announce(const std::vector<int32_t>& tokens, int64_t window) {
  if (std::ssize(tokens) > window)
    fmt::print(stderr, "espalier: the prompt has {} tokens; the model sees the last {} of them (model.seq_len)\n",
               tokens.size(), window);
}

}  // namespace

int SampleCommand(const SampleOptions& options) {
  const std::string dir = Resolve(options.checkpoint, std::filesystem::path(options.checkpoint).parent_path());
  const Deck deck = SamplingDeck(dir);
  std::vector<int32_t> tokens = ReadPrompt(options, deck);
  Announce(tokens, deck.model.seq_len);
  Sampler sampler(deck, dir);
  const bool as_ids = options.ids.has_value();
  fmt::print("{}", as_ids ? fmt::format("{}", fmt::join(tokens, " ")) : options.prompt.value_or(""));
  for (int64_t i = 0; i < options.tokens; ++i) {
    const std::array<uint32_t, 4> random =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
                   {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    tokens.push_back(Choose(sampler.Logits(tokens), options.temperature, random[0] / 4294967296.0));
    fmt::print("{}", TokenText(tokens.back(), as_ids));
  }
  fmt::print("\n");
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
