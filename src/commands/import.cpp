// espalier import: a Hugging Face model becomes a run at step 0. Weights go from file to file in chunks; the moments of
// the optimizer are zero, so the checkpoint has none.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "commands.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/huggingface/model_config.hpp"
#include "espalier/huggingface/weights.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// A key of the deck, its value as TOML, and a remark.
struct Line {
  std::string key, value, remark;
};

/// The tokenizer of a Hugging Face folder: its file, or why there is none.
struct FoundTokenizer {
  std::string path;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string why_none;
};

FoundTokenizer FindTokenizer(const std::string& folder, int64_t vocab) {
  const std::string file = TokenizerIn(folder);
  if (file.empty()) return {"", nullptr, fmt::format("{} has neither tokenizer.json nor tokenizer.model", folder)};
  const std::string path = fs::absolute(file).lexically_normal().string();
  try {
    auto tokenizer = Tokenizer::Load(path);
    if (tokenizer->vocab() <= vocab) return {path, std::move(tokenizer), ""};
    return {"", nullptr,
            fmt::format("{}: its {} tokens are more than the model's {}", path, tokenizer->vocab(), vocab)};
  } catch (const UserError& error) {
    return {"", nullptr, fmt::format("{}", fmt::join(error.messages(), "; "))};
  }
}

/// The files that are kept with a tokenizer.
std::vector<std::string> CompanionsOf(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (IsTokenizerCompanion(entry.path().filename().string())) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The value of a key of the model; empty if it has none.
std::string ValueOf(const ModelConfig& config, std::string_view key) {
  const auto found = std::ranges::find(config.keys, key, &std::pair<std::string, std::string>::first);
  return found == config.keys.end() ? "" : found->second;
}
int64_t VocabOf(const ModelConfig& config) { return std::stoll(ValueOf(config, "model.vocab")); }

/// Makes experts of a dense model's feed-forward networks (Komatsuzaki et al. 2022, "sparse upcycling"). The weights of
/// a token's experts sum to 1, so at first the model computes what the dense one does.
void AddExperts(ModelConfig& config, const ImportOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(ExitStatus::kDeck, fmt::format("command line: --experts {}: {}", *options.experts, why));
  };
  if (*options.experts < 1) refuse("must be at least 1");
  if (options.per_token < 1 || options.per_token > *options.experts)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("command line: --per-token {}: must be 1 to {}, the number of experts",
                                options.per_token, *options.experts));
  if (ValueOf(config, "model.family") != "\"llama\"" || ValueOf(config, "model.mlp_bias") == "true")
    refuse(fmt::format("the feed-forward network of {} {}: leave it out", config.architecture,
                       ValueOf(config, "model.mlp_bias") == "true" ? "has biases" : "has no gate"));
  if (!ValueOf(config, "experts.count").empty())
    refuse(fmt::format("{} has experts already (leave it out)", config.architecture));
  config.keys.emplace_back("experts.count", fmt::format("{}", *options.experts));
  config.keys.emplace_back("experts.per_token", fmt::format("{}", options.per_token));
  config.keys.emplace_back("experts.ffn_dim", ValueOf(config, "model.ffn_dim"));
}

bool Gives(const std::vector<std::string>& overrides, const std::string& key) {
  return std::ranges::any_of(overrides, [&](const std::string& text) { return text.starts_with(key + "="); });
}

/// The deck of an import: the exact model, and the other keys that a run needs.
std::vector<Line> LinesOf(const ModelConfig& config, const FoundTokenizer& found, const ImportOptions& options) {
  std::vector<Line> lines;
  if (!Gives(options.overrides, "run.epochs")) lines.push_back({"run.steps", "1000", "optimizer steps"});
  lines.push_back({"run.dir", TomlString(fs::absolute(options.run_dir).lexically_normal().string()), ""});
  for (const auto& [key, value] : config.keys) lines.push_back({key, value, ""});
  const std::vector<Line> others = {
      {"batch.global", "8", "sequences per step"},
      {"batch.micro", "1", "sequences per microbatch and data-parallel rank"},
      {"optimizer.lr", "1e-05", "to train a model further; from random weights it is some ten times larger"},
      {"lr.warmup_steps", "100", "the optimizer's moments begin at zero"},
      {"data.format", "\"auto\"", "text, jsonl or token ids, as each file says: doc/data.md"},
      {"data.paths", "[\"train.bin\"]", "your data"},
  };
  lines.insert(lines.end(), others.begin(), others.end());
  if (found.tokenizer)
    lines.push_back({"data.tokenizer", TomlString(found.path), "kept in every checkpoint, for sample and export"});
  return lines;
}

