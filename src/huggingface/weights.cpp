#include "espalier/huggingface/weights.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "espalier/model/further_tokens.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/hint.hpp"
#include "espalier/util/input_file.hpp"
#include "huggingface/mxfp4.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kMaxMessages = 20;

/// The file of each tensor.
std::map<std::string, std::string> ReadIndex(const std::string& path) {
  std::map<std::string, std::string> files;
  try {
    const json index = json::parse(ReadFile(path, {"safetensors index", kMaxHeaderBytes}));
    for (const auto& [tensor, name] : index.at("weight_map").items()) files[tensor] = name.get<std::string>();
  } catch (const json::exception& error) {
    throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, error.what()));
  }
  for (const auto& [tensor, name] : files)
    if (name.empty() || name.front() == '.' || name.find('/') != name.npos)
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: {} is in \"{}\" (allowed: a file of the same folder)", path, tensor, name));
  return files;
}

std::string WithoutModel(const std::string& name) {
  for (std::string_view prefix : {"model.", "transformer."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

/// Tensors that follow from the configuration.
bool IsBuffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// Only gpt-oss has it.
constexpr std::string_view kGptOssBias = ".mlp.experts.gate_up_proj_bias";

/// The weight that a layer for further tokens shares, and that released files repeat in it; empty: none.
std::string SharedWeight(const std::string& name) {
  if (LayerOfWeight(name) < 0) return "";
  return name.ends_with(".embed_tokens.weight")       ? "model.embed_tokens.weight"
         : name.ends_with(".shared_head.head.weight") ? "lm_head.weight"
                                                      : "";
}

/// The first of messages about experts of one layer, and how many others there are.
std::string FirstOf(const std::vector<std::string>& messages) {
  return messages.front() + (messages.size() > 1 ? fmt::format(", and {} more alike", messages.size() - 1) : "");
}

[[noreturn]] void RefuseAll(const std::string& dir, std::vector<std::string> messages) {
  if (messages.size() > kMaxMessages) {
    const size_t more = messages.size() - kMaxMessages;
    messages.resize(kMaxMessages);
    messages.push_back(fmt::format("and {} more", more));
  }
  for (std::string& message : messages) message = Hint(message);
  messages.insert(messages.begin(), fmt::format("{}: its weights are not those of this model", dir));
  throw UserError(ExitStatus::kData, std::move(messages));
}

}  // namespace

FolderOfWeights::FolderOfWeights(std::string dir) : dir_(std::move(dir)) {
  const bool single = fs::exists(dir_ + "/" + kSingle);
  if (!single && !fs::exists(dir_ + "/" + kIndex))
    throw UserError(ExitStatus::kData,
                    fmt::format("{}: neither {} nor {}; weights in other formats can be saved as safetensors with "
                                "transformers: model.save_pretrained(FOLDER)",
                                dir_, kSingle, kIndex));
  if (single) {
    Add(kSingle);
    return;
  }
  const std::map<std::string, std::string> index = ReadIndex(dir_ + "/" + kIndex);
  std::set<std::string> names;
  for (const auto& [tensor, name] : index)
    if (names.insert(name).second) Add(name);
  CheckIndex(index);
}

void FolderOfWeights::Add(const std::string& name) {
  const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(dir_ + "/" + name));
  for (const SafeTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(kGptOssBias)) layout_ = ExpertLayout::kGptOss;
    if (const auto [other, fresh] = places_.try_emplace(tensor.name, Place{&file, &tensor}); !fresh)
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: {} is in {} too", file.path(), tensor.name, other->second.file->path()));
  }
}

void FolderOfWeights::CheckIndex(const std::map<std::string, std::string>& index) const {
  std::vector<std::string> messages;
  for (const auto& [tensor, name] : index)
    if (const auto place = places_.find(tensor);
        place == places_.end() || place->second.file->path() != dir_ + "/" + name)
      messages.push_back(fmt::format("{}: {} is not in {}", kIndex, tensor, name));
  for (const auto& [tensor, place] : places_)
    if (!index.contains(tensor)) messages.push_back(fmt::format("{}: {} is not listed", kIndex, tensor));
  if (!messages.empty()) RefuseAll(dir_, std::move(messages));
}

