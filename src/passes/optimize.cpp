// The end of a step, in model order: the reduced gradient of every parameter (the uses of a tied weight are added),
// squares, one norm over all, the factor clip / tokens, AdamW or Muon. All numbers that depend on the step are values;
// learning rate and step number are inputs.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "espalier/deck/parameter_groups.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/model/router_losses.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "passes/message_type.hpp"
#include "passes/optimizer/moments.hpp"
#include "passes/optimizer/muon.hpp"

namespace espalier {
namespace {

class Optimizer {
 public:
  Optimizer(Graph& graph, const Deck& deck) : graph_(graph), deck_(deck) {
    layer_of_.resize(graph.values.size(), -1);
    for (const Op& op : graph.ops) {
      head_layer_ = std::max(head_layer_, op.layer);
      for (int o : op.outputs)
        if (int& layer = layer_of_[o]; layer < 0) layer = op.layer;
    }
  }

  void Run(Purpose purpose) {
    if (purpose != Purpose::kTrain) {
      graph_.results = {Clip({graph_.Find("loss"), graph_.Find("count")}, {})[0]};
      return;
    }
    std::vector<int> biases;  // of routers, which follow loads
    for (size_t i = 0, n = graph_.values.size(); i < n; ++i) {
      const Value& v = graph_.value(static_cast<int>(i));
      if (IsParameter(v)) (v.trained ? parameters_ : biases).push_back(static_cast<int>(i));
    }
    std::vector<int> gradients, inputs = {graph_.Find("loss"), graph_.Find("count")};
    if (deck_.guard.spike_z > 0)
      for (const char* limit : {"loss_limit", "norm_limit"}) inputs.push_back(StepScalar(limit));
    for (int p : parameters_) gradients.push_back(Gradient(p));
    for (size_t i = 0; i < parameters_.size(); ++i) inputs.push_back(Squares(parameters_[i], gradients[i]));
    const std::vector<int> clip = Clip(inputs, ClipAttributes());
    std::vector<MuonMatrix> matrices;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (TrainsWithMuon(deck_, graph_.value(parameters_[i])))
        matrices.push_back(Matrix(parameters_[i], gradients[i]));
      else
        Update(parameters_[i], gradients[i], clip[2], clip[3]);
    if (!matrices.empty()) {
      const int step = deck_.precision.moments == Dtype::kF32 ? -1 : StepScalar("step");
      AppendMuon(graph_, deck_, matrices, {StepScalar("muon_lr"), clip[2], clip[3], step});
    }
    const std::map<std::string, int> loads = Totals(kLoadSuffix, "whole");
    for (int bias : biases) UpdateBias(bias, loads, clip[3]);
    graph_.results = {clip[0], clip[1], clip[4]};
    if (deck_.loss.z_loss > 0) graph_.results.push_back(Mean("mean_z_loss", {graph_.Find("z_loss")}));
    for (int k = 1; k <= deck_.model.mtp_layers; ++k)
      graph_.results.push_back(Mean(MeanLossOfDepth(k), {graph_.Find(LossOfDepth(k))}, graph_.Find(CountOfDepth(k))));
    const Deck::Model::Experts& e = deck_.model.experts;
    for (const auto& [loss, factor] : {std::pair{kBalanceLoss, e.balance_loss}, {kRouterZLoss, e.z_loss}})
      if (e.count > 0 && factor > 0) graph_.results.push_back(Mean(fmt::format("mean_{}", loss), OfAllLayers(loss)));
    if (!loads.empty()) graph_.results.push_back(RouterNumbers(loads));
  }

 private:
  std::string NameOf(int parameter) const { return std::string(ParameterOf(graph_.value(parameter))); }

  /// The layer of a gradient's producer; the head's if it has none.
  int LayerOf(int gradient) const {
    const int layer = static_cast<size_t>(gradient) < layer_of_.size() ? layer_of_[gradient] : -1;
    return layer < 0 ? head_layer_ : layer;
  }

  int Emit(OpKind kind, std::vector<int> inputs, Role role, int layer, int chunk, const std::string& name,
           const std::string& layout, Attributes attributes = {}) {
    Op op{kind, std::move(inputs), {}, std::move(attributes), role, layer, chunk};
    const Type type = Define(kind).infer(ContextOf(graph_, op))[0];
    op.outputs = {graph_.AddValue({name, type, ValueKind::kActivation, Frequency::kStep, chunk, -1, layout})};
    const int output = op.outputs[0];
    graph_.AddOp(std::move(op));
    return output;
  }

