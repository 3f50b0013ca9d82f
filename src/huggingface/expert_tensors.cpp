//   ours                                   a tensor per expert J                  packed by transformers 5
//   mlp.gate.weight          [E, H]        mlp.gate.weight                        mlp.gate.weight
//   mlp.experts.gate_proj.weight [E, F, H] mlp.experts.J.gate_proj.weight [F, H]  mlp.experts.gate_up_proj [E, 2 F, H],
//   mlp.experts.up_proj.weight   [E, F, H] mlp.experts.J.up_proj.weight   [F, H]    of each expert first gate's rows
//   mlp.experts.down_proj.weight [E, H, F] mlp.experts.J.down_proj.weight [H, F]  mlp.experts.down_proj    [E, H, F]
//
// A shared expert with a gate is a mixture of one: mlp.shared_expert.gate_proj.weight is [1, F, H] here and [F, H]
// there.
//
// Mixtral's files have block_sparse_moe for mlp, and w1, w3, w2 for gate_proj, up_proj, down_proj.
#include "espalier/huggingface/expert_tensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace espalier {
namespace {

constexpr std::string_view kRouter = ".mlp.gate.weight", kMixtralRouter = ".block_sparse_moe.gate.weight";
constexpr std::string_view kSharedExpert = ".mlp.shared_expert.";
constexpr std::string_view kExperts = ".mlp.experts.", kMixtralExperts = ".block_sparse_moe.experts.";

struct Projection {
  std::string_view name, mixtral;
};
constexpr auto kProjections = std::to_array<Projection>({{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}});

/// A weight of all experts of a layer, taken apart; `projection` is nullptr for other weights.
struct ExpertWeight {
  std::string layer;  ///< "model.layers.0"
  const Projection* projection;
  int64_t experts;
  Shape one;  ///< the shape of one expert
};

ExpertWeight TakeApart(const SafetensorsWriter::Tensor& weight) {
  for (const Projection& projection : kProjections)
    if (const std::string end = fmt::format("{}{}.weight", kExperts, projection.name); weight.name.ends_with(end))
      return {weight.name.substr(0, weight.name.size() - end.size()), &projection, weight.shape[0],
              Shape(weight.shape.begin() + 1, weight.shape.end())};
  return {"", nullptr, 0, {}};
}

FilePart WholeOf(std::string name, const Shape& shape) { return {{std::move(name), shape}, 0, Volume(shape)}; }

std::vector<FilePart> PerExpert(const ExpertWeight& w, bool mixtral) {
  std::vector<FilePart> parts;
  for (int64_t j = 0; j < w.experts; ++j)
    parts.push_back(WholeOf(fmt::format("{}{}{}.{}.weight", w.layer, mixtral ? kMixtralExperts : kExperts, j,
                                        mixtral ? w.projection->mixtral : w.projection->name),
                            w.one));
  return parts;
}

std::vector<FilePart> Packed(const ExpertWeight& w) {
  if (w.projection->name == "down_proj")
    return {WholeOf(fmt::format("{}{}down_proj", w.layer, kExperts), {w.experts, w.one[0], w.one[1]})};
  const int64_t count = Volume(w.one), second = w.projection->name == "up_proj" ? 1 : 0;
  const std::string name = fmt::format("{}{}gate_up_proj", w.layer, kExperts);
  std::vector<FilePart> parts;
  for (int64_t j = 0; j < w.experts; ++j)
    parts.push_back({{name, {w.experts, 2 * w.one[0], w.one[1]}}, (2 * j + second) * count, count});
  return parts;
}

/// The tensor of a file for a weight that belongs to no expert of several.
SafetensorsWriter::Tensor InFile(const SafetensorsWriter::Tensor& weight) {
  const bool one = weight.name.find(kSharedExpert) != weight.name.npos && weight.shape.size() == 3;
  return {weight.name, one ? Shape(weight.shape.begin() + 1, weight.shape.end()) : weight.shape};
}

/// The name of a router in Mixtral's files; empty for other weights.
std::string MixtralRouter(const std::string& name) {
  if (!name.ends_with(kRouter)) return "";
  return fmt::format("{}{}", name.substr(0, name.size() - kRouter.size()), kMixtralRouter);
}

}  // namespace

std::vector<std::vector<FilePart>> WaysOf(const SafetensorsWriter::Tensor& weight) {
  if (const ExpertWeight w = TakeApart(weight); w.projection != nullptr)
    return {PerExpert(w, false), PerExpert(w, true), Packed(w)};
  std::vector<std::vector<FilePart>> ways = {{WholeOf(weight.name, InFile(weight).shape)}};
  if (std::string router = MixtralRouter(weight.name); !router.empty())
    ways.push_back({WholeOf(std::move(router), weight.shape)});
  return ways;
}

std::vector<SafetensorsWriter::Tensor> ExportedTensors(const SafetensorsWriter::Tensor& weight,
                                                       std::string_view architecture) {
  const bool mixtral = architecture == "MixtralForCausalLM";
  const ExpertWeight w = TakeApart(weight);
  if (w.projection == nullptr) {
    std::string router = mixtral ? MixtralRouter(weight.name) : "";
    return {{router.empty() ? weight.name : std::move(router), InFile(weight).shape}};
  }
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (FilePart& part : PerExpert(w, mixtral)) tensors.push_back(std::move(part.tensor));
  return tensors;
}

std::string WithoutExpertNumber(const std::string& name) {
  constexpr std::string_view before = ".experts.";
  const size_t found = name.find(before);
  if (found == name.npos) return name;
  const auto begin = name.begin() + static_cast<ptrdiff_t>(found + before.size());
  const auto end = std::find_if(begin, name.end(), [](char c) { return c < '0' || c > '9'; });
  return begin == end ? name : fmt::format("{}*{}", std::string(name.begin(), begin), std::string(end, name.end()));
}

}  // namespace espalier
