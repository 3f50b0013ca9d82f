// Lowers each reshard to the collectives and local ops of its route, one op per step; a reshard that changes nothing is
// removed. A gradient whose `message` is bf16 (parallel.reduce_dtype) is sent in bf16 if its route reduces over dp or
// cp. Each rank rounds its own part, and the result is widened before its first reader; a reshard with a `message`
// that gathers it sends it in bf16. The casts of a layer come before its messages, which can then be merged:
//
//   g1 = reshard(g) {message="bf16"}              g0 = cast(g) {parts=1,to="bf16"}
//   h1 = reshard(h) {message="bf16"}              h0 = cast(h) {parts=1,to="bf16"}
//   a = sum_squares(g1)                   ->      g.s = reduce_scatter(g0)
//                                                 h.s = reduce_scatter(h0)
//                                                 g1 = cast(g.s) {to="f32"}
//                                                 a = sum_squares(g1)
#include <algorithm>
#include <map>

#include "espalier/graph/rewriter.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/passes/reshard.hpp"
#include "passes/message_type.hpp"

namespace espalier {
namespace {

class ReshardLowering {
 public:
  ReshardLowering(Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh), now_(graph.values.size()) {
    for (size_t i = 0; i < now_.size(); ++i) now_[i] = static_cast<int>(i);
  }

  void Run() {
    Rewriter old(graph_);
    for (Op& op : old.ops) {
      for (int& input : op.inputs) input = now_[input];
      if (!MayPrecedeMessages(op)) EmitMessages();
      if (SendsOn(op)) {
        LowerNarrow(std::move(op));
        continue;
      }
      for (int input : op.inputs) Widen(input);
      if (op.kind == OpKind::kReshard)
        Lower(op);
      else
        graph_.ops.push_back(std::move(op));
    }
    EmitMessages();
    for (int id : graph_.results) Widen(id);
    for (int& id : graph_.results) id = now_[id];
  }

 private:
  void Lower(Op reshard) {
    const int to = reshard.outputs[0];
    const bool rounded = TakeMessageType(reshard.attributes);
    const Type from = graph_.value(reshard.inputs[0]).type;
    const std::vector<ReshardStep> steps = PlanReshard(from, graph_.value(to).type.placements, mesh_);
    if (rounded && std::any_of(steps.begin(), steps.end(), ReducesData))
      LowerRounded(reshard, steps);
    else if (steps.empty())
      now_[to] = reshard.inputs[0];
    else
      AddSteps(reshard, steps, to, graph_.ops);
  }

  static bool ReducesData(const ReshardStep& step) {
    const bool reduces = step.kind == OpKind::kReduceScatter || step.kind == OpKind::kAllReduce;
    return reduces && !(step.axes & kTokenAxes).Empty();
  }

  /// The steps of a route, the last of which makes `to`.
  void AddSteps(const Op& reshard, const std::vector<ReshardStep>& steps, int to, std::vector<Op>& ops) {
    int at = reshard.inputs[0];
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      const int next = last ? to : Intermediate(to, fmt::format("{}", steps[i].kind), steps[i].placements);
      Op op = reshard;
      op.kind = steps[i].kind;
      op.inputs = {at};
      op.outputs = {next};
      op.attributes.numbers["axes"] = steps[i].axes.bits();
      if (op.kind == OpKind::kPad && !(steps[i].placements.partial_max & steps[i].axes).Empty())
        op.attributes.numbers["max"] = 1;
      ops.push_back(std::move(op));
      at = next;
    }
  }

  /// A copy of a value with other placements, and perhaps of another type.
  int Intermediate(int of, const std::string& suffix, const Placements& placements) {
    return Intermediate(of, suffix, placements, graph_.value(of).type.dtype);
  }
  int Intermediate(int of, const std::string& suffix, const Placements& placements, Dtype dtype) {
    Value value = graph_.value(of);
    value.name = graph_.Unique(fmt::format("{}.{}", value.name, suffix));
    value.layout.clear();
    value.type.placements = placements;
    value.type.dtype = dtype;
    const int id = graph_.AddValue(std::move(value));
    now_.push_back(id);
    return id;
  }

  void LowerRounded(Op reshard, const std::vector<ReshardStep>& steps) {
    const int from = reshard.inputs[0], to = reshard.outputs[0];
    const int rounded = Intermediate(to, "sent", graph_.value(from).type.placements, Dtype::kBf16);
    const int reduced = Intermediate(to, "received", graph_.value(to).type.placements, Dtype::kBf16);
    casts_.push_back(CastOf(reshard, from, rounded));
    reshard.inputs = {rounded};
    AddSteps(reshard, steps, reduced, messages_);
    wide_[to] = CastOf(reshard, reduced, to);
  }
  /// A reshard of what was received in bf16: it is sent on in bf16.
  bool SendsOn(const Op& op) const {
    return op.kind == OpKind::kReshard && HasMessageType(op.attributes) && wide_.contains(op.inputs[0]);
  }
  void LowerNarrow(Op reshard) {
    TakeMessageType(reshard.attributes);
    const int from = reshard.inputs[0], to = reshard.outputs[0];
    const Placements& placements = graph_.value(to).type.placements;
    const std::vector<ReshardStep> steps = PlanReshard(graph_.value(from).type, placements, mesh_);
    const int received = Intermediate(to, "received", placements, Dtype::kBf16);
    reshard.inputs = {wide_.at(from).inputs[0]};
    AddSteps(reshard, steps, received, graph_.ops);
    wide_[to] = CastOf(reshard, received, to);
  }
  Op CastOf(const Op& reshard, int from, int to) const {
    Op cast = reshard;
    cast.kind = OpKind::kCast;
    cast.inputs = {from};
    cast.outputs = {to};
    cast.attributes.texts["to"] = Name(graph_.value(to).type.dtype);
    if (!graph_.value(from).type.placements.Partial().Empty()) cast.attributes.numbers["parts"] = 1;
    return cast;
  }

  /// True if an op may come before the messages that wait to be emitted: another gradient of their layer.
  bool MayPrecedeMessages(const Op& op) const {
    if (messages_.empty()) return true;
    const Op& first = messages_.front();
    return op.kind == OpKind::kReshard && HasMessageType(op.attributes) && op.role == first.role &&
           op.layer == first.layer && op.chunk == first.chunk &&
           std::none_of(op.inputs.begin(), op.inputs.end(), [&](int v) { return wide_.count(v) > 0; });
  }
  void EmitMessages() {
    for (std::vector<Op>* ops : {&casts_, &messages_}) {
      std::move(ops->begin(), ops->end(), std::back_inserter(graph_.ops));
      ops->clear();
    }
  }
  void Widen(int value) {
    if (const auto it = wide_.find(value); it != wide_.end()) {
      graph_.ops.push_back(std::move(it->second));
      wide_.erase(it);
    }
  }

  Graph& graph_;
  const Mesh& mesh_;
  std::vector<int> now_;              // by value: the value that replaces it
  std::vector<Op> casts_, messages_;  // of the gradients of one layer, not emitted yet
  std::map<int, Op> wide_;            // by value that nothing has read yet: the op that widens it
};

}  // namespace

void LowerReshards(Graph& graph, const PassContext& context) { ReshardLowering(graph, context.mesh).Run(); }

}  // namespace espalier
