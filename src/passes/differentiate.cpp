// Reverse-mode differentiation, op by op from the losses back. Each op's own file says what it emits; here adjoints
// that meet are added, in the order in which the forward ops used the value. Input gradients get role B, weight
// gradients role W: that these are apart is what zero-bubble schedules need.
#include <algorithm>
#include <map>

#include "espalier/graph/provenance.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

class Differentiator final : public GradientBuilder {
 public:
  explicit Differentiator(Graph& graph) : graph_(graph), forward_ops_(graph.ops.size()) {
    MarkWeights();
    MarkDependence();
    for (const Op& op : graph.ops)
      if (Define(op.kind).completes)
        for (size_t o = 0; o < op.outputs.size(); ++o) completed_[op.inputs[o]] = op.outputs[o];
  }

  void Run() {
    for (const Op& op : graph_.ops)
      if (Define(op.kind).is_loss) Receive(op.outputs[0], kSeed);
    for (size_t i = forward_ops_; i-- > 0;) {
      forward_ = graph_.ops[i];
      if (forward_.role != Role::kF || !HasAdjoint()) continue;
      const OpDefinition& definition = Define(forward_.kind);
      if (definition.gradient != nullptr) definition.gradient(*this);
    }
  }

  int Inputs() const override { return static_cast<int>(forward_.inputs.size()); }
  int Input(int i) const override { return forward_.inputs[i]; }
  int Output(int i) const override { return forward_.outputs[i]; }
  int Completed(int i) const override {
    const auto it = completed_.find(Output(i));
    return it == completed_.end() ? Output(i) : it->second;
  }
  const Attributes& ForwardAttributes() const override { return forward_.attributes; }

  /// The sum of what the uses of an output have sent back, in model order.
  int Adjoint(int output) const override {
    const int value = Output(output);
    const auto it = adjoints_.find(value);
    if (it == adjoints_.end()) return -1;
    return const_cast<Differentiator*>(this)->Sum(value);
  }

  void Emit(OpKind kind, std::vector<int> inputs, Attributes attributes, std::vector<int> adjoint_of) override {
    if (std::none_of(adjoint_of.begin(), adjoint_of.end(), [&](int i) { return Depends(Input(i)); })) return;
    const bool weight = weights_.count(Input(adjoint_of[0])) > 0;
    Op op{kind,           std::move(inputs), {}, std::move(attributes), weight ? Role::kW : Role::kB,
          forward_.layer, forward_.chunk};
    const std::vector<Type> types = Define(kind).infer(ContextOf(graph_, op));
    for (size_t o = 0; o < types.size(); ++o) op.outputs.push_back(NewAdjoint(Input(adjoint_of[o]), types[o], op));
    const std::vector<int> outputs = op.outputs;
    graph_.AddOp(std::move(op));
    for (size_t o = 0; o < outputs.size(); ++o) Receive(Input(adjoint_of[o]), outputs[o]);
  }

  void Pass(int i, int adjoint) override { Receive(Input(i), adjoint); }

 private:
  bool Depends(int value) const { return depends_[value]; }
  bool HasAdjoint() const {
    return std::any_of(forward_.outputs.begin(), forward_.outputs.end(), [&](int o) { return adjoints_.count(o) > 0; });
  }

  /// A weight is a parameter or what role P makes of it; its gradient is named after it.
  void MarkWeights() {
    for (size_t i = 0; i < graph_.values.size(); ++i)
      if (IsParameter(graph_.value(i))) weights_[static_cast<int>(i)] = ParameterOf(graph_.value(i));
    for (const Op& op : graph_.ops)
      if (op.role == Role::kP && weights_.count(op.inputs[0]) > 0) weights_[op.outputs[0]] = weights_[op.inputs[0]];
  }
  void MarkDependence() {
    depends_.assign(graph_.values.size(), false);
    for (const auto& [weight, name] : weights_) depends_[weight] = true;
    for (const Op& op : graph_.ops) {
      if (op.role != Role::kF) continue;
      const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](int i) { return Depends(i); });
      for (int o : op.outputs) depends_[o] = any;
    }
  }

  int NewAdjoint(int of, Type type, const Op& op) {
    const auto weight = weights_.find(of);
    const std::string name = weight == weights_.end() ? graph_.value(of).name + ".grad" : GradientName(weight->second);
    Value value{graph_.Unique(name), std::move(type), ValueKind::kActivation, Frequency::kMicrobatch, op.chunk, -1, ""};
    if (weight != weights_.end()) value.layout = graph_.value(graph_.Find(StateName(weight->second))).layout;
    return graph_.AddValue(std::move(value));
  }

  /// Uses are visited from the last to the first, so what arrives later belongs in front. A weight's gradients stay
  /// apart: every use has its own accumulator.
  void Receive(int value, int adjoint) {
    if (weights_.count(value) > 0) return;
    std::vector<int>& parts = adjoints_[value];
    parts.insert(parts.begin(), adjoint);
  }

  int Sum(int value) {
    std::vector<int>& parts = adjoints_[value];
    if (parts.size() > 1) parts = {Add(value, SumOfMatmuls(value, parts))};
    return parts[0];
  }
  /// Adjoints that matmuls send back are added first, since all of them are partial sums over tp: their sum is reduced
  /// once.
  std::vector<int> SumOfMatmuls(int value, const std::vector<int>& parts) {
    std::vector<int> matmuls, others;
    for (int part : parts)
      (graph_.ops[graph_.values[part].producer].kind == OpKind::kMatmul ? matmuls : others).push_back(part);
    if (matmuls.size() < 2 || others.empty()) return parts;
    others.insert(others.begin(), Add(value, matmuls));
    return others;
  }
  int Add(int value, const std::vector<int>& parts) {
    // Where the earliest use sent its part back: a sum is made before it crosses stages.
    const Value& earliest = graph_.values[parts[0]];
    Op op{OpKind::kAdd, parts, {}, {}, Role::kB, graph_.ops[earliest.producer].layer, earliest.chunk};
    op.outputs = {NewAdjoint(value, graph_.values[parts[0]].type, op)};
    const int sum = op.outputs[0];
    graph_.AddOp(std::move(op));
    return sum;
  }

  Graph& graph_;
  size_t forward_ops_;
  Op forward_;
  std::map<int, int> completed_;  // what an op completes -> what it makes of it
  std::map<int, std::string> weights_;
  std::vector<bool> depends_;
  std::map<int, std::vector<int>> adjoints_;
};

}  // namespace

void Differentiate(Graph& graph, const PassContext& context) {
  if (HasBackward(context.purpose)) Differentiator(graph).Run();
}

}  // namespace espalier
