#include "commands/sample/sampler.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

/// Returns `bytes`; throws if this host has less free memory.
int64_t Available(int64_t bytes) {
  SelfWorld world;
  const MemoryShortage shortage = FindShortage(world, {HostName(), bytes, MemoryLimits()});
  if (shortage.ranks != 0)
    throw UserError(ExitStatus::kDoesNotFit, shortage.Text("the model and one sequence (sample runs on one process)"));
  return bytes;
}

/// Number of tokens per run of the program for prompts. A text that outgrows the window is recomputed for each of its
/// tokens.
int64_t PromptTokens(int64_t window, int64_t prompt, int64_t text) { return text > window ? window : prompt; }

}  // namespace

Sampler::Sampler(const Deck& deck, const std::string& dir, int64_t prompt, int64_t text)
    : window_(deck.model.seq_len),
      vocab_(deck.model.vocab),
      prompt_(deck, PromptTokens(window_, prompt, text)),
      next_(deck, 1),
      arena_(Available(std::max(prompt_.program.arena_bytes, next_.program.arena_bytes))) {
  for (Forward* forward : {&prompt_, &next_})
    forward->executor = std::make_unique<CpuExecutor>(forward->program, Coordinate{}, arena_, nullptr, FindCpuKernel);
  for (const ValueKind kind : {ValueKind::kState, ValueKind::kCache})
    for (const NamedTensor& shared : prompt_.executor->All(kind))
      CHECK(next_.executor->At(shared.name).data == shared.tensor.data, "the programs have two {}", shared.name);
  SetCpuThreads(ThreadCount(deck));
  Load(dir);
}

void Sampler::Load(const std::string& dir) {
  const std::vector<StateTensor> tensors = StateTensors(prompt_.compilation);
  SelfWorld world;
  espalier::Load(dir, tensors, LocalTensors(tensors, *prompt_.executor, {}), prompt_.compilation.mesh, world,
                 Coverage::kSome);
}

std::vector<float> Sampler::Logits(const std::vector<int32_t>& text, const Observer& observe) {
  const auto length = std::ssize(text);
  CHECK(cached_ < length, "{} tokens of {} are in the caches", cached_, length);
  const bool outgrown = length > window_;
  if (outgrown) cached_ = 0;
  std::vector<float> logits;
  for (int64_t first = outgrown ? length - window_ : cached_; first < length;) {
    const Forward& forward = cached_ == 0 ? prompt_ : next_;
    const int64_t count = Run(forward, text, first, cached_);
    observed_ = std::max(observed_, first);
    for (; observe && observed_ < first + count; ++observed_) observe(observed_, Row(forward, observed_ - first));
    first += count;
    cached_ += count;
    if (first == length) logits = Row(forward, count - 1);
  }
  return logits;
}

int64_t Sampler::Run(const Forward& forward, const std::vector<int32_t>& text, int64_t first, int64_t position) {
  const int64_t count = std::min(forward.tokens, std::ssize(text) - first);
  // Rows after the last token are computed, too, but nothing reads them before they are overwritten.
  std::vector<int32_t> ids(static_cast<size_t>(forward.tokens), 0), positions(ids.size());
  std::copy_n(text.begin() + first, count, ids.begin());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position));
  const int64_t bytes = forward.tokens * int64_t{sizeof(int32_t)};
  forward.executor->SetInput("positions", -1, positions.data(), bytes);
  forward.executor->SetInput("ids", 0, ids.data(), bytes);
  forward.executor->RunStep();
  return count;
}

std::vector<float> Sampler::Row(const Forward& forward, int64_t i) const {
  const Tensor logits = forward.executor->At("logits", 0);
  std::vector<float> row(static_cast<size_t>(vocab_));
  for (int64_t v = 0; v < vocab_; ++v) {
    const int64_t at = i * vocab_ + v;
    row[static_cast<size_t>(v)] =
        logits.dtype == Dtype::kBf16 ? ToFloat(logits.As<Bf16>()[at]) : logits.As<float>()[at];
  }
  return row;
}

}  // namespace espalier