  /// The gradient with the placements of the optimizer state; those of the uses of a tied weight are added.
  int Gradient(int p) {
    const std::string name = GradientName(NameOf(p));
    std::vector<int> uses = {graph_.Find(name)};
    for (int use; (use = graph_.FindOrNone(GradientName(NameOf(p), uses.size() + 1))) >= 0;) uses.push_back(use);
    // Backward visits the last use first; model order is the reverse.
    std::vector<int> in_model_order(uses.rbegin(), uses.rend());
    for (int& use : in_model_order) use = Synchronised(p, use);
    if (in_model_order.size() == 1) return in_model_order[0];
    return Emit(OpKind::kAdd, in_model_order, Role::kS, LayerOf(uses.back()), graph_.value(p).chunk, name + ".sum",
                StateLayout(p));
  }
  /// Reduced over all axes on which it is partial, and sharded like the optimizer state.
  int Synchronised(int p, int use) {
    return Emit(OpKind::kReshard, {use}, Role::kS, LayerOf(use), graph_.value(use).chunk,
                graph_.value(use).name + ".reduced", StateLayout(p), GradientMessages(deck_));
  }
  std::string StateLayout(int p) const { return graph_.value(p).layout + ";state"; }

  int Squares(int p, int gradient) {
    return Emit(OpKind::kSumSquares, {gradient}, Role::kS, head_layer_, graph_.value(gradient).chunk,
                "squares/" + NameOf(p), "");
  }

  Attributes ClipAttributes() const {
    Attributes attributes;
    if (deck_.guard.spike_z > 0) attributes.numbers["limits"] = 1;
    return attributes;
  }
  std::vector<int> Clip(const std::vector<int>& inputs, Attributes attributes) {
    attributes.numbers["clip_norm"] = deck_.optimizer.clip_norm;
    std::vector<const char*> names = {"mean_loss", "norm", "scale", "apply", "first"};
    Op op{OpKind::kClip, inputs, {}, std::move(attributes), Role::kU, head_layer_, kAllChunks};
    for (const char* name : names)
      op.outputs.push_back(graph_.AddValue(
          {name, MakeType(Dtype::kF32, {}), ValueKind::kActivation, Frequency::kStep, kAllChunks, -1, ""}));
    const std::vector<int> outputs = op.outputs;
    graph_.AddOp(std::move(op));
    return outputs;
  }

  /// The values of this name, one for each layer that has it.
  std::vector<int> OfAllLayers(std::string_view name) const {
    std::vector<int> values;
    for (size_t i = 0; i < graph_.values.size(); ++i)
      if (graph_.values[i].name.ends_with(fmt::format(".{}", name))) values.push_back(static_cast<int>(i));
    return values;
  }
  /// The mean over tokens of sums that every stage may need.
  int Mean(const std::string& name, std::vector<int> sums) { return Mean(name, std::move(sums), graph_.Find("count")); }
  int Mean(const std::string& name, std::vector<int> sums, int count) {
    sums.insert(sums.begin(), count);
    Op op{OpKind::kMean, std::move(sums), {}, {}, Role::kU, head_layer_, kAllChunks};
    op.outputs = {graph_.AddValue(
        {name, MakeType(Dtype::kF32, {}), ValueKind::kActivation, Frequency::kStep, kAllChunks, -1, ""})};
    const int mean = op.outputs[0];
    graph_.AddOp(std::move(op));
    return mean;
  }

