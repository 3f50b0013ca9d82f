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
//
//   ours                                   gpt-oss
//   mlp.gate.{weight, bias}                mlp.router.{weight, bias}
//   mlp.experts.gate_proj.weight [E, F, H] mlp.experts.gate_up_proj [E, H, 2 F]: gate's and up's columns alternate;
//   mlp.experts.up_proj.weight   [E, F, H]   or gate_up_proj_blocks u8[E, 2 F, H / 32, 16] of MXFP4, rows alternate,
//   mlp.experts.down_proj.weight [E, H, F]   with gate_up_proj_scales u8[E, 2 F, H / 32]
//   mlp.experts.gate_proj.bias   [E, F]    mlp.experts.down_proj [E, F, H], or down_proj_blocks, down_proj_scales
//   mlp.experts.up_proj.bias     [E, F]    mlp.experts.gate_up_proj_bias [E, 2 F], alternating
//   mlp.experts.down_proj.bias   [E, H]    mlp.experts.down_proj_bias    [E, H]
//
//   ours                                   Phi-3, without experts
//   self_attn.{q, k, v}_proj.weight        self_attn.qkv_proj.weight: rows of q, k, v
//   mlp.{gate, up}_proj.weight             mlp.gate_up_proj.weight: rows of gate, up
#include "espalier/huggingface/expert_tensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

#include "huggingface/mxfp4.hpp"