std::string SectionOf(const std::string& key) { return key.substr(0, key.find('.')); }

std::string DeckText(const std::vector<Line>& lines, const std::string& head) {
  std::string text = head;
  for (const DeckSection& section : DeckSections()) {
    std::string part;
    for (const Line& line : lines)
      if (SectionOf(line.key) == section.name)
        part += fmt::format("{} = {}{}\n", line.key.substr(line.key.find('.') + 1), line.value,
                            line.remark.empty() ? "" : "  # " + line.remark);
    if (!part.empty()) text += fmt::format("\n[{}]\n{}", section.name, part);
  }
  return text;
}

/// Takes the layers for further tokens that the files have. Returns their number.
int64_t AddFurtherLayers(ModelConfig& config, const FolderOfWeights& weights) {
  const int64_t further = weights.FurtherLayers(std::stoll(ValueOf(config, "model.layers")), config.further_layers);
  if (further > 0) config.keys.emplace_back("model.mtp_layers", std::to_string(further));
  return further;
}

/// The lines with the values of the overrides, and the other overrides.
std::vector<Line> WithOverrides(std::vector<Line> lines, const std::vector<std::string>& overrides, const Deck& deck) {
  for (const std::string& override : overrides) {
    const std::string key = override.substr(0, override.find('='));
    const DeckKey* row = FindDeckKey(key);
    if (row == nullptr) continue;
    const std::string value = ToToml(Get(deck, *row));
    const auto line = std::ranges::find(lines, key, &Line::key);
    if (line != lines.end())
      *line = {key, value, ""};
    else
      lines.push_back({key, value, ""});
  }
  return lines;
}

LoadedDeck DeckOf(const std::vector<Line>& lines, const std::string& head, const ImportOptions& options) {
  return ParseDeck(DeckText(lines, head), fs::absolute(options.run_dir + "/deck.toml").string(), options.overrides);
}

/// Limits the warm-up to a tenth of the run, if its length is known.
void ShortenWarmUp(std::vector<Line>& lines, int64_t steps) {
  if (steps == 0) return;
  const auto line = std::ranges::find(lines, "lr.warmup_steps", &Line::key);
  line->value = fmt::format("{}", std::clamp<int64_t>(steps / 10, 1, std::stoll(line->value)));
}

/// By tensor: number of its weights that are NaN or infinite. None if all are finite.
using NotFiniteWeights = std::map<std::string, int64_t>;

/// Reads a part of a weight of the deck's model: from the folder, or as a copy of a dense one's weight for each expert,
/// or drawn.
class WeightReader {
 public:
  WeightReader(const FolderOfWeights& weights, const Deck& deck, bool upcycled)
      : weights_(weights), deck_(deck), upcycled_(upcycled) {}

  void Read(const std::string& name, const Shape& shape, int64_t first, int64_t count, float* out) const {
    constexpr std::string_view kExperts = ".mlp.experts.", kRouter = ".mlp.gate.weight";
    const size_t experts = name.find(kExperts);
    if (upcycled_ && name.ends_with(kRouter)) {
      FillNormalRun(out, StreamKey(deck_.run.seed, name), first, count, deck_.model.init_std);
    } else if (upcycled_ && experts != name.npos) {
      const std::string dense = name.substr(0, experts) + ".mlp." + name.substr(experts + kExperts.size());
      for (const int64_t each = shape[1] * shape[2], end = first + count; first < end;) {
        const int64_t some = std::min(end - first, each - first % each);
        weights_.Read(dense, first % each, some, out);
        first += some, out += some;
      }
    } else {
      weights_.Read(name, first, count, out);
    }
  }

