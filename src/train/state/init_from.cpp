#include "train/state/init_from.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/checkpoint/runs.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/deck/compare.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/huggingface/model_config.hpp"
#include "espalier/huggingface/weights.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/hint.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBuffer = 1 << 20;  // elements
constexpr int64_t kElement = sizeof(float);

bool IsHuggingFace(const std::string& from) { return fs::exists(from + "/config.json"); }

/// The deck with model, experts and dropout of a config.json, on one rank: no other keys are compared.
Deck DeckOf(const ModelConfig& config, const Deck& deck, const std::string& from) {
  std::vector<std::string> keys = {"parallel.pp=1",          "parallel.dp_replicate=1", "parallel.dp_shard=1",
                                   "parallel.cp=1",          "parallel.tp=1",           "parallel.ep=1",
                                   "pipeline.schedule=1f1b", "pipeline.chunks=1",       "pipeline.split=[]",
                                   "batch.ramp_start=0",     "dropout.embedding=0",     "dropout.residual=0",
                                   "dropout.attention=0",    "experts.count=0"};
  for (const auto& [key, value] : config.keys) keys.push_back(key + "=" + value);
  return SavedDeck(from, EffectiveDeck(deck), keys);
}

bool IsOfTheModel(const std::string& key) {
  return key.starts_with("model.") || key.starts_with("experts.") || key.starts_with("dropout.");
}

/// Refuses weights of another model. Returns the keys that change the outputs of the same weights.
std::vector<std::string> Compare(const std::string& from, const Deck& saved, const LoadedDeck& now) {
  std::vector<std::string> fixed, others;
  for (const DeckDifference& difference : Differences(saved, now))
    if (IsOfTheModel(difference.key) && difference.key != "model.mtp_layers") {
      const std::string text =
          fmt::format("{} = {} ({}), {} there", difference.key, difference.now, difference.origin, difference.before);
      if (difference.fixed) fixed.push_back(Hint(text));
      if (!difference.fixed && difference.computes) others.push_back(text);
    }
  if (fixed.empty()) return others;
  fixed.insert(fixed.begin(),
               fmt::format("run.init_from = \"{}\" has the weights of another model; keys that differ:", from));
  throw UserError(ExitStatus::kData, std::move(fixed));
}

Box WholeOf(const Shape& shape) {
  Box box;
  for (int64_t extent : shape) box.push_back({0, extent});
  return box;
}

/// Chooses the weights to read. Layers for further tokens beyond the first `further` stay as they were drawn.
class Wanted {
 public:
  Wanted(const Deck::Model& model, int64_t further) : end_(model.layers + further) {}
  bool operator()(const StateTensor& tensor) const {
    return tensor.name.starts_with(kParameterPrefix) && LayerOfWeight(ParameterName(tensor.name)) < end_;
  }

 private:
  int64_t end_;
};

/// Says which layers for further tokens the start lacks; empty: none.
std::string FurtherText(const Deck::Model& model, int64_t further) {
  if (model.mtp_layers <= further) return "";
  return fmt::format("has {} of model.mtp_layers = {} layers for further tokens; the others are drawn with run.seed",
                     further, model.mtp_layers);
}

void FillFrom(const FolderOfWeights& weights, const Programs& programs, const Wanted& wanted) {
  std::vector<float> buffer(static_cast<size_t>(kBuffer));
  for (const LocalTensor& local : programs.local()) {
    const StateTensor& tensor = *local.tensor;
    if (!wanted(tensor)) continue;
    const Box box = tensor.StoredBox(programs.compilation().mesh, programs.coordinate());
    for (Runs run(WholeOf(tensor.StoredShape()), box); !run.Done(); run.Next()) {
      for (int64_t done = 0; done < run.Count(); done += kBuffer) {
        const int64_t some = std::min(kBuffer, run.Count() - done);
        weights.Read(ParameterName(tensor.StoredName()), run.From() + done, some, buffer.data());
        local.arena->Write(static_cast<float*>(local.data) + run.To() + done, buffer.data(), some * kElement);
      }
    }
  }
}

