// The whole model against PyTorch: loss, every gradient, and fifty AdamW steps, from the numbers committed in tests/oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "espalier/data/batch_loader.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/model/model.hpp"
#include "espalier/program/compile.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

constexpr const char* kOracle = SOURCE_ROOT "/tests/oracle/";

uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

/// The formula in the head of the oracle's files.
float OracleWeight(std::string_view name, int64_t i) {
  const uint64_t bits = (Fnv1a64(name) + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 40;
  const double w = 0.4 * (static_cast<double>(bits) / 16777216.0 - 0.5);
  return static_cast<float>(name.ends_with("norm.weight") ? 1 + w : w);
}

/// A program on one rank with the oracle's weights.
class OneRank {
 public:
  OneRank(const Deck& deck, Executor::KernelFinder kernels)
      : compilation_(Compile(deck, 1, Purpose::kTrain)),
        program_(MakeProgram(compilation_, {})),
        arena_(program_.arena_bytes),
        executor_(program_, {}, arena_, nullptr, kernels) {
    for (const std::string& name : compilation_.parameters) {
      const Tensor w = executor_.At("parameters/" + name);
      for (int64_t i = 0; i < Volume(w.shape); ++i) w.As<float>()[i] = OracleWeight(name, i);
    }
    int32_t* positions = executor_.At("positions").As<int32_t>();
    for (int64_t p = 0; p < deck.model.seq_len; ++p) positions[p] = static_cast<int32_t>(p);
  }

  void Fill(const char* name, int microbatch, const std::vector<int32_t>& tokens) {
    std::copy(tokens.begin(), tokens.end(), executor_.At(name, microbatch).As<int32_t>());
  }
  void Step(int64_t step, double lr) {
    executor_.SetScalar("lr", static_cast<float>(lr));
    executor_.SetScalar("step", static_cast<float>(step));
    executor_.RunStep();
  }
  const Executor& executor() const { return executor_; }
  const Compilation& compilation() const { return compilation_; }

 private:
  Compilation compilation_;
  Program program_;
  Arena arena_;
  Executor executor_;
};

struct OracleGradients {
  std::vector<int32_t> tokens, targets;
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

std::vector<double> Numbers(const std::string& line) {
  std::istringstream in(line);
  std::vector<double> numbers;
  for (double x; in >> x;) numbers.push_back(x);
  return numbers;
}

OracleGradients ReadGradients(const std::string& path) {
  OracleGradients oracle;
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, name;
    words >> word;
    if (word == "loss") words >> oracle.loss;
    if (word == "parameter") {
      words >> name;
      std::getline(file, line);
      oracle.gradients[name] = Numbers(line);
    }
    if (word == "tokens" || word == "targets") {
      std::getline(file, line);
      for (double x : Numbers(line)) (word == "tokens" ? oracle.tokens : oracle.targets).push_back(static_cast<int32_t>(x));
    }
  }
  return oracle;
}

Deck OracleDeck(bool tied) {
  return SmallDeck({"model.layers=2", "model.dim=24", "model.ffn_dim=40", "model.vocab=37", "model.seq_len=9", "model.norm_eps=1e-5",
                    "model.rope_theta=10000", std::string("model.tie_embeddings=") + (tied ? "true" : "false"), "batch.global=2",
                    "batch.micro=2", "data.format=tokens"});
}

struct Variant {
  const char* name;
  Executor::KernelFinder kernels;
  bool tied;
};

class PyTorch : public testing::TestWithParam<Variant> {};

TEST_P(PyTorch, LossAndEveryGradient) {
  const OracleGradients oracle = ReadGradients(std::string(kOracle) + (GetParam().tied ? "llama_gradients_tied.txt" : "llama_gradients_untied.txt"));
  OneRank run(OracleDeck(GetParam().tied), GetParam().kernels);
  run.Fill("ids", 0, oracle.tokens);
  run.Fill("targets", 0, oracle.targets);
  run.Step(1, 0.0);
  EXPECT_NEAR(run.executor().GetScalar("mean_loss"), oracle.loss, 1e-6 * oracle.loss);
  ASSERT_EQ(oracle.gradients.size(), run.compilation().parameters.size());
  double squares = 0;
  for (const auto& [name, expected] : oracle.gradients) {
    const Tensor sum = run.executor().At("gradients/" + name);
    ASSERT_EQ(Volume(sum.shape), static_cast<int64_t>(expected.size())) << name;
    const bool second = run.compilation().graph->FindOrNone("gradients/" + name + ".2") >= 0;
    EXPECT_EQ(second, GetParam().tied && name == "model.embed_tokens.weight");
    double largest = 0;
    for (double g : expected) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < expected.size(); ++i) {
      double got = sum.As<float>()[i];
      if (second) got += run.executor().At("gradients/" + name + ".2").As<float>()[i];
      ASSERT_NEAR(got / double(oracle.tokens.size()), expected[i], 2e-6 * largest) << name << "[" << i << "]";
      squares += expected[i] * expected[i];
    }
  }
  EXPECT_NEAR(run.executor().GetScalar("norm"), std::sqrt(squares), 2e-6 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(Kernels, PyTorch,
                         testing::Values(Variant{"reference", FindReferenceKernel, false}, Variant{"reference_tied", FindReferenceKernel, true},
                                         Variant{"cpu", FindCpuKernel, false}, Variant{"cpu_tied", FindCpuKernel, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PyTorchTraining, FiftyAdamwSteps) {
  const Deck deck = LoadDeck(std::string(kOracle) + "adamw.toml").deck;
  OneRank run(deck, FindCpuKernel);
  const BatchLayout layout{4, 1, {0, 1}, AllPositions(deck.model.seq_len)};
  const auto source = OpenTokenSource("text", deck.data.paths, deck.model.seq_len, deck.model.vocab);
  std::ifstream file(std::string(kOracle) + "llama_adamw.txt");
  int64_t steps = 0, norms = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, name;
    words >> word;
    double loss, norm, lr;
    if (word == "step") {
      int64_t step;
      words >> step >> loss >> norm >> lr;
      Batch batch;
      LoadBatch(*source, {deck.run.seed, Order::kSequential}, layout, step - 1, batch);
      for (int k = 0; k < 4; ++k) {
        run.Fill("ids", k, batch.microbatches[static_cast<size_t>(k)].ids);
        run.Fill("targets", k, batch.microbatches[static_cast<size_t>(k)].targets);
      }
      EXPECT_NEAR(LearningRate(deck, step), lr, 1e-8 * lr);
      run.Step(step, LearningRate(deck, step));
      EXPECT_NEAR(run.executor().GetScalar("mean_loss"), loss, 1e-4 * loss) << step;
      EXPECT_NEAR(run.executor().GetScalar("norm"), norm, 1e-4 * norm) << step;
      ++steps;
    } else if (word == "norm") {
      words >> name >> norm;
      const Tensor w = run.executor().At("parameters/" + name);
      double squares = 0;
      for (int64_t i = 0; i < Volume(w.shape); ++i) squares += double(w.As<float>()[i]) * double(w.As<float>()[i]);
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-4 * norm) << name;
      ++norms;
    }
  }
  EXPECT_EQ(steps, 50);
  EXPECT_EQ(norms, static_cast<int64_t>(run.compilation().parameters.size()));
}

TEST(Split, BalancesByCostWithTheHead) {
  const Deck even = SmallDeck({"model.vocab=256"});
  EXPECT_EQ(SplitLayers(even, 2).chunk_of_layer.size(), 6u);
  // A head that weighs as much as several layers takes their place on the last chunk.
  const Split heavy = SplitLayers(SmallDeck({"model.layers=8", "model.vocab=3000"}), 2);
  int first = 0;
  for (int l = 1; l <= 8; ++l) first += heavy.chunk_of_layer[static_cast<size_t>(l)] == 0;
  EXPECT_GT(first, 5);
  EXPECT_EQ(heavy.chunk_of_layer.front(), 0);
  EXPECT_EQ(heavy.chunk_of_layer.back(), 1);
}

}  // namespace
}  // namespace espalier