  int StepScalar(const std::string& name) {
    if (const int id = graph_.FindOrNone(name); id >= 0) return id;
    return graph_.AddValue({name, MakeType(Dtype::kF32, {}), ValueKind::kInput, Frequency::kStep, kAllChunks, -1, ""});
  }
  void Update(int p, int gradient, int scale, int apply) {
    const Deck::Optimizer& o = deck_.optimizer;
    const ParameterGroup group = SettingsOf(deck_, NameOf(p));
    const bool decays = group.decay || IsMatrix(graph_.value(p)) || o.decay_norms;
    const int m = AddMoment(graph_, deck_, p, "exp_avg"), v = AddMoment(graph_, deck_, p, "exp_avg_sq");
    Op op{OpKind::kAdamw,
          {StepScalar("lr"), StepScalar("step"), scale, apply, p, m, v, gradient},
          {p, m, v},
          {},
          Role::kU,
          head_layer_,
          graph_.value(p).chunk};
    op.attributes.numbers = {{"beta1", o.beta1},
                             {"beta2", o.beta2},
                             {"eps", o.eps},
                             {"weight_decay", group.decay.value_or(o.weight_decay)},
                             {"decaying", decays ? 1.0 : 0.0}};
    if (group.lr != 1) op.attributes.numbers["lr_factor"] = group.lr;
    SetRounding(graph_, deck_, p, op.attributes);
    graph_.AddOp(std::move(op));
  }

  /// By name: what a router has summed over its tokens, over all tokens of the step.
  std::map<std::string, int> Totals(std::string_view suffix, const std::string& layout) {
    std::map<std::string, int> totals;
    for (size_t i = 0, n = graph_.values.size(); i < n; ++i) {
      const Value v = graph_.value(static_cast<int>(i));
      if (v.name.ends_with(suffix))
        totals[v.name] = Emit(OpKind::kReshard, {static_cast<int>(i)}, Role::kS, LayerOf(static_cast<int>(i)), v.chunk,
                              v.name + ".total", layout);
    }
    return totals;
  }

  int Concatenate(std::vector<int> inputs, Role role, int chunk, const std::string& name) {
    return Emit(OpKind::kConcatenate, std::move(inputs), role, head_layer_, chunk, name, "");
  }
  /// The loads and the entropy of each layer, in the order of layers, on the stage of chunk 0. The sums of a chunk are
  /// one message.
  int RouterNumbers(const std::map<std::string, int>& loads) {
    const std::map<std::string, int> entropies = Totals(kEntropySuffix, "");
    std::map<int, std::map<int, std::vector<int>>> by_chunk;  // by layer
    for (const auto& [name, load] : loads)
      by_chunk[graph_.value(load).chunk][LayerOf(graph_.Find(name))] = {
          load, entropies.at(RouterOf(name) + std::string(kEntropySuffix))};
    std::map<int, int> chunks;  // by their first layers
    for (const auto& [chunk, layers] : by_chunk) {
      std::vector<int> inputs;
      for (const auto& [layer, numbers] : layers) inputs.insert(inputs.end(), numbers.begin(), numbers.end());
      chunks[layers.begin()->first] =
          Concatenate(std::move(inputs), Role::kS, chunk, fmt::format("{}.of{}", kRouterNumbers, chunk));
    }
    std::vector<int> inputs;
    for (const auto& [layer, numbers] : chunks) inputs.push_back(numbers);
    return Concatenate(std::move(inputs), Role::kU, 0, std::string(kRouterNumbers));
  }

  /// A router's bias, by the loads of its experts; none if it does not change.
  void UpdateBias(int bias, const std::map<std::string, int>& loads, int apply) {
    if (deck_.model.experts.bias_rate == 0) return;
    const int chunk = graph_.value(bias).chunk;
    graph_.AddOp({OpKind::kBiasUpdate,
                  {apply, bias, loads.at(LoadName(RouterOf(NameOf(bias))))},
                  {bias},
                  {{{"rate", deck_.model.experts.bias_rate}}, {}},
                  Role::kU,
                  head_layer_,
                  chunk});
  }

  MuonMatrix Matrix(int p, int gradient) const {
    const ParameterGroup group = SettingsOf(deck_, NameOf(p));
    return {p, gradient, graph_.op(graph_.value(gradient).producer).layer, group.lr,
            group.decay.value_or(deck_.optimizer.weight_decay)};
  }

  Graph& graph_;
  const Deck& deck_;
  std::vector<int> parameters_;
  std::vector<int> layer_of_;  // by value of the input graph: layer of its producer, -1: none
  int head_layer_ = 0;
};

}  // namespace

void Optimize(Graph& graph, const PassContext& context) {
  if (KeepsComputeType(context.purpose) || context.purpose == Purpose::kCopies) return;
  Optimizer(graph, context.deck).Run(context.purpose);
}

}  // namespace espalier
