// Every pass, text in and text out: tests/passes/cases/*.txt, one case a file. A case is
//   # pass: partition            which pass, or several; none: the graph is verified
//   # purpose: copies            of the program (train)
//   # mesh: dp_shard 2 tp 2      degrees (others 1)
//   # deck: zero=2               settings that the pass reads (others as below)
//   <graph>
//   ----
//   <graph after the pass>       or "error: <part of the message>"
// With UPDATE=1 in the environment the expected parts are written anew (then read the difference before committing).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "espalier/ops/verify.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

struct Case {
  std::string header, input, expected;
  std::vector<std::string> passes;
  Purpose purpose = Purpose::kTrain;
  Mesh mesh;
  Deck deck;
  std::vector<int> stage_of_chunk = {0};
};

Deck PlainDeck() {
  Deck deck{};
  deck.parallel.zero = 3;
  deck.parallel.sequence_parallel = deck.parallel.loss_parallel = true;
  deck.parallel.reduce = ReduceFrequency::kStep;
  deck.precision.matmul = MatmulPrecision::kFp8;
  deck.recompute = {RecomputeMode::kNone, {}, {}, 0, Regather::kAuto};
  deck.loss.chunks = 1;
  deck.fusion.join_matmuls = JoinMatmuls::kAlways;
  deck.optimizer.beta1 = 0.9;
  deck.optimizer.beta2 = 0.95;
  deck.optimizer.eps = 1e-8;
  deck.optimizer.weight_decay = 0.1;
  deck.optimizer.clip_norm = 1;
  return deck;
}

void ReadSetting(const std::string& setting, Case& c) {
  const size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals), value = setting.substr(equals + 1);
  if (key == "zero") return void(c.deck.parallel.zero = std::stoi(value));
  if (key == "sequence_parallel") return void(c.deck.parallel.sequence_parallel = value == "true");
  if (key == "loss_parallel") return void(c.deck.parallel.loss_parallel = value == "true");
  if (key == "context") return void(c.deck.parallel.context = ParseChoice<ContextMode>(value).value());
  if (key == "reduce") return void(c.deck.parallel.reduce = ParseChoice<ReduceFrequency>(value).value());
  if (key == "recompute") return void(c.deck.recompute.mode = ParseChoice<RecomputeMode>(value).value());
  if (key == "ops") return c.deck.recompute.ops.push_back(value);
  if (key == "layers") return c.deck.recompute.layers.push_back(value);
  if (key == "prefetch") return void(c.deck.overlap.prefetch = std::stoi(value));
  if (key == "overlap.context") return void(c.deck.overlap.context = value == "true");
  if (key == "tensor") return void(c.deck.overlap.tensor = value == "true");
  if (key == "tensor_strips") return void(c.deck.overlap.tensor_strips = std::stoi(value));
  if (key == "join_matmuls") return void(c.deck.fusion.join_matmuls = ParseChoice<JoinMatmuls>(value).value());
  if (key == "chunks") return void(c.deck.loss.chunks = std::stoi(value));
  if (key == "fp8_scaling") return void(c.deck.precision.fp8_scaling = ParseChoice<Fp8Scaling>(value).value());
  if (key == "regather") return void(c.deck.recompute.regather = ParseChoice<Regather>(value).value());
  if (key == "offload.optimizer") return void(c.deck.offload.optimizer = std::stod(value));
  if (key == "offload.activations") return void(c.deck.offload.activations = std::stod(value));
  if (key == "offload.layers") return void(c.deck.offload.layers = value);
  if (key == "offload.parameters") return void(c.deck.offload.parameters = std::stod(value));
  if (key == "offload.gradients") return void(c.deck.offload.gradients = std::stod(value));
  if (key == "chunk_bytes") return void(c.deck.offload.chunk_bytes = std::stoi(value));
  if (key == "compute") return void(c.deck.precision.compute = value == "bf16" ? Dtype::kBf16 : Dtype::kF32);
  FAIL() << "unknown setting " << setting;
}

void ReadMesh(std::istream& words, Case& c) {
  Coordinate degrees;
  degrees.fill(1);
  std::string name;
  for (int degree; words >> name >> degree;) {
    for (Axis a : kAxes)
      if (Name(a) == name) degrees[a] = degree;
  }
  c.mesh = Mesh(degrees);
  c.stage_of_chunk.clear();
  for (int s = 0; s < degrees[Axis::kPp]; ++s) c.stage_of_chunk.push_back(s);
}

void ReadPurpose(std::istream& words, Case& c) {
  std::string word;
  words >> word;
  if (word == "evaluate") return void(c.purpose = Purpose::kEvaluate);
  if (word == "copies") return void(c.purpose = Purpose::kCopies);
  FAIL() << "unknown purpose " << word;
}

Case ReadCase(const std::filesystem::path& path) {
  std::ifstream file(path);
  Case c;
  c.deck = PlainDeck();
  bool after = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "----") {
      after = true;
      continue;
    }
    if (!after && line.starts_with("#")) {
      c.header += line + "\n";
      std::istringstream words(line);
      std::string hash, key, word;
      words >> hash >> key;
      if (key == "pass:")
        while (words >> word) c.passes.push_back(word);
      if (key == "purpose:") ReadPurpose(words, c);
      if (key == "mesh:") ReadMesh(words, c);
      if (key == "deck:")
        while (words >> word) ReadSetting(word, c);
      continue;
    }
    (after ? c.expected : c.input) += line + "\n";
  }
  return c;
}

void Apply(Graph& graph, const Case& c) {
  const PassContext context{c.deck, c.mesh, c.stage_of_chunk, TraitsOf(c.deck.pipeline.schedule), c.purpose};
  for (const std::string& name : c.passes) {
    const auto pass = std::ranges::find(Passes(), name, &Pass::name);
    ASSERT_NE(pass, Passes().end()) << "unknown pass " << name;
    pass->run(graph, context);
  }
}

std::string Result(const Case& c) {
  try {
    Graph graph = ParseGraph(c.input);
    EXPECT_EQ(Print(graph), c.input) << "the input is not in printed form";
    Apply(graph, c);
    Verify(graph, "the passes");
    const std::string text = Print(graph);
    EXPECT_EQ(Print(ParseGraph(text)), text) << "the output does not parse back";
    return text;
  } catch (const InvariantError& error) {
    return std::string("error: ") + error.what() + "\n";
  }
}

class Passes : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Passes, TextInTextOut) {
  const Case c = ReadCase(GetParam());
  const std::string result = Result(c);
  if (std::getenv("UPDATE") != nullptr && !c.expected.starts_with("error:")) {
    std::ofstream(GetParam()) << c.header << c.input << "----\n" << result;
    return;
  }
  if (c.expected.starts_with("error: ")) {
    const std::string part = c.expected.substr(7, c.expected.size() - 8);
    EXPECT_TRUE(result.starts_with("error: ") && result.find(part) != std::string::npos)
        << "expected " << part << "\ngot " << result;
    return;
  }
  EXPECT_EQ(result, c.expected);
}

std::vector<std::filesystem::path> AllCases() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(InTree("tests/passes/cases")))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

INSTANTIATE_TEST_SUITE_P(Cases, Passes, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace espalier