 private:
  const FolderOfWeights& weights_;
  const Deck& deck_;
  const bool upcycled_;
};

/// Tensors that a save reads chunk by chunk, each once; it counts weights that are not finite.
std::vector<LocalTensor> FromFolder(const std::vector<StateTensor>& tensors, const WeightReader& weights,
                                    NotFiniteWeights& not_finite) {
  std::vector<LocalTensor> local;
  for (const StateTensor& tensor : tensors) {
    LocalTensor from{.tensor = &tensor};
    from.read = [&, name = ParameterName(tensor.name)](int64_t first, int64_t count, float* out) {
      weights.Read(name, tensor.type.shape, first, count, out);
      const auto bad = std::count_if(out, out + count, [](float x) { return !std::isfinite(x); });
      if (bad > 0) not_finite[name] += bad;
    };
    local.push_back(std::move(from));
  }
  return local;
}

void Warn(const NotFiniteWeights& not_finite) {
  constexpr size_t kMaxNamed = 20;
  std::vector<std::string> tensors;
  for (const auto& [name, count] : not_finite)
    if (tensors.size() < kMaxNamed) tensors.push_back(fmt::format("{} ({})", name, count));
  if (not_finite.size() > kMaxNamed) tensors.push_back(fmt::format("{} more", not_finite.size() - kMaxNamed));
  if (!not_finite.empty())
    spdlog::warn("weights that are NaN or infinite, with which no step is finite: {}", fmt::join(tensors, ", "));
}

void RefuseUsed(const std::string& run_dir) {
  for (const char* name : {"deck.toml", "checkpoints"})
    if (fs::exists(fs::symlink_status(run_dir + "/" + name)))
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("command line: {}/{} is there already: give another RUN_DIR, or remove it", run_dir, name));
}

/// The dropout of the deck, which changes how a model trains, but not what it is.
void PrintDropout(const Deck::Dropout& d, bool left_out) {
  if (d.embedding > 0 || d.residual > 0 || d.attention > 0)
    fmt::print(
        "dropout: training drops embedding {}, residual {}, attention {}, as Hugging Face's Trainer does; to train "
        "without: --without-dropout, or [dropout] of the deck\n",
        d.embedding, d.residual, d.attention);
  else if (left_out)
    fmt::print("dropout: none, by --without-dropout\n");
}

/// The tokenizer, and the files that are kept with it.
void PrintTokenizer(const FoundTokenizer& found, const std::string& folder) {
  fmt::print("tokenizer: {}\n", found.tokenizer ? found.path : "none: " + found.why_none);
  if (!found.tokenizer) {
    const std::vector<std::string> lost = CompanionsOf(folder);
    if (!lost.empty()) fmt::print("not kept without a tokenizer: {}\n", fmt::join(lost, ", "));
    return;
  }
  if (!found.tokenizer->companions().empty()) fmt::print("kept with it: {}\n", found.tokenizer->CompanionNames());
  for (const std::string& why : found.tokenizer->left_out()) fmt::print("not kept: {}\n", why);
}

/// The weights of the model that the folder has: of an upcycled one the dense model's.
std::vector<SafetensorsWriter::Tensor> InFolder(Deck deck, bool upcycled) {
  if (upcycled) deck.model.experts.count = 0;
  std::vector<SafetensorsWriter::Tensor> wanted;
  for (const StateTensor& tensor : ParameterTensors(deck))
    wanted.push_back({ParameterName(tensor.name), tensor.type.shape});
  return wanted;
}

/// Layers that predict further tokens, and copies in them that are not what the model shares.
void PrintFurtherTokens(const Deck& deck, const ModelConfig& config, const FolderOfWeights& weights, int64_t further) {
  if (config.further_layers > 0)
    fmt::print("further tokens: model.mtp_layers = {}; the files have {} of {} layers\n", deck.model.mtp_layers,
               further, config.further_layers);
  if (deck.model.mtp_layers == 0) return;
  for (const std::string& name : weights.DifferingCopies()) spdlog::warn("{}", OtherCopy(name));
}