const FolderOfWeights::Place* FolderOfWeights::Find(const std::string& name) const {
  for (const std::string& known : {name, WithoutModel(name)})
    if (const auto place = places_.find(known); place != places_.end()) return &place->second;
  return nullptr;
}

std::vector<FilePart> FolderOfWeights::WayOf(const SafetensorsWriter::Tensor& weight,
                                             const std::map<std::string, Shape>& shape_of) const {
  std::vector<std::vector<FilePart>> ways = WaysOf(weight, layout_);
  ways.push_back(JoinedPart(weight.name, shape_of));
  for (std::vector<FilePart>& parts : ways)
    if (std::ranges::any_of(parts, [&](const FilePart& part) { return Find(part.tensor.name) != nullptr; }))
      return std::move(parts);
  return {};
}

void FolderOfWeights::Locate(const SafetensorsWriter::Tensor& weight, const std::map<std::string, Shape>& shape_of,
                             std::vector<std::string>& messages) {
  const std::vector<FilePart> parts = WayOf(weight, shape_of);
  if (parts.empty()) return messages.push_back(fmt::format("{}: missing", weight.name));
  // Parts of one tensor have the same message.
  std::vector<std::string> missing, wrong;
  const auto note = [](std::vector<std::string>& alike, std::string text) {
    if (std::ranges::find(alike, text) == alike.end()) alike.push_back(std::move(text));
  };
  std::vector<Piece>& pieces = pieces_[weight.name];
  const auto find = [&](const std::string& name, const Shape& shape, bool bytes) {
    const Place* place = Find(name);
    if (place == nullptr) return note(missing, fmt::format("{}: missing", name)), place;
    if (!bytes) ReadableDtype(*place->file, *place->tensor);
    if (bytes && place->tensor->dtype != "U8")
      note(wrong, fmt::format("{}: {}, but MXFP4 is in bytes (U8)", name, place->tensor->dtype));
    if (place->tensor->shape != shape)
      note(wrong, fmt::format("{}: {}, but the model has {}", name, ToString(place->tensor->shape), ToString(shape)));
    return place;
  };
  for (const FilePart& part : parts) {
    const Shape& shape = part.tensor.shape;
    const bool blocks = !part.scales.empty();
    const Place* place = find(part.tensor.name, shape, blocks);
    const Place* scales = blocks ? find(part.scales, Shape(shape.begin(), shape.end() - 1), true) : nullptr;
    if (place != nullptr && (scales != nullptr || !blocks))
      pieces.push_back({place, part.first, part.count, part.places, scales});
  }
  for (const std::vector<std::string>* alike : {&missing, &wrong})
    if (!alike->empty()) note(messages, FirstOf(*alike));
}

std::vector<std::string> FolderOfWeights::RequireFit(const std::vector<SafetensorsWriter::Tensor>& wanted,
                                                     int64_t further_layers) {
  std::vector<std::string> messages, unused;
  int64_t layers = 0;
  std::map<std::string, Shape> shape_of;
  for (const SafetensorsWriter::Tensor& weight : wanted) shape_of[weight.name] = weight.shape;
  for (const SafetensorsWriter::Tensor& weight : wanted) layers = std::max(layers, LayerOfWeight(weight.name) + 1);
  std::map<int64_t, int64_t> further;  // by layer: its tensors
  for (const SafetensorsWriter::Tensor& weight : wanted) Locate(weight, shape_of, messages);
  std::set<const SafeTensor*> used;
  for (const auto& [name, pieces] : pieces_)
    for (const Piece& piece : pieces) {
      used.insert(piece.place->tensor);
      if (piece.scales != nullptr) used.insert(piece.scales->tensor);
    }
  const bool has_head = std::ranges::count(wanted, "lm_head.weight", &SafetensorsWriter::Tensor::name) > 0;
  std::map<std::string, std::vector<std::string>> unknown;
  for (const auto& [name, place] : places_) {
    if (used.contains(place.tensor)) continue;
    const int64_t layer = LayerOfWeight(name);
    if (layer >= layers && layer < layers + further_layers)
      ++further[layer];
    else if (IsBuffer(name) || !SharedWeight(name).empty() || (name == "lm_head.weight" && !has_head))
      unused.push_back(name);
    else
      unknown[WithoutExpertNumber(name)].push_back(fmt::format("{}: unknown to the model", name));
  }
  for (const auto& [layer, count] : further)
    unused.push_back(fmt::format("model.layers.{}, which predicts further tokens ({} tensors)", layer, count));
  for (const auto& [name, alike] : unknown) messages.push_back(FirstOf(alike));
  if (!messages.empty()) RefuseAll(dir_, std::move(messages));
  return unused;
}

