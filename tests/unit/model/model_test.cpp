// The whole model against PyTorch: loss, every gradient, and fifty AdamW steps, from the numbers committed in
// tests/oracle.
#include "espalier/model/model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "espalier/data/batch_loader.hpp"
#include "espalier/executor/cpu_executor.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "one_rank.hpp"
#include "source_tree.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

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
      for (double x : Numbers(line))
        (word == "tokens" ? oracle.tokens : oracle.targets).push_back(static_cast<int32_t>(x));
    }
  }
  return oracle;
}

/// Every model, with both backends' kernels.
std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const auto add = [&](const char* model, bool tied) {
    const std::string name = fmt::format("{}_{}", model, tied ? "tied" : "untied");
    variants.push_back({name + "_reference", model, FindReferenceKernel, tied});
    variants.push_back({name + "_cpu", model, FindCpuKernel, tied});
  };
  for (const char* model : {"llama", "gpt2", "llama31", "olmo2", "mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe",
                            "olmoe", "gpt_oss", "deepseek_v3", "deepseek_v2"})
    add(model, false);
  for (const char* model : {"llama", "gpt2", "qwen2", "qwen3"}) add(model, true);
  return variants;
}

class PyTorch : public ::testing::TestWithParam<Variant> {};

TEST_P(PyTorch, LossAndEveryGradient) {
  const Variant& v = GetParam();
  const OracleGradients oracle =
      ReadGradients(fmt::format("{}data/{}_gradients_{}.txt", kOracle, v.model, v.tied ? "tied" : "untied"));
  OneRank run(OracleDeck(v), v.kernels);
  run.Fill("ids", 0, oracle.tokens);
  run.Fill("targets", 0, oracle.targets);
  run.Step(1, 0.0);
  EXPECT_NEAR(run.executor().GetScalar("mean_loss"), oracle.loss, 1e-6 * oracle.loss);
  std::set<std::string> stored;
  for (const StoredPart& part : run.compilation().stored)
    if (run.IsTrained(part.name)) stored.insert(part.name);
  ASSERT_EQ(oracle.gradients.size(), stored.size());
  double squares = 0;
  for (const auto& [name, expected] : oracle.gradients) {
    const std::vector<double> first = run.Stored("gradients/", name), second = run.Stored("gradients/", name, ".2");
    ASSERT_EQ(first.size(), expected.size()) << name;
    const bool twice = std::any_of(second.begin(), second.end(), [](double g) { return g != 0; });
    EXPECT_EQ(twice, v.tied && (name == "model.embed_tokens.weight" || name == "transformer.wte.weight"));
    double largest = 0;
    for (double g : expected) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR((first[i] + second[i]) / double(oracle.tokens.size()), expected[i], 1e-5 * largest)
          << name << "[" << i << "]";
      squares += expected[i] * expected[i];
    }
  }
  EXPECT_NEAR(run.executor().GetScalar("norm"), std::sqrt(squares), 2e-6 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(Models, PyTorch, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

class PyTorchTraining : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, PyTorchTraining,
                         ::testing::Values("llama_adamw", "gpt2_adamw", "llama_recipe", "gpt2_recipe", "llama_muon",
                                           "gpt2_muon", "mixtral_muon", "llama_mtp"),
                         [](const auto& info) { return std::string(info.param); });

void Fill(OneRank& run, int k, const Microbatch& microbatch) {
  run.Fill("ids", k, microbatch.ids);
  run.Fill("targets", k, microbatch.targets);
  if (run.compilation().deck.data.isolate_documents) run.Fill("documents", k, microbatch.document_starts);
  for (size_t d = 0; d < microbatch.further_ids.size(); ++d) {
    run.Fill(IdsOfDepth(static_cast<int>(d) + 1), k, microbatch.further_ids[d]);
    run.Fill(TargetsOfDepth(static_cast<int>(d) + 1), k, microbatch.further_targets[d]);
  }
}

TEST_P(PyTorchTraining, EveryStep) {
  const Deck deck = LoadDeck(fmt::format("{}{}.toml", kOracle, GetParam())).deck;
  OneRank run(deck, FindCpuKernel);
  BatchLayout layout{4, 1, {0, 1}, AllPositions(deck.model.seq_len), deck.data.isolate_documents};
  layout.depths = deck.model.mtp_layers;
  const auto source =
      OpenTokenSource({DataFormat::kText, deck.data.paths, deck.model.seq_len, deck.model.vocab, deck.data.end_token});
  std::ifstream file(fmt::format("{}data/{}.txt", kOracle, GetParam()));
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
      for (int k = 0; k < 4; ++k) Fill(run, k, batch.microbatches[static_cast<size_t>(k)]);
      EXPECT_NEAR(LearningRate(deck, step), lr, 1e-8 * lr);
      run.Step(step, LearningRate(deck, step));
      EXPECT_NEAR(run.executor().GetScalar("mean_loss"), loss, 1e-4 * loss) << step;
      EXPECT_NEAR(run.executor().GetScalar("norm"), norm, 1e-4 * norm) << step;
      double further = 0;  // of the depths together
      for (int k = 1; k <= deck.model.mtp_layers; ++k) further += run.executor().GetScalar(MeanLossOfDepth(k));
      if (words >> loss) EXPECT_NEAR(further, loss * deck.model.mtp_layers, 1e-5 * further) << step;
      ++steps;
    } else if (word == "norm") {
      words >> name >> norm;
      double squares = 0;
      for (double w : run.Stored("parameters/", name)) squares += w * w;
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-4 * norm) << name;
      ++norms;
    }
  }
  EXPECT_EQ(steps, deck.run.steps);
  std::set<std::string> stored;
  for (const StoredPart& part : run.compilation().stored) stored.insert(part.name);
  EXPECT_EQ(norms, static_cast<int64_t>(stored.size()));
}