void PrintExperts(const Deck& deck) {
  fmt::print("experts: {} copies of each feed-forward network, {} of them for a token; routers drawn with seed {}\n",
             deck.model.experts.count, deck.model.experts.per_token, deck.run.seed);
}

/// Says which weights were converted, and which parts of the folder the run does not have.
void PrintConversions(const FolderOfWeights& weights, const ModelConfig& config,
                      const std::vector<std::string>& unused) {
  if (std::ranges::count(weights.Dtypes(), "F64") > 0) fmt::print("F64 was rounded to fp32\n");
  if (weights.HasMxfp4()) fmt::print("MXFP4 was widened to fp32, which has all its values\n");
  if (!config.unused.empty())
    fmt::print("without a meaning here, in config.json: {}\n", fmt::join(config.unused, ", "));
  if (!unused.empty()) fmt::print("not needed, in the files: {}\n", fmt::join(unused, ", "));
}

}  // namespace

int ImportCommand(const ImportOptions& options) {
  RefuseUsed(options.run_dir);
  ModelConfig config = ReadModelConfig(options.folder, options.without_dropout ? Dropout::kLeaveOut : Dropout::kTake);
  FolderOfWeights weights(options.folder);
  const int64_t further = AddFurtherLayers(config, weights);
  const bool upcycled = options.experts.has_value();
  if (upcycled) AddExperts(config, options);
  const std::string head =
      fmt::format("# The {} of {}, by espalier import: its weights are step 0 of this run.\n", config.architecture,
                  TomlString(fs::absolute(options.folder).lexically_normal().string()));
  const FoundTokenizer found = FindTokenizer(options.folder, VocabOf(config));
  std::vector<Line> lines = LinesOf(config, found, options);
  const std::string path = options.run_dir + "/deck.toml";
  ShortenWarmUp(lines, CountSteps(DeckOf(lines, head, options)).loaded.deck.run.steps);
  const Deck deck = DeckOf(lines, head, options).deck;
  if (fs::absolute(deck.run.dir).lexically_normal() != fs::absolute(options.run_dir).lexically_normal())
    throw UserError(ExitStatus::kDeck, fmt::format("command line: run.dir = {}: here it is RUN_DIR, {} (leave it out)",
                                                   deck.run.dir, options.run_dir));
  const std::vector<StateTensor> tensors = ParameterTensors(deck);
  const std::vector<std::string> unused = weights.RequireFit(InFolder(deck, upcycled), further - deck.model.mtp_layers);

  NotFiniteWeights not_finite;
  const WeightReader reader(weights, deck, upcycled);
  InitializeStorage();
  SelfWorld world;
  const SaveResult saved =
      Save((fs::path(deck.run.dir) / "checkpoints").string(),
           {.step = 0,
            .samples = 0,
            .version = kVersion,
            .git_hash = kGitHash,
            .losses = {},
            .deck = EffectiveDeck(deck),
            .lineage = Lineage{},
            .tokenizer = found.tokenizer},
           tensors, FromFolder(tensors, reader, not_finite), Mesh(Coordinate{1, 1, 1, 1, 1, 1, 1}), world, 1);
  WriteWhole(path, DeckText(WithOverrides(lines, options.overrides, deck), head));
  fmt::print("{}: {} tensors ({}) of {} are step 0 of this run\n", saved.dir, tensors.size(),
             fmt::join(weights.Dtypes(), ", "), config.architecture);
  if (upcycled) PrintExperts(deck);
  PrintFurtherTokens(deck, config, weights, further);
  std::fflush(stdout);
  Warn(not_finite);
  PrintTokenizer(found, options.folder);
  PrintDropout(deck.dropout, options.without_dropout);
  PrintConversions(weights, config, unused);
  fmt::print("to train it: espalier {}{}\n", path, Gives(options.overrides, "data.paths") ? "" : " data.paths=FILE");
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
