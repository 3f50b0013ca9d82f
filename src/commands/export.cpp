// espalier export: writes the weights of a checkpoint as a Hugging Face folder, which a rename makes visible. Tensors
// are read in groups no larger than the largest of them. A tensor with all experts of a layer becomes one per expert,
// or with gpt-oss a part of one tensor.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/huggingface/expert_tensors.hpp"
#include "espalier/huggingface/model_config.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

using Tensors = std::vector<StateTensor>;
using Written = std::vector<SafetensorsWriter::Tensor>;

int64_t Elements(const StateTensor& tensor) { return Volume(tensor.type.shape); }
int64_t Elements(const SafetensorsWriter::Tensor& tensor) { return Volume(tensor.shape); }

template <typename List>
int64_t AllElements(const List& tensors) {
  int64_t elements = 0;
  for (const auto& tensor : tensors) elements += Elements(tensor);
  return elements;
}

/// Tensors of the checkpoint that are written together.
struct Unit {
  Tensors tensors;
  ExportUnit written;
};
int64_t Elements(const Unit& unit) { return AllElements(unit.tensors); }

/// Runs of tensors, each at most `most` elements unless it is a single tensor.
template <typename List>
std::vector<List> Groups(const List& tensors, int64_t most) {
  std::vector<List> groups;
  int64_t held = 0;
  for (const auto& tensor : tensors) {
    if (groups.empty() || held + Elements(tensor) > most) {
      groups.emplace_back();
      held = 0;
    }
    groups.back().push_back(tensor);
    held += Elements(tensor);
  }
  return groups;
}

/// A folder that gets its final name when it is complete; otherwise it is removed.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path)
      : path_(fs::absolute(path).lexically_normal()), partial_(path_.string() + fmt::format(".partial-{}", getpid())) {
    if (path_.filename().empty())
      path_ = path_.parent_path(), partial_ = path_.string() + fmt::format(".partial-{}", getpid());
    std::error_code error;
    const bool empty = fs::is_directory(path_, error) && fs::is_empty(path_, error);
    if (fs::exists(fs::symlink_status(path_)) && !empty)
      throw UserError(ExitStatus::kDeck, fmt::format("command line: {} is there already: give another folder, or "
                                                     "remove it",
                                                     path));
    fs::create_directories(path_.parent_path());
    fs::create_directory(partial_);
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(partial_, ignored);
  }
  std::string File(const std::string& name) const { return (partial_ / name).string(); }
  void Write(const std::string& name, const std::string& text) const { WriteWhole(File(name), text); }
  void Commit() {
    fs::rename(partial_, path_);
    committed_ = true;
  }

 private:
  fs::path path_, partial_;
  bool committed_ = false;
};

std::string FileName(size_t file, size_t files) {
  return files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files);
}

/// The safetensors of a folder, filled one after the other.
class Files {
 public:
  Files(const NewFolder& folder, std::vector<Written> files, SafeDtype dtype)
      : folder_(folder), files_(std::move(files)), dtype_(dtype) {}

  /// The next elements, of any number of files.
  void Append(const float* values, int64_t count) {
    while (count > 0) {
      if (left_ == 0) Open();
      const int64_t some = std::min(count, left_);
      writer_->Append(values, some);
      values += some, count -= some, left_ -= some;
      if (left_ == 0) writer_->Close();
    }
  }

 private:
  void Open() {
    const Written& tensors = files_[next_];
    writer_.emplace(folder_.File(FileName(next_++, files_.size())), dtype_, tensors);
    left_ = AllElements(tensors);
  }

  const NewFolder& folder_;
  const std::vector<Written> files_;
  const SafeDtype dtype_;
  std::optional<SafetensorsWriter> writer_;
  size_t next_ = 0;
  int64_t left_ = 0;  ///< elements of the open file to come
};

/// Reads groups of tensors of one checkpoint, and checks every byte.
class Source {
 public:
  explicit Source(std::string dir) : dir_(std::move(dir)) {}

  void Append(const std::vector<Unit>& group, Files& files) {
    memory_.resize(static_cast<size_t>(AllElements(group)));
    Tensors tensors;
    for (const Unit& unit : group) tensors.insert(tensors.end(), unit.tensors.begin(), unit.tensors.end());
    std::vector<LocalTensor> local;
    float* at = memory_.data();
    for (const StateTensor& tensor : tensors) {
      local.push_back({.tensor = &tensor, .data = at});
      at += Elements(tensor);
    }
    SelfWorld world;
    Load(dir_, tensors, local, Mesh(Coordinate{1, 1, 1, 1, 1, 1, 1}), world, Coverage::kSome);
    at = memory_.data();
    for (const Unit& unit : group) {
      if (unit.written.parts.empty())
        files.Append(at, Elements(unit));
      else
        Interleave(unit, at, files);
      at += Elements(unit);
    }
  }