/// The results of rope_table for a deck's keys at position 1: the factor of cosines and sines, and the frequencies.
struct Frequencies {
  double factor = 0;
  std::vector<double> values;
};

Frequencies FrequenciesOf(const Deck& deck, Executor::KernelFinder kernels) {
  const Model model = BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain);
  const auto op = std::ranges::find(model.graph.ops, OpKind::kRopeTable, &Op::kind);
  testing::OwnedTensor positions(Dtype::kI32, {1}), table(Dtype::kF32, {1, deck.model.head_dim});
  positions.Set(0, 1);
  testing::Run(kernels("rope_table"), {&positions}, {&table}, op->attributes);
  Frequencies found;
  const int64_t half = deck.model.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    found.factor = std::hypot(table[i], table[half + i]);
    found.values.push_back(std::atan2(table[half + i], table[i]));
  }
  return found;
}

TEST(Rope, ScaledFrequenciesAreThoseOfTransformers) {
  std::ifstream file(std::string(kOracle) + "data/rope_frequencies.txt");
  std::vector<std::string> keys;
  double factor = 0;
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "model") keys.assign(std::istream_iterator<std::string>(words), {});
    if (word == "factor") words >> factor;
    if (word != "frequencies") continue;
    const std::vector<double> expected(std::istream_iterator<double>(words), {});
    for (Executor::KernelFinder kernels :
         {Executor::KernelFinder(FindReferenceKernel), Executor::KernelFinder(FindCpuKernel)}) {
      const Frequencies found = FrequenciesOf(SmallDeck(keys), kernels);
      EXPECT_NEAR(found.factor, factor, 1e-6) << keys[0] << " " << cases;
      ASSERT_EQ(found.values.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(found.values[i], expected[i], 1e-7) << "case " << cases << ", frequency " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 8);
}