int64_t FolderOfWeights::FurtherLayers(int64_t layers, int64_t most) const {
  int64_t found = 0;
  while (found < most && Find(fmt::format("model.layers.{}.eh_proj.weight", layers + found)) != nullptr) ++found;
  return found;
}

std::vector<std::string> FolderOfWeights::DifferingCopies() const {
  constexpr int64_t kBuffer = 1 << 20;  // elements
  std::vector<std::string> differing;
  std::vector<float> copy(kBuffer), shared(kBuffer);
  for (const auto& [name, place] : places_) {
    const std::string of = SharedWeight(name);
    const Place* original = of.empty() ? nullptr : Find(of);
    if (!of.empty() && original == nullptr) original = Find("model.embed_tokens.weight");  // a tied head
    if (original == nullptr) continue;
    bool same = place.tensor->shape == original->tensor->shape;
    const int64_t elements = Volume(place.tensor->shape);
    for (int64_t first = 0; same && first < elements; first += kBuffer) {
      const int64_t some = std::min(kBuffer, elements - first);
      place.file->Read(*place.tensor, first, some, copy.data());
      original->file->Read(*original->tensor, first, some, shared.data());
      same = std::equal(copy.begin(), copy.begin() + some, shared.begin());
    }
    if (!same) differing.push_back(name);
  }
  return differing;
}

void FolderOfWeights::Read(const std::string& name, int64_t first, int64_t count, float* out) const {
  const auto pieces = pieces_.find(name);
  CHECK(pieces != pieces_.end(), "{} has no {}", dir_, name);
  int64_t begin = 0;  // of the piece, in the weight
  for (const Piece& piece : pieces->second) {
    const int64_t from = std::max(first, begin), to = std::min(first + count, begin + piece.count);
    if (from < to && piece.places.columns == 0) {
      ReadTensor(piece, piece.first + from - begin, to - from, out + (from - first));
    } else if (from < to) {
      const std::vector<float>& span = SpanOf(piece);
      for (int64_t i = from; i < to; ++i) out[i - first] = span[static_cast<size_t>(piece.places.Of(i - begin))];
    }
    begin += piece.count;
  }
}

void FolderOfWeights::ReadTensor(const Piece& piece, int64_t first, int64_t count, float* out) {
  const Place &place = *piece.place, *scales = piece.scales;
  if (scales == nullptr) return place.file->Read(*place.tensor, first, count, out);
  ReadMxfp4({place.file, scales->file, place.tensor, scales->tensor}, first, count, out);
}

const std::vector<float>& FolderOfWeights::SpanOf(const Piece& piece) const {
  if (std::exchange(spanned_, &piece) == &piece) return span_;
  span_.resize(static_cast<size_t>(piece.places.Of(piece.count - 1) + 1));
  ReadTensor(piece, piece.first, std::ssize(span_), span_.data());
  return span_;
}

bool FolderOfWeights::HasMxfp4() const {
  return std::ranges::any_of(pieces_, [](const auto& weight) {
    return std::ranges::any_of(weight.second, [](const Piece& piece) { return piece.scales != nullptr; });
  });
}

std::vector<std::string> FolderOfWeights::Dtypes() const {
  std::set<std::string> names;
  for (const auto& [name, place] : places_) names.insert(place.tensor->dtype);
  return {names.begin(), names.end()};
}

}  // namespace espalier
