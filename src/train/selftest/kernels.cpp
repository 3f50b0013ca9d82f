#include "train/selftest/kernels.hpp"

#include <set>

#include "espalier/deck/parse.hpp"
#include "espalier/util/host_name.hpp"
#include "train/measuring/made_up_batch.hpp"
#include "train/programs.hpp"
#include "train/selftest/decks.hpp"
#include "train/state/initialize_weights.hpp"

namespace espalier {
namespace {

constexpr int kKernelSteps = 2;  ///< the second step reads the results of the first step's optimizer

struct ComparedDeck {
  const char* name;
  std::vector<std::string> overrides;
};
const ComparedDeck kComparedDecks[] = {
    {"llama, fp32", {}},
    {"llama, bf16", {"precision.compute=bf16"}},
    {"gpt2, fp32", {"model.family=gpt2", "model.kv_heads=4", "model.tie_embeddings=true"}},
};

void AddDeck(const ComparedDeck& compared, Device& device, std::set<std::string>& kernels, KernelsOfRank& found) {
  const Deck deck = ParseDeck(SelfTestDeck(1), "selftest", compared.overrides).deck;
  SelfWorld alone;
  const Programs programs(deck, alone, nullptr, device);
  const Training& training = programs.training();
  InitializeWeights(training.compilation, training.executor());
  programs.CopyWeights();
  KernelComparison comparison(training.program(), programs.coordinate(), training.executor().arena());
  const Batch batch = MadeUpBatch(programs.layout(), deck.model.vocab);
  for (int step = 1; step <= kKernelSteps; ++step) {
    training.runnable.Fill(batch, programs.layout().positions);
    training.runnable.FillScalars(deck, step);
    comparison.RunStep();
  }
  found.calls += comparison.compared();
  kernels.insert(comparison.kernels().begin(), comparison.kernels().end());
  if (comparison.worst().share >= found.worst.share) found.worst = comparison.worst(), found.deck = compared.name;
}

}  // namespace

KernelsOfRank CompareKernels(int threads) {
  KernelsOfRank found{.host = HostName(), .level = std::string(CpuLevel())};
  const auto device = MakeCpuDevice(threads);
  std::set<std::string> kernels;
  for (const ComparedDeck& compared : kComparedDecks) AddDeck(compared, *device, kernels, found);
  found.kernels = std::ssize(kernels);
  return found;
}

}  // namespace espalier