/// Returns rank 0's messages.
std::vector<std::string> FromHuggingFace(const std::string& from, const LoadedDeck& loaded, const Programs& programs,
                                         bool is_rank_zero) {
  const ModelConfig config = ReadModelConfig(from);
  std::vector<std::string> lines = Compare(from, DeckOf(config, loaded.deck, from), loaded);
  FolderOfWeights weights(from);
  const Deck::Model& model = loaded.deck.model;
  const int64_t further = weights.FurtherLayers(model.layers, config.further_layers);
  const Wanted is_wanted(model, std::min<int64_t>(further, model.mtp_layers));
  std::vector<SafetensorsWriter::Tensor> wanted;
  for (const StateTensor& tensor : programs.tensors())
    if (is_wanted(tensor)) wanted.push_back({ParameterName(tensor.StoredName()), tensor.StoredShape()});
  const std::vector<std::string> unused = weights.RequireFit(wanted, further - model.mtp_layers);
  FillFrom(weights, programs, is_wanted);
  if (std::string text = FurtherText(model, further); !text.empty()) lines.push_back(std::move(text));
  if (is_rank_zero && model.mtp_layers > 0)
    for (const std::string& name : weights.DifferingCopies()) lines.push_back(OtherCopy(name));
  if (weights.HasMxfp4()) lines.push_back("MXFP4 was widened to fp32, which has all its values");
  lines.insert(lines.begin(), fmt::format("starts from the weights of {} ({})", from, config.architecture));
  if (!unused.empty()) lines.push_back(fmt::format("not needed, in its files: {}", fmt::join(unused, ", ")));
  if (!config.unused.empty())
    lines.push_back(fmt::format("without a meaning here, in its config.json: {}", fmt::join(config.unused, ", ")));
  return lines;
}

std::vector<std::string> FromCheckpoint(const std::string& from, const LoadedDeck& loaded, const Programs& programs,
                                        World& world) {
  const FailureRules rules = AnyFailureIs(ExitStatus::kData);
  const std::string dir = OnRankZero(
      world, [&] { return Resolve(from, from); }, rules);
  std::vector<std::string> lines;
  const int64_t further = OnRankZero(
      world,
      [&] {
        const Deck saved = SavedDeck(dir, ReadMetadata(dir).deck);
        lines = Compare(from, saved, loaded);
        return saved.model.mtp_layers;
      },
      rules);
  if (std::string text = FurtherText(loaded.deck.model, further); !text.empty()) lines.push_back(std::move(text));
  const Wanted is_wanted(loaded.deck.model, further);
  std::vector<StateTensor> tensors;
  std::vector<LocalTensor> local;
  for (const StateTensor& tensor : programs.tensors())
    if (is_wanted(tensor)) tensors.push_back(tensor);
  for (const LocalTensor& tensor : programs.local())
    if (is_wanted(*tensor.tensor)) local.push_back(tensor);
  const Metadata saved = Load(dir, tensors, local, programs.compilation().mesh, world, Coverage::kSome);
  lines.insert(lines.begin(), fmt::format("starts from the weights of {} (step {})", dir, saved.step));
  return lines;
}

}  // namespace

void LoadInitialWeights(const LoadedDeck& loaded, const Programs& programs, World& world) {
  const std::string& from = loaded.deck.run.init_from;
  const bool folder = OnRankZero(world, [&] { return IsHuggingFace(from); });
  std::vector<std::string> lines;
  if (folder)
    OnAllRanks(
        world, [&] { lines = FromHuggingFace(from, loaded, programs, world.Rank() == 0); },
        AnyFailureIs(ExitStatus::kData));
  else
    lines = FromCheckpoint(from, loaded, programs, world);
  if (world.Rank() == 0)
    for (const std::string& line : lines) spdlog::info("run.init_from: {}", line);
}

}  // namespace espalier
