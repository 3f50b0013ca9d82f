// Packed conversations, of which only the assistant's tokens are targets, compared with Hugging Face's fp64 models,
// which read each conversation separately: the numbers are written by tests/oracle/conversations.py.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "espalier/data/batch_loader.hpp"
#include "espalier/text/chat_template.hpp"
#include "one_rank.hpp"

namespace espalier {
namespace {

constexpr int64_t kSequence = 300;

/// "loss" and the norm of each gradient.
std::map<std::string, double> ReadNumbers(const std::string& model) {
  std::map<std::string, double> numbers;
  std::ifstream file(fmt::format("{}data/{}_conversations.txt", kOracle, model));
  EXPECT_TRUE(file.good()) << model;
  for (std::string name, rest; file >> name; std::getline(file, rest))
    if (name != "#") file >> numbers[name];
  return numbers;
}

std::unique_ptr<TokenSource> Conversations(const std::string& indices) {
  std::ifstream file(InTree("tests/reference/templates/generation.jinja"));
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  DataSettings settings{DataFormat::kChat, {fmt::format("{}data/conversations.jsonl", kOracle)}, kSequence, 256};
  settings.isolate_documents = true;
  settings.index_dir = indices;
  settings.chat_template = std::make_shared<const ChatTemplate>("generation.jinja", source);
  return OpenTokenSource(settings);
}

class ConversationsOfOracle : public ::testing::TestWithParam<Variant> {};

TEST_P(ConversationsOfOracle, LossAndNormsOfGradients) {
  const Variant& v = GetParam();
  const std::string indices = ::testing::TempDir() + "espalier-conversations-" + v.name;
  const std::unique_ptr<TokenSource> source = Conversations(indices);
  std::filesystem::remove_all(indices);
  ASSERT_EQ(source->samples(), 4);
  ASSERT_EQ(source->packing().documents, 8) << "two in a sample, on average";
  ASSERT_EQ(source->packing().cut, 0);
  Deck deck = OracleDeck(v);
  deck.model.vocab = 256;
  deck.model.seq_len = kSequence;
  deck.batch.global = 4;
  deck.data.isolate_documents = true;
  OneRank run(deck, v.kernels);
  Batch batch;
  LoadBatch(*source, {0, Order::kShuffled}, {2, 2, {0, 2}, AllPositions(kSequence), true}, 0, batch);
  for (int m = 0; m < 2; ++m) {
    const Microbatch& one = batch.microbatches[static_cast<size_t>(m)];
    run.Fill("ids", m, one.ids);
    run.Fill("targets", m, one.targets);
    run.Fill("documents", m, one.document_starts);
    if (run.compilation().graph->FindOrNone("document_positions") >= 0)
      run.Fill("document_positions", m, one.positions);
  }
  run.Step(1, 0.0);
  std::map<std::string, double> expected = ReadNumbers(v.model);
  const double loss = expected.at("loss");
  EXPECT_NEAR(run.executor().GetScalar("mean_loss"), loss, 1e-6 * loss);
  expected.erase("loss");
  double squares = 0;
  for (const auto& [name, norm] : expected) squares += norm * norm;
  EXPECT_NEAR(run.executor().GetScalar("norm"), std::sqrt(squares), 5e-6 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(Models, ConversationsOfOracle,
                         ::testing::Values(Variant{"llama_reference", "llama", FindReferenceKernel, false},
                                           Variant{"llama_cpu", "llama", FindCpuKernel, false},
                                           Variant{"gpt2_cpu", "gpt2", FindCpuKernel, false},
                                           Variant{"qwen3_cpu", "qwen3", FindCpuKernel, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace espalier