// Published sizes; tied heads count once.
TEST(Attention, AddsInTheOrderThatTheDeckAsksFor) {
  const auto backward = [](std::vector<std::string> overrides) {
    const Deck deck = SmallDeck(overrides);
    const Model model = BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain);
    std::set<std::string> ways;
    for (const Op& op : model.graph.ops)
      if (op.kind == OpKind::kAttention) ways.emplace(op.attributes.TextOr("backward", "parts"));
    return ways;
  };
  EXPECT_EQ(backward({}), std::set<std::string>{"parts"});
  EXPECT_EQ(backward({"run.attention_backward=ordered"}), std::set<std::string>{"ordered"});
  EXPECT_EQ(backward({"run.attention_backward=auto"}), std::set<std::string>{"parts"}) << "until a start has chosen";
  EXPECT_EQ(backward({"run.attention_backward=ordered", "run.deterministic_attention=false"}),
            std::set<std::string>{"unordered"});
  EXPECT_EQ(backward({"run.deterministic=false"}), std::set<std::string>{"unordered"});
}

TEST(Decks, HaveThePublishedNumberOfParameters) {
  const std::vector<std::pair<const char*, int64_t>> counts = {{"llama/1b", 1'235'814'400},
                                                               {"llama/8b", 8'030'261'248},
                                                               {"llama/70b", 70'553'706'496},
                                                               {"llama/405b", 405'853'388'800},
                                                               {"gpt2/124m", 124'439'808},
                                                               {"gpt2/1.5b", 1'557'611'200},
                                                               {"qwen/qwen2.5-0.5b", 494'032'768},
                                                               {"qwen/qwen3-0.6b", 596'049'920},
                                                               {"olmo2/1b", 1'484'916'736},
                                                               {"mistral/7b", 7'241'732'096},
                                                               {"smollm/135m", 134'515'008},
                                                               {"phi/4", 14'659'507'200},
                                                               {"mixtral/8x7b", 46'702'792'704},
                                                               {"qwen/qwen3-30b-a3b", 30'532'122'624},
                                                               {"qwen/qwen1.5-moe-a2.7b", 14'315'784'192},
                                                               {"qwen/qwen2-57b-a14b", 57'408'658'944},
                                                               {"glm/glm-4.5-air", 106'852'251'264},
                                                               {"gpt-oss/20b", 20'914'757'184},
                                                               {"gpt-oss/120b", 116'829'156'672},
                                                               {"deepseek/v3", 682'636'487'424},
                                                               {"deepseek/v2", 235'741'434'880},
                                                               {"deepseek/v2-lite", 15'706'484'224},
                                                               {"deepseek/moonlight-16b-a3b", 15'960'110'208},
                                                               {"olmoe/1b-7b", 6'919'161'856}};
  for (const auto& [name, parameters] : counts) {
    const Deck deck = LoadDeck(InTree(fmt::format("inputs/{}.toml", name))).deck;
    EXPECT_EQ(ParameterCount(BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain)), parameters) << name;
  }
}

// q, k and v start as slices of one c_attn: no element drawn twice or skipped.
TEST(Gpt2, PartsFillWhatIsStored) {
  const Deck deck = SmallDeck({"model.family=gpt2", "model.kv_heads=4", "model.layers=1"});
  const Model model = BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain);
  std::map<std::string, std::vector<int>> filled;
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    const StoredPart& stored = model.stored[p];
    const Shape& extents =
        model.graph.values[static_cast<size_t>(model.graph.Find("parameters/" + model.parameters[p]))].type.shape;
    std::vector<int>& count = filled[stored.name];
    count.resize(static_cast<size_t>(Volume(stored.shape)));
    for (int64_t i = 0; i < Volume(extents); ++i) ++count[static_cast<size_t>(StoredElement(stored, extents, i))];
  }
  EXPECT_EQ(filled.at("transformer.h.0.attn.c_attn.weight").size(), 48u * 144u);
  for (const auto& [name, count] : filled)
    EXPECT_EQ(std::count(count.begin(), count.end(), 1), std::ssize(count)) << name;
}

TEST(Groups, EveryPatternMustMatchAParameter) {
  const auto errors = [](const char* deck, const char* groups) -> std::vector<std::string> {
    try {
      RequirePatternsMatch(LoadDeck(InTree("tests/decks/") + deck, {groups}));
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kDeck);
      return error.messages();
    }
    return {};
  };
  EXPECT_TRUE(errors("small.toml", "optimizer.groups=['*.3.*norm.weight lr=2', 'lm_head.weight decay=1']").empty());
  const std::vector<std::string> two =
      errors("small.toml", "optimizer.groups=['*.4.*norm.weight lr=2', '*norm* lr=1', 'lm_had.weight decay=1']");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0],
            "command line: optimizer.groups: \"*.4.*norm.weight lr=2\": *.4.*norm.weight matches no parameter "
            "(the nearest name is model.layers.0.input_layernorm.weight; * stands for any characters, dots "
            "included)");
  EXPECT_NE(two[1].find("the nearest name is lm_head.weight;"), std::string::npos) << two[1];
  EXPECT_TRUE(errors("small_gpt2.toml", "optimizer.groups=['*.c_attn.weight lr=2']").empty());
  EXPECT_EQ(errors("small_gpt2.toml", "optimizer.groups=['lm_head.weight lr=2']").size(), 1u) << "the head is tied";
}

TEST(MatmulPatterns, LeaveMatmulsInBf16) {
  const auto marked = [](const char* deck, const std::string& patterns, std::vector<std::string> overrides = {}) {
    std::vector<std::string> names;
    overrides.insert(overrides.end(),
                     {"precision.compute=bf16", "precision.matmul=fp8", "precision.bf16_matmuls=" + patterns});
    const Deck loaded = LoadDeck(InTree("tests/decks/") + deck, overrides).deck;
    const Model model = BuildModel(loaded, SplitLayers(loaded, 1), 1, Purpose::kTrain);
    for (const Op& op : model.graph.ops)
      if (op.attributes.numbers.contains(kFp8Mark)) names.push_back(model.graph.value(op.inputs[1]).name);
    return names;
  };
  EXPECT_EQ(marked("small.toml", "[]").size(), 4u * 7 + 1);
  EXPECT_EQ(marked("small.toml", "['lm_head.weight']").size(), 4u * 7);
  EXPECT_EQ(marked("small_gpt2.toml", "['lm_head.weight']").size(), 4u * 6) << "the head is tied";
  EXPECT_EQ(marked("small.toml", "['lm_head.weight', '*.0.*', '*_proj.weight']").size(), 0u);
  EXPECT_EQ(marked("small.toml", "['*.self_attn.*', '*.mlp.up_proj.*', '*.1.*', 'lm_head.*']"),
            (std::vector<std::string>{"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.down_proj.weight",
                                      "model.layers.2.mlp.gate_proj.weight", "model.layers.2.mlp.down_proj.weight",
                                      "model.layers.3.mlp.gate_proj.weight", "model.layers.3.mlp.down_proj.weight"}));
  const std::vector<std::string> experts = {"experts.count=4", "experts.per_token=2", "experts.ffn_dim=32"};
  EXPECT_EQ(marked("small.toml", "[]", experts).size(), 4u * 7 + 1);
  EXPECT_EQ(marked("small.toml", "['*.experts.*']", experts).size(), 4u * 4 + 1);
}

TEST(MatmulPatterns, MustMatchTheWeightOfAMatmul) {
  const auto errors = [](const char* deck, const char* patterns) -> std::vector<std::string> {
    try {
      RequirePatternsMatch(
          LoadDeck(InTree("tests/decks/") + deck, {"precision.compute=bf16", "precision.matmul=fp8", patterns}));
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kDeck);
      return error.messages();
    }
    return {};
  };
  EXPECT_TRUE(errors("small.toml", "precision.bf16_matmuls=['lm_head.weight', '*.3.mlp.*']").empty());
  EXPECT_TRUE(errors("small_gpt2.toml", "precision.bf16_matmuls=['lm_head.weight', '*.c_attn.weight']").empty());
  EXPECT_EQ(
      errors("small.toml", "precision.bf16_matmuls=['*.4.mlp.*']"),
      std::vector<std::string>{
          "command line: precision.bf16_matmuls: \"*.4.mlp.*\" matches no weight of a matmul (the nearest name is "
          "model.layers.0.mlp.gate_proj.weight; * stands for any characters, dots included)"});
  EXPECT_EQ(errors("small.toml", "precision.bf16_matmuls=['*layernorm.weight', 'model.embed_tokens.weight']").size(),
            2u)
      << "they have no matmuls";
  EXPECT_EQ(errors("small.toml", "precision.bf16_matmuls=['*.experts.*']").size(), 1u) << "a dense model";
}

TEST(Groups, AreDescribedByWhatTheyHave) {
  const Deck deck = LoadDeck(InTree("tests/decks/small.toml"),
                             {"optimizer.groups=['*norm.weight lr=0.5', 'lm_head.* decay=0', '*.input_layer* lr=2']"})
                        .deck;
  const std::vector<std::string> lines = DescribeGroups(deck);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "\"*norm.weight lr=0.5\": 9 tensors, 432 parameters");
  EXPECT_EQ(lines[1], "\"lm_head.* decay=0\": 1 tensor, 12480 parameters");
  EXPECT_EQ(lines[2],
            "\"*.input_layer* lr=2\": 0 tensors, 0 parameters; entries before it have all "
            "that it matches");
  EXPECT_EQ(lines[3], "in no group: 29 tensors, 90816 parameters");
  EXPECT_TRUE(DescribeGroups(LoadDeck(InTree("tests/decks/small.toml")).deck).empty());
}

TEST(Split, BalancesByCostWithTheHead) {
  const Deck even = SmallDeck({"model.vocab=256"});
  EXPECT_EQ(SplitLayers(even, 2).chunk_of_layer.size(), 6u);
  // A head as expensive as several layers takes their place on the last chunk.
  const Split heavy = SplitLayers(SmallDeck({"model.layers=8", "model.vocab=3000"}), 2);
  int first = 0;
  for (int l = 1; l <= 8; ++l) first += heavy.chunk_of_layer[static_cast<size_t>(l)] == 0;
  EXPECT_GT(first, 5);
  EXPECT_EQ(heavy.chunk_of_layer.front(), 0);
  EXPECT_EQ(heavy.chunk_of_layer.back(), 1);
}

/// The largest load of a split, and all splits of `layers` into `chunks`.
double LargestLoad(const Deck::Model& m, const std::vector<int64_t>& layers) {
  double largest = 0;
  int layer = 0;
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    double load = chunk + 1 == layers.size() ? HeadFlopsPerToken(m) : 0;
    for (int64_t i = 0; i < layers[chunk]; ++i) {
      const LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, ++layer));
      load += flops.matmuls + flops.attention;
    }
    largest = std::max(largest, load);
  }
  return largest;
}
void ForEachSplit(int64_t layers, size_t chunks, std::vector<int64_t> begin,
                  const std::function<void(const std::vector<int64_t>&)>& visit) {
  if (begin.size() + 1 == chunks) {
    begin.push_back(layers);
    return visit(begin);
  }
  for (int64_t n = 1; n + static_cast<int64_t>(chunks - begin.size()) - 1 <= layers; ++n) {
    std::vector<int64_t> more = begin;
    more.push_back(n);
    ForEachSplit(layers - n, chunks, more, visit);
  }
}

TEST(Split, BalancesKindsOfLayers) {
  // Layers with full attention cost several times as much as the others here.
  for (const int full : {1, 3, 5})
    for (const int chunks : {2, 3, 4}) {
      const Deck deck = SmallDeck({"model.layers=9", "model.seq_len=2048", "model.sliding_window=8",
                                   fmt::format("model.full_attention_layers={}", full)});
      double least = std::numeric_limits<double>::max();
      ForEachSplit(9, static_cast<size_t>(chunks), {}, [&](const std::vector<int64_t>& layers) {
        least = std::min(least, LargestLoad(deck.model, layers));
      });
      EXPECT_NEAR(LargestLoad(deck.model, SplitLayers(deck, chunks).LayersOfChunks()), least, 1e-9 * least);
    }
}

TEST(LayerKinds, SomeLayersSeeAllTokens) {
  const auto windows = [](int full_layers, int full_every) {
    const Deck deck = SmallDeck({"model.layers=7", "model.sliding_window=5",
                                 fmt::format("model.full_attention_layers={}", full_layers),
                                 fmt::format("model.full_attention_every={}", full_every)});
    std::string text;
    for (int layer = 1; layer <= 7; ++layer) text += KindOf(deck.model, layer).window ? 'w' : 'f';
    for (const LayerKind& kind : KindsOf(deck.model))
      EXPECT_EQ(KindOf(WithLayersOf(deck.model, kind, 3), 2), kind) << text;
    return text;
  };
  EXPECT_EQ(windows(0, 0), "wwwwwww");
  EXPECT_EQ(windows(0, 2), "wfwfwfw");
  EXPECT_EQ(windows(2, 3), "fffwwfw");
  EXPECT_EQ(windows(0, 6), "wwwwwfw");
}

TEST(Split, IsTheGreedyOneOfEqualLayers) {
  for (const int vocab : {256, 300, 1500, 3000})
    for (const int chunks : {1, 2, 3, 5, 7}) {
      const Deck deck = SmallDeck({"model.layers=17", fmt::format("model.vocab={}", vocab)});
      const LayerFlops flops = LayerFlopsPerToken(deck.model, {});
      std::vector<int64_t> layers(static_cast<size_t>(chunks), 1);
      std::vector<double> load(layers.size(), flops.matmuls + flops.attention);
      load.back() += HeadFlopsPerToken(deck.model);
      for (int l = chunks; l < 17; ++l) {
        const auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
        ++layers[least];
        load[least] += flops.matmuls + flops.attention;
      }
      EXPECT_EQ(SplitLayers(deck, chunks).LayersOfChunks(), layers) << vocab;
    }
}

// --- documents of a sample -------------------------------------------------------------------------------------------

/// Where documents begin in a sample of 9 tokens; each has at least two targets of its own, or none.
const std::vector<std::vector<int64_t>> kDocuments = {{0, 3, 4}, {0, 5, 6}};

struct Packed {
  std::vector<int32_t> ids, targets, starts, positions;
};

/// Two samples of tokens drawn by position; the last token of a document has no target.
Packed PackedSamples() {
  Packed packed;
  for (size_t row = 0; row < kDocuments.size(); ++row) {
    for (int64_t p = 0; p < 9; ++p) {
      const auto next = std::ranges::upper_bound(kDocuments[row], p);
      const bool last = p == 8 || (next != kDocuments[row].end() && *next == p + 1);
      const int64_t at = static_cast<int64_t>(row) * 9 + p;
      packed.ids.push_back(static_cast<int32_t>(at * 5 % 37));
      packed.targets.push_back(last ? -1 : static_cast<int32_t>((at + 1) * 5 % 37));
      packed.starts.push_back(static_cast<int32_t>(*std::prev(next)));
      packed.positions.push_back(static_cast<int32_t>(p - *std::prev(next)));
    }
  }
  return packed;
}

void TrainOn(OneRank& run, const Packed& packed) {
  run.Fill("ids", 0, packed.ids);
  run.Fill("targets", 0, packed.targets);
  run.Fill("documents", 0, packed.starts);
  if (run.compilation().graph->FindOrNone("document_positions") >= 0)
    run.Fill("document_positions", 0, packed.positions);
  run.Step(1, 0.0);
}

Deck WithDocuments(Deck deck) {
  deck.data.isolate_documents = true;
  return deck;
}

/// Both uses of tied embeddings together.
std::vector<double> GradientOf(const OneRank& run, const std::string& name) {
  std::vector<double> sum = run.Stored("gradients/", name);
  const std::vector<double> second = run.Stored("gradients/", name, ".2");
  for (size_t i = 0; i < second.size(); ++i) sum[i] += second[i];
  return sum;
}

class Documents : public ::testing::TestWithParam<Variant> {};

// Positions of Llama continue inside a sample, GPT-2's start again: either way a document does not see others.
TEST_P(Documents, TrainAsIfEachWereAlone) {
  const Deck deck = OracleDeck(GetParam());
  const Packed packed = PackedSamples();
  OneRank together(WithDocuments(deck), GetParam().kernels);
  TrainOn(together, packed);
  double loss = 0, targets = 0;
  std::map<std::string, std::vector<double>> gradients;
  for (size_t begin = 0; begin < packed.ids.size();) {
    size_t end = begin;
    while (packed.targets[end] >= 0) ++end;
    if (const size_t length = end - begin; length > 0) {
      Deck one = deck;
      one.model.seq_len = static_cast<int64_t>(length);
      one.batch.global = one.batch.micro = 1;
      OneRank alone(one, GetParam().kernels);
      const auto part = [&](const std::vector<int32_t>& all) {
        return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(begin),
                                    all.begin() + static_cast<ptrdiff_t>(end));
      };
      alone.Fill("ids", 0, part(packed.ids));
      alone.Fill("targets", 0, part(packed.targets));
      alone.Step(1, 0.0);
      loss += alone.executor().GetScalar("mean_loss") * double(length);
      targets += double(length);
      for (const StoredPart& stored : together.compilation().stored) {
        if (stored.start != Shape(stored.shape.size(), 0) || !together.IsTrained(stored.name)) continue;
        std::vector<double>& sum = gradients[stored.name];
        sum.resize(static_cast<size_t>(Volume(stored.shape)));
        const std::vector<double> of_one = GradientOf(alone, stored.name);  // with a shorter table of positions
        for (size_t i = 0; i < of_one.size(); ++i) sum[i] += of_one[i];
      }
    }
    begin = end + 1;
  }
  ASSERT_EQ(targets, 2 + 4 + 4 + 2);
  EXPECT_NEAR(together.executor().GetScalar("mean_loss"), loss / targets, 1e-6 * loss / targets);
  for (const auto& [name, expected] : gradients) {
    const std::vector<double> found = GradientOf(together, name);
    ASSERT_EQ(found.size(), expected.size()) << name;
    double largest = 0;
    for (double g : expected) largest = std::max(largest, std::abs(g));
    EXPECT_GT(largest, 0) << name;
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 2e-5 * largest) << name << "[" << i << "]";
  }
}

// Only the targets of one document count; the tokens of all others change nothing, not even a bit.
TEST_P(Documents, DoNotSeeOneAnother) {
  const Deck deck = WithDocuments(OracleDeck(GetParam()));
  Packed clean = PackedSamples();
  for (size_t i = 0; i < clean.ids.size(); ++i)
    if (i < 4 || i > 8) clean.targets[i] = -1;
  Packed poisoned = clean;
  for (size_t i = 0; i < clean.ids.size(); ++i)
    if (i < 4 || i > 8) poisoned.ids[i] = static_cast<int32_t>(36 - i % 2);
  OneRank a(deck, GetParam().kernels), b(deck, GetParam().kernels);
  TrainOn(a, clean);
  TrainOn(b, poisoned);
  EXPECT_EQ(a.executor().GetScalar("mean_loss"), b.executor().GetScalar("mean_loss"));
  EXPECT_EQ(a.executor().GetScalar("norm"), b.executor().GetScalar("norm"));
  EXPECT_GT(a.executor().GetScalar("norm"), 0);
  for (const StoredPart& stored : a.compilation().stored)
    EXPECT_EQ(GradientOf(a, stored.name), GradientOf(b, stored.name)) << stored.name;
}

INSTANTIATE_TEST_SUITE_P(Models, Documents, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace espalier