 private:
  /// Share by share: one of each weight's parts is in each.
  static void Interleave(const Unit& unit, const float* elements, Files& files) {
    const size_t shares = unit.written.parts[0].size();
    std::vector<float> share(static_cast<size_t>(Elements(unit)) / shares);
    for (size_t s = 0; s < shares; ++s) {
      const float* weight = elements;
      for (size_t w = 0; w < unit.tensors.size(); ++w) {
        const FilePart& part = unit.written.parts[w][s];
        const int64_t first = part.first - static_cast<int64_t>(s) * std::ssize(share);
        const float* from = weight + static_cast<int64_t>(s) * part.count;
        for (int64_t i = 0; i < part.count; ++i) share[static_cast<size_t>(first + part.places.Of(i))] = from[i];
        weight += Elements(unit.tensors[w]);
      }
      files.Append(share.data(), std::ssize(share));
    }
  }

  const std::string dir_;
  std::vector<float> memory_;
};

std::string IndexOf(const std::vector<Written>& files, int64_t element_bytes) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t elements = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    for (const SafetensorsWriter::Tensor& tensor : files[f]) map[tensor.name] = FileName(f, files.size());
    elements += AllElements(files[f]);
  }
  const nlohmann::ordered_json index = {
      {"metadata", {{"total_parameters", elements}, {"total_size", elements * element_bytes}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

/// A weight that a layer for further tokens shares with the model. Inference engines look for it in that layer.
struct Copy {
  std::string name;
  StateTensor of;
};
std::vector<Copy> CopiesOfShared(const Deck::Model& m, const Tensors& tensors) {
  const auto find = [&](std::string_view name) {
    return *std::ranges::find(tensors, StateName(name), &StateTensor::name);
  };
  constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
  std::vector<Copy> copies;
  for (int layer = m.layers; layer < m.AllLayers(); ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    copies.push_back({at + "embed_tokens.weight", find(kEmbedding)});
    copies.push_back({at + "shared_head.head.weight", find(m.tie_embeddings ? kEmbedding : "lm_head.weight")});
  }
  return copies;
}

/// Returns how many tensors it wrote.
size_t WriteWeights(const std::string& dir, const Tensors& tensors, const std::vector<Copy>& copies,
                    const std::string& architecture, int64_t shard_bytes, SafeDtype dtype, const NewFolder& folder) {
  Written weights, written;
  for (const StateTensor& tensor : tensors) weights.push_back({ParameterName(tensor.name), tensor.type.shape});
  std::vector<Unit> units;
  int64_t largest = 0;
  for (ExportUnit& unit : ExportUnits(weights, architecture)) {
    written.insert(written.end(), unit.tensors.begin(), unit.tensors.end());
    units.push_back({{}, std::move(unit)});
    for (size_t weight : units.back().written.weights) units.back().tensors.push_back(tensors[weight]);
    largest = std::max(largest, Elements(units.back()));
  }
  for (const Copy& copy : copies) written.push_back({copy.name, copy.of.type.shape});
  const std::vector<Written> files = Groups(written, shard_bytes / SizeOf(dtype));
  Files out(folder, files, dtype);
  Source source(dir);
  for (const std::vector<Unit>& group : Groups(units, largest)) source.Append(group, out);
  for (const Copy& copy : copies) source.Append({Unit{{copy.of}, {}}}, out);
  if (files.size() > 1) folder.Write("model.safetensors.index.json", IndexOf(files, SizeOf(dtype)));
  return written.size();
}

}  // namespace

int ExportCommand(const ExportOptions& options) {
  const std::string dir = Resolve(options.checkpoint, options.checkpoint);
  const Deck deck = SavedDeck(dir, ReadMetadata(dir).deck);
  const SafeDtype dtype = options.dtype == "bf16" ? SafeDtype::kBf16 : SafeDtype::kF32;
  const std::string config = ConfigJson(deck.model, deck.dropout, dtype), architecture = ArchitectureOf(deck.model);
  const Tensors tensors = ParameterTensors(deck);
  RequireFit(dir, tensors, Coverage::kSome);
  NewFolder folder(options.folder);
  const size_t count =
      WriteWeights(dir, tensors, CopiesOfShared(deck.model, tensors), architecture, options.shard_bytes, dtype, folder);
  folder.Write("config.json", config);
  folder.Write("generation_config.json", GenerationConfigJson(deck.data.end_token));
  const std::shared_ptr<const Tokenizer> tokenizer = ReadTokenizer(dir);
  if (tokenizer) {
    folder.Write(tokenizer->file_name(), tokenizer->bytes());
    for (const TokenizerCompanion& companion : tokenizer->companions()) folder.Write(companion.name, companion.bytes);
  }
  folder.Commit();
  fmt::print("{}: {} with {} tensors in {}, from {}\n", options.folder, architecture, count, options.dtype, dir);
  if (deck.model.mtp_layers > 0)
    fmt::print("further tokens: {} layers after the model's, which transformers does not read\n",
               deck.model.mtp_layers);
  fmt::print("checksums agree; {}\n", kNotProved);
  fmt::print("tokenizer: {}\n", tokenizer ? tokenizer->file_name() : "none, since the checkpoint has none");
  if (tokenizer && !tokenizer->companions().empty())
    fmt::print("as they were beside the tokenizer: {}\n", tokenizer->CompanionNames());
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