namespace espalier {
namespace {

constexpr std::string_view kRouter = ".mlp.gate.weight", kMixtralRouter = ".block_sparse_moe.gate.weight";
constexpr std::pair<std::string_view, std::string_view> kGptOssRouter[] = {{".mlp.gate.weight", ".mlp.router.weight"},
                                                                           {".mlp.gate.bias", ".mlp.router.bias"}};
constexpr std::string_view kSharedExpert = ".mlp.shared_expert.";
constexpr std::string_view kExperts = ".mlp.experts.", kMixtralExperts = ".block_sparse_moe.experts.";

/// A tensor, and the weights whose rows it has.
const std::pair<std::string_view, std::vector<std::string_view>> kJoined[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, {"gate_up_proj", {"gate_proj", "up_proj"}}};

struct Projection {
  std::string_view name, mixtral;
};
constexpr auto kProjections = std::to_array<Projection>({{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}});

/// A weight or bias of all experts of a layer, taken apart; `projection` is nullptr for other weights.
struct ExpertWeight {
  std::string layer;  ///< "model.layers.0"
  const Projection* projection;
  std::string_view kind;  ///< "weight", "bias"
  int64_t experts;
  Shape one;  ///< the shape of one expert
};

ExpertWeight TakeApart(const SafetensorsWriter::Tensor& weight) {
  for (const Projection& projection : kProjections)
    for (const std::string_view kind : {"weight", "bias"})
      if (const std::string end = fmt::format("{}{}.{}", kExperts, projection.name, kind); weight.name.ends_with(end))
        return {weight.name.substr(0, weight.name.size() - end.size()), &projection, kind, weight.shape[0],
                Shape(weight.shape.begin() + 1, weight.shape.end())};
  return {"", nullptr, "", 0, {}};
}

FilePart WholeOf(std::string name, const Shape& shape) { return {{std::move(name), shape}, 0, Volume(shape)}; }

std::vector<FilePart> PerExpert(const ExpertWeight& w, bool mixtral) {
  std::vector<FilePart> parts;
  for (int64_t j = 0; j < w.experts; ++j)
    parts.push_back(WholeOf(fmt::format("{}{}{}.{}.{}", w.layer, mixtral ? kMixtralExperts : kExperts, j,
                                        mixtral ? w.projection->mixtral : w.projection->name, w.kind),
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

/// In files of gpt-oss each row of an expert's matrix [out, in] is a column of a tensor [in, outs]. Gate and up share a
/// tensor: gate has its even columns, up the odd ones.
struct GptOssRows {
  int64_t out, in;     ///< of a bias in = 1
  int64_t outs, step;  ///< of the tensor, and from one row to the next
  int64_t second;      ///< the first row
  std::string name;    ///< of the tensor
};
GptOssRows GptOssRowsOf(const ExpertWeight& w) {
  const bool down = w.projection->name == "down_proj";
  const int64_t out = w.one[0], step = down ? 1 : 2;
  return {
      out,
      w.kind == "bias" ? 1 : w.one[1],
      step * out,
      step,
      w.projection->name == "up_proj" ? 1 : 0,
      fmt::format("{}{}{}{}", w.layer, kExperts, down ? "down_proj" : "gate_up_proj", w.kind == "bias" ? "_bias" : "")};
}

std::vector<FilePart> GptOss(const ExpertWeight& w) {
  const GptOssRows rows = GptOssRowsOf(w);
  const Shape shape = w.kind == "bias" ? Shape{w.experts, rows.outs} : Shape{w.experts, rows.in, rows.outs};
  std::vector<FilePart> parts;
  for (int64_t j = 0; j < w.experts; ++j)
    parts.push_back({{rows.name, shape},
                     j * rows.in * rows.outs + rows.second,
                     rows.out * rows.in,
                     {.columns = rows.in, .row = rows.step, .column = rows.outs}});
  return parts;
}

/// The same in blocks of MXFP4, which lie along rows of [outs, in].
std::vector<FilePart> GptOssBlocks(const ExpertWeight& w) {
  const GptOssRows rows = GptOssRowsOf(w);
  if (w.kind == "bias" || rows.in % kMxfp4Block != 0) return {};
  const Shape blocks = {w.experts, rows.outs, rows.in / kMxfp4Block, kMxfp4Block / 2};
  std::vector<FilePart> parts;
  for (int64_t j = 0; j < w.experts; ++j)
    parts.push_back({{rows.name + "_blocks", blocks},
                     (j * rows.outs + rows.second) * rows.in,
                     rows.out * rows.in,
                     {.columns = rows.in, .row = rows.step * rows.in, .column = 1},
                     rows.name + "_scales"});
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

/// The tensors that hold the elements of a weight in order.
std::vector<SafetensorsWriter::Tensor> InOrder(const SafetensorsWriter::Tensor& weight, const ExpertWeight& w,
                                               bool mixtral) {
  if (w.projection == nullptr) {
    std::string router = mixtral ? MixtralRouter(weight.name) : "";
    return {{router.empty() ? weight.name : std::move(router), InFile(weight).shape}};
  }
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (FilePart& part : PerExpert(w, mixtral)) tensors.push_back(std::move(part.tensor));
  return tensors;
}

/// The name in gpt-oss's files of a weight that belongs to no expert.
std::string GptOssName(const std::string& name) {
  for (const auto& [ours, theirs] : kGptOssRouter)
    if (name.ends_with(ours)) return fmt::format("{}{}", name.substr(0, name.size() - ours.size()), theirs);
  return name;
}

}  // namespace

std::vector<std::vector<FilePart>> WaysOf(const SafetensorsWriter::Tensor& weight, ExpertLayout layout) {
  const ExpertWeight w = TakeApart(weight);
  if (layout == ExpertLayout::kGptOss) {
    if (w.projection != nullptr) return {GptOss(w), GptOssBlocks(w)};
    return {{WholeOf(GptOssName(weight.name), weight.shape)}};
  }
  if (w.projection != nullptr) {
    if (w.kind == "bias") return {PerExpert(w, false)};
    return {PerExpert(w, false), PerExpert(w, true), Packed(w)};
  }
  std::vector<std::vector<FilePart>> ways = {{WholeOf(weight.name, InFile(weight).shape)}};
  if (std::string router = MixtralRouter(weight.name); !router.empty())
    ways.push_back({WholeOf(std::move(router), weight.shape)});
  return ways;
}

std::vector<FilePart> JoinedPart(const std::string& weight, const std::map<std::string, Shape>& shape_of) {
  for (const auto& [joined, parts] : kJoined)
    for (const std::string_view part : parts) {
      const std::string end = fmt::format(".{}.weight", part);
      if (!weight.ends_with(end)) continue;
      const std::string layer = weight.substr(0, weight.size() - end.size());
      int64_t rows = 0, first = 0, columns = 0, own = 0;
      for (const std::string_view other : parts) {
        const auto shape = shape_of.find(fmt::format("{}.{}.weight", layer, other));
        if (shape == shape_of.end() || shape->second.size() != 2) return {};
        if (other == part) first = rows, own = shape->second[0];
        rows += shape->second[0];
        columns = shape->second[1];
      }
      return {{{fmt::format("{}.{}.weight", layer, joined), {rows, columns}}, first * columns, own * columns}};
    }
  return {};
}

std::vector<ExportUnit> ExportUnits(const std::vector<SafetensorsWriter::Tensor>& weights,
                                    std::string_view architecture) {
  std::vector<ExportUnit> units;
  std::map<std::string, size_t> unit_of;  // by name of the tensor
  for (size_t i = 0; i < weights.size(); ++i) {
    const ExpertWeight w = TakeApart(weights[i]);
    if (architecture != "GptOssForCausalLM") {
      units.push_back({{i}, InOrder(weights[i], w, architecture == "MixtralForCausalLM")});
    } else if (w.projection == nullptr) {
      units.push_back({{i}, {{GptOssName(weights[i].name), weights[i].shape}}});
    } else {
      std::vector<FilePart> parts = GptOss(w);
      const auto [unit, fresh] = unit_of.try_emplace(parts[0].tensor.name, units.size());
      if (fresh) units.push_back({{}, {parts[0].tensor}});
      units[unit->second].weights.push_back(i);
      units[unit->second].parts.push_back(std::move(parts));
    }
  }
  return units;
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
