// Weights of a folder: every form in which files have experts gives the same values, and an export splits them again.
#include "espalier/huggingface/weights.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint_testing.hpp"
#include "espalier/huggingface/expert_tensors.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using Tensor = SafetensorsWriter::Tensor;
using testing::ElementsAre;
using Strings = std::vector<std::string>;

constexpr int64_t kExperts = 5, kFfn = 3, kDim = 7;

/// The weights of a model whose second layer has experts.
const std::vector<Tensor> kModel = {
    {"model.layers.0.mlp.up_proj.weight", {11, kDim}},
    {"model.layers.1.mlp.gate.weight", {kExperts, kDim}},
    {"model.layers.1.mlp.experts.gate_proj.weight", {kExperts, kFfn, kDim}},
    {"model.layers.1.mlp.experts.up_proj.weight", {kExperts, kFfn, kDim}},
    {"model.layers.1.mlp.experts.down_proj.weight", {kExperts, kDim, kFfn}},
};

/// Element i of a weight; all elements of the model differ.
float Value(size_t weight, int64_t i) { return static_cast<float>(1000 * static_cast<int64_t>(weight) + i) + 0.25f; }

std::vector<float> ValuesOf(size_t weight) {
  std::vector<float> values(static_cast<size_t>(Volume(kModel[weight].shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Value(weight, static_cast<int64_t>(i));
  return values;
}

struct Stored {
  Tensor tensor;
  std::vector<float> values;
};

/// A tensor whose elements are those of `weight` from `first` on.
Stored Part(std::string name, Shape shape, size_t weight, int64_t first = 0) {
  std::vector<float> values(static_cast<size_t>(Volume(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Value(weight, first + static_cast<int64_t>(i));
  return {{std::move(name), std::move(shape)}, std::move(values)};
}

/// One tensor per expert, with these names of layer, gate, up and down.
std::vector<Stored> PerExpert(const std::string& layer, const Strings& names) {
  std::vector<Stored> stored = {Part(kModel[0].name, kModel[0].shape, 0),
                                Part(layer + ".gate.weight", kModel[1].shape, 1)};
  for (int64_t j = 0; j < kExperts; ++j)
    for (size_t p = 0; p < 3; ++p)
      stored.push_back(Part(fmt::format("{}.experts.{}.{}.weight", layer, j, names[p]),
                            p < 2 ? Shape{kFfn, kDim} : Shape{kDim, kFfn}, p + 2, j * kFfn * kDim));
  return stored;
}
std::vector<Stored> OfQwen() { return PerExpert("model.layers.1.mlp", {"gate_proj", "up_proj", "down_proj"}); }
std::vector<Stored> OfMixtral() { return PerExpert("model.layers.1.block_sparse_moe", {"w1", "w3", "w2"}); }
std::vector<Stored> Packed() {
  std::vector<Stored> stored = {Part(kModel[0].name, kModel[0].shape, 0), Part(kModel[1].name, kModel[1].shape, 1)};
  Stored both{{"model.layers.1.mlp.experts.gate_up_proj", {kExperts, 2 * kFfn, kDim}}, {}};
  for (int64_t j = 0; j < kExperts; ++j)
    for (size_t weight : {2, 3})
      for (int64_t i = 0; i < kFfn * kDim; ++i) both.values.push_back(Value(weight, j * kFfn * kDim + i));
  stored.push_back(both);
  stored.push_back(Part("model.layers.1.mlp.experts.down_proj", kModel[4].shape, 4));
  return stored;
}

/// The weights of gpt-oss: experts with biases.
const std::vector<Tensor> kGptOss = {
    {"model.layers.1.mlp.gate.weight", {kExperts, kDim}},
    {"model.layers.1.mlp.gate.bias", {kExperts}},
    {"model.layers.1.mlp.experts.gate_proj.weight", {kExperts, kFfn, kDim}},
    {"model.layers.1.mlp.experts.gate_proj.bias", {kExperts, kFfn}},
    {"model.layers.1.mlp.experts.up_proj.weight", {kExperts, kFfn, kDim}},
    {"model.layers.1.mlp.experts.up_proj.bias", {kExperts, kFfn}},
    {"model.layers.1.mlp.experts.down_proj.weight", {kExperts, kDim, kFfn}},
    {"model.layers.1.mlp.experts.down_proj.bias", {kExperts, kDim}},
};
/// The files of a model, and for each of their elements the weight and the place that it has there.
struct OfGptOss {
  Tensor tensor;
  std::function<float(int64_t expert, int64_t row, int64_t column)> value;
};
const std::vector<OfGptOss> kOfGptOss = {
    {{"model.layers.1.mlp.router.weight", {kExperts, kDim, 1}},
     [](int64_t e, int64_t i, int64_t) { return Value(0, e * kDim + i); }},
    {{"model.layers.1.mlp.router.bias", {kExperts, 1, 1}}, [](int64_t e, int64_t, int64_t) { return Value(1, e); }},
    {{"model.layers.1.mlp.experts.gate_up_proj", {kExperts, kDim, 2 * kFfn}},
     [](int64_t e, int64_t i, int64_t o) { return Value(o % 2 == 0 ? 2 : 4, (e * kFfn + o / 2) * kDim + i); }},
    {{"model.layers.1.mlp.experts.gate_up_proj_bias", {kExperts, 2 * kFfn, 1}},
     [](int64_t e, int64_t o, int64_t) { return Value(o % 2 == 0 ? 3 : 5, e * kFfn + o / 2); }},
    {{"model.layers.1.mlp.experts.down_proj", {kExperts, kFfn, kDim}},
     [](int64_t e, int64_t i, int64_t o) { return Value(6, (e * kDim + o) * kFfn + i); }},
    {{"model.layers.1.mlp.experts.down_proj_bias", {kExperts, kDim, 1}},
     [](int64_t e, int64_t o, int64_t) { return Value(7, e * kDim + o); }},
};
std::vector<Stored> FilesOfGptOss() {
  std::vector<Stored> stored;
  for (const OfGptOss& file : kOfGptOss) {
    Stored one{file.tensor, {}};
    for (int64_t i = 0; i < Volume(file.tensor.shape); ++i) {
      const int64_t rows = file.tensor.shape[1], columns = file.tensor.shape[2];
      one.values.push_back(file.value(i / (rows * columns), i / columns % rows, i % columns));
    }
    while (one.tensor.shape.back() == 1) one.tensor.shape.pop_back();  // those of vectors
    stored.push_back(std::move(one));
  }
  return stored;
}

class WeightsOfExperts : public testing::Test {
 protected:
  /// Writes `files` files, to which the tensors go in turns.
  FolderOfWeights Folder(const std::vector<Stored>& stored, size_t files = 1) {
    const std::string dir = fmt::format("{}/{}", home_.path(), ++folders_);
    fs::create_directory(dir);
    nlohmann::json map;
    for (size_t f = 0; f < files; ++f) {
      const std::string name = files == 1 ? "model.safetensors" : fmt::format("part-{}.safetensors", f);
      std::vector<Tensor> header;
      for (size_t t = f; t < stored.size(); t += files) header.push_back(stored[t].tensor);
      SafetensorsWriter writer(dir + "/" + name, SafeDtype::kF32, header);
      for (size_t t = f; t < stored.size(); t += files) {
        writer.Append(stored[t].values.data(), std::ssize(stored[t].values));
        map[stored[t].tensor.name] = name;
      }
      writer.Close();
    }
    if (files > 1) std::ofstream(dir + "/model.safetensors.index.json") << nlohmann::json{{"weight_map", map}};
    return FolderOfWeights(dir);
  }
  /// The weights that do not fit, after the line that says so.
  Strings Refusal(const std::vector<Stored>& stored) {
    FolderOfWeights weights = Folder(stored);
    try {
      weights.RequireFit(kModel);
      return {};
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      Strings messages;  // without the indent
      for (size_t i = 1; i < error.messages().size(); ++i) messages.push_back(error.messages()[i].substr(2));
      return messages;
    }
  }

  TemporaryDirectory home_;
  int folders_ = 0;
};

/// The model is layer 1; layers 2 and 3 predict further tokens.
TEST_F(WeightsOfExperts, LayersForFurtherTokensShareEmbeddingAndHead) {
  const auto part = [](std::string name, size_t weight) { return Part(std::move(name), {3, 2}, weight); };
  std::vector<Stored> stored = OfQwen();
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) stored.push_back(part(name, 0));
  for (int layer : {2, 3}) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    stored.push_back(Part(at + "eh_proj.weight", {2, 4}, 1));
    stored.push_back(part(at + "embed_tokens.weight", 0));
    stored.push_back(part(at + "shared_head.head.weight", layer == 2 ? 0 : 1));
  }
  FolderOfWeights weights = Folder(stored);
  EXPECT_EQ(weights.FurtherLayers(2, 1), 1);
  EXPECT_EQ(weights.FurtherLayers(2, 5), 2);
  EXPECT_EQ(weights.FurtherLayers(1, 5), 0);
  EXPECT_THAT(weights.DifferingCopies(), ElementsAre("model.layers.3.shared_head.head.weight"));
  std::vector<Tensor> wanted = kModel;
  wanted.push_back({"model.embed_tokens.weight", {3, 2}});
  wanted.push_back({"lm_head.weight", {3, 2}});
  EXPECT_THAT(weights.RequireFit(wanted, 2), ElementsAre("model.layers.2, which predicts further tokens (3 tensors)",
                                                         "model.layers.3, which predicts further tokens (3 tensors)"));
  wanted.push_back({"model.layers.2.eh_proj.weight", {2, 4}});
  EXPECT_THAT(weights.RequireFit(wanted, 1),
              ElementsAre("model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight",
                          "model.layers.3, which predicts further tokens (3 tensors)"));
}

TEST_F(WeightsOfExperts, AreReadFromEveryForm) {
  std::vector<Stored> without_prefix = OfQwen();
  for (Stored& one : without_prefix) one.tensor.name = one.tensor.name.substr(std::string("model.").size());
  for (const std::vector<Stored>& stored : {OfQwen(), OfMixtral(), Packed(), without_prefix})
    for (const size_t files : {1, 4}) {
      FolderOfWeights weights = Folder(stored, files);
      EXPECT_THAT(weights.RequireFit(kModel), ElementsAre());
      for (size_t w = 0; w < kModel.size(); ++w) {
        const std::vector<float> expected = ValuesOf(w);
        std::vector<float> whole(expected.size());
        weights.Read(kModel[w].name, 0, std::ssize(whole), whole.data());
        EXPECT_EQ(whole, expected) << kModel[w].name << " of " << stored[2].tensor.name;
        // Every range, most of which begin and end inside of experts.
        for (int64_t first = 0; first < std::ssize(whole); first += 4)
          for (int64_t count = 1; first + count <= std::ssize(whole); count += 9) {
            std::vector<float> range(static_cast<size_t>(count));
            weights.Read(kModel[w].name, first, count, range.data());
            ASSERT_EQ(range, std::vector(expected.begin() + first, expected.begin() + first + count));
          }
      }
    }
}

TEST_F(WeightsOfExperts, OfGptOssAreTransposedAndInterleaved) {
  FolderOfWeights weights = Folder(FilesOfGptOss(), 3);
  EXPECT_THAT(weights.RequireFit(kGptOss), ElementsAre());
  EXPECT_FALSE(weights.HasMxfp4());
  for (size_t w = 0; w < kGptOss.size(); ++w)
    for (int64_t first = 0, all = Volume(kGptOss[w].shape); first < all; ++first) {
      const int64_t count = std::min<int64_t>(all - first, 23);
      std::vector<float> range(static_cast<size_t>(count));
      weights.Read(kGptOss[w].name, first, count, range.data());
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(range[static_cast<size_t>(i)], Value(w, first + i)) << kGptOss[w].name << " " << first + i;
    }
  // The files have what an export would write of them.
  std::map<std::string, std::vector<float>> files;
  for (const ExportUnit& unit : ExportUnits(kGptOss, "GptOssForCausalLM")) {
    ASSERT_EQ(unit.tensors.size(), 1u);
    std::vector<float>& file = files[unit.tensors[0].name];
    file.resize(static_cast<size_t>(Volume(unit.tensors[0].shape)), -1);
    for (size_t w = 0; w < unit.weights.size(); ++w) {
      if (unit.parts.empty())
        for (size_t i = 0; i < file.size(); ++i) file[i] = Value(unit.weights[w], static_cast<int64_t>(i));
      int64_t element = 0;
      for (const FilePart& part : unit.parts.empty() ? std::vector<FilePart>() : unit.parts[w])
        for (int64_t i = 0; i < part.count; ++i, ++element)
          file[static_cast<size_t>(part.first + part.places.Of(i))] = Value(unit.weights[w], element);
    }
  }
  EXPECT_EQ(files.size(), kOfGptOss.size());
  for (const Stored& one : FilesOfGptOss()) EXPECT_EQ(files[one.tensor.name], one.values) << one.tensor.name;
}

// Two experts of 3 x 64 and 64 x 3: of the up projection blocks, of the down projection none, since 3 is no multiple of
// 32.
TEST_F(WeightsOfExperts, BlocksOfFourBitsAreWidened) {
  constexpr int64_t kWidth = 64, kRows = 6, kBlocks = 2 * kRows * 2;
  std::string blocks, scales;
  for (int64_t i = 0; i < kBlocks * 16; ++i) blocks += static_cast<char>(i * 37 % 256);
  for (int64_t i = 0; i < kBlocks; ++i) scales += static_cast<char>(i == 5 ? 255 : i == 6 ? 0 : 120 + i % 9);
  const std::string bias(2 * kRows * 4, '\0');
  const nlohmann::json header = {
      {"model.layers.1.mlp.experts.gate_up_proj_blocks",
       {{"dtype", "U8"}, {"shape", {2, kRows, 2, 16}}, {"data_offsets", {0, blocks.size()}}}},
      {"model.layers.1.mlp.experts.gate_up_proj_scales",
       {{"dtype", "U8"}, {"shape", {2, kRows, 2}}, {"data_offsets", {blocks.size(), blocks.size() + scales.size()}}}},
      {"model.layers.1.mlp.experts.gate_up_proj_bias",
       {{"dtype", "F32"},
        {"shape", {2, kRows}},
        {"data_offsets", {blocks.size() + scales.size(), blocks.size() + scales.size() + bias.size()}}}}};
  const std::string text = header.dump(), dir = home_.path() + "/mxfp4";
  const auto length = static_cast<uint64_t>(text.size());
  fs::create_directory(dir);
  {
    std::ofstream file(dir + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << text << blocks << scales << bias;
  }
  const std::string at = "model.layers.1.mlp.experts.";
  const std::vector<Tensor> wanted = {{at + "gate_proj.weight", {2, 3, kWidth}},
                                      {at + "up_proj.weight", {2, 3, kWidth}},
                                      {at + "gate_proj.bias", {2, 3}},
                                      {at + "up_proj.bias", {2, 3}}};
  FolderOfWeights weights(dir);
  EXPECT_THAT(weights.RequireFit(wanted), ElementsAre());
  EXPECT_TRUE(weights.HasMxfp4());
  EXPECT_EQ(weights.Dtypes(), (Strings{"F32", "U8"}));
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int64_t second : {0, 1}) {
    std::vector<float> found(2 * 3 * kWidth);
    weights.Read(wanted[static_cast<size_t>(second)].name, 0, std::ssize(found), found.data());
    for (int64_t i = 0; i < std::ssize(found); ++i) {
      const int64_t row = i / kWidth, of_file = row / 3 * kRows + 2 * (row % 3) + second, column = i % kWidth;
      const int64_t block = of_file * 2 + column / 32;
      const int byte = static_cast<uint8_t>(blocks[static_cast<size_t>(block * 16 + column % 32 / 2)]);
      const int code = column % 2 == 0 ? byte % 16 : byte / 16;
      const int scale = static_cast<uint8_t>(scales[static_cast<size_t>(block)]);
      const double expected = std::ldexp(kValues[code % 8], scale - 127) * (code >= 8 ? -1 : 1);
      if (scale == 255)
        ASSERT_TRUE(std::isnan(found[static_cast<size_t>(i)]));
      else
        ASSERT_EQ(double(found[static_cast<size_t>(i)]), expected) << i;
    }
  }
}

TEST_F(WeightsOfExperts, AreSplitByAnExport) {
  const auto names = [](const char* architecture) {
    Strings found;
    for (const ExportUnit& unit : ExportUnits(kModel, architecture))
      for (const Tensor& tensor : unit.tensors)
        found.push_back(fmt::format("{} {}", tensor.name, ToString(tensor.shape)));
    return found;
  };
  const auto expected = [](const std::vector<Stored>& stored) {
    Strings found;
    for (const Stored& one : stored) found.push_back(fmt::format("{} {}", one.tensor.name, ToString(one.tensor.shape)));
    return found;
  };
  EXPECT_THAT(names("MixtralForCausalLM"), testing::UnorderedElementsAreArray(expected(OfMixtral())));
  for (const char* architecture : {"Qwen3MoeForCausalLM", "OlmoeForCausalLM"})
    EXPECT_THAT(names(architecture), testing::UnorderedElementsAreArray(expected(OfQwen())));
  EXPECT_EQ(names("MixtralForCausalLM")[2], "model.layers.1.block_sparse_moe.experts.0.w1.weight [3,7]");
  EXPECT_EQ(names("MixtralForCausalLM")[6], "model.layers.1.block_sparse_moe.experts.4.w1.weight [3,7]");
}

TEST_F(WeightsOfExperts, EachTensorHasOneMessage) {
  const auto without = [](std::vector<Stored> stored, const std::function<bool(const std::string&)>& gone) {
    std::erase_if(stored, [&](const Stored& one) { return gone(one.tensor.name); });
    return stored;
  };
  const auto contains = [](const char* text) {
    return [text](const std::string& name) { return name.find(text) != name.npos; };
  };
  EXPECT_THAT(Refusal(without(OfQwen(), contains(".3.up_proj"))),
              ElementsAre("model.layers.1.mlp.experts.3.up_proj.weight: missing"));
  EXPECT_THAT(Refusal(without(OfMixtral(),
                              [](const std::string& name) {
                                return name.ends_with("0.w2.weight") || name.ends_with("2.w2.weight") ||
                                       name.ends_with("3.w2.weight");
                              })),
              ElementsAre("model.layers.1.block_sparse_moe.experts.0.w2.weight: missing, and 2 more alike"));
  EXPECT_THAT(Refusal(without(OfQwen(), contains(".down_proj"))),
              ElementsAre("model.layers.1.mlp.experts.down_proj.weight: missing"));
  EXPECT_THAT(Refusal(without(Packed(), contains("gate_up_proj"))),
              ElementsAre("model.layers.1.mlp.experts.gate_proj.weight: missing",
                          "model.layers.1.mlp.experts.up_proj.weight: missing"));

  std::vector<Stored> more = OfQwen();
  for (int64_t j : {5, 6}) more.push_back(Part(fmt::format("model.layers.1.mlp.experts.{}.up_proj.weight", j), {1}, 3));
  EXPECT_THAT(Refusal(more),
              ElementsAre("model.layers.1.mlp.experts.5.up_proj.weight: unknown to the model, and 1 more "
                          "alike"));
  std::vector<Stored> turned = OfQwen();
  for (Stored& one : turned)
    if (one.tensor.shape == Shape{kDim, kFfn}) one.tensor.shape = {kFfn, kDim};
  EXPECT_THAT(Refusal(turned), ElementsAre("model.layers.1.mlp.experts.0.down_proj.weight: [3,7], but the model has [7,"
                                           "3], and 4 more alike"));
  std::vector<Stored> fewer = Packed();
  fewer[2].tensor.shape = {kExperts - 1, 2 * kFfn, kDim};
  fewer[2].values.resize(static_cast<size_t>(Volume(fewer[2].tensor.shape)));
  EXPECT_THAT(Refusal(fewer),
              ElementsAre("model.layers.1.mlp.experts.gate_up_proj: [4,6,7], but the model has [5,6,7]"));
}

TEST(ExpertNames, LoseTheirNumber) {
  EXPECT_EQ(WithoutExpertNumber("model.layers.1.mlp.experts.12.up_proj.weight"),
            "model.layers.1.mlp.experts.*.up_proj.weight");
  for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.experts.gate_up_proj",
                           "model.layers.1.mlp.experts.", "experts.3"})
    EXPECT_EQ(WithoutExpertNumber(name), name);
}

}  // namespace
}  // namespace espalier
