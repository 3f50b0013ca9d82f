// Lowers each reshard to the collectives and local ops of its route, one op per step; a reshard that changes nothing is
// removed.
#include "espalier/passes/pipeline.hpp"
#include "espalier/passes/reshard.hpp"

namespace espalier {
namespace {

class ReshardLowering {
 public:
  ReshardLowering(Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh), now_(graph.values.size()) {
    for (size_t i = 0; i < now_.size(); ++i) now_[i] = static_cast<int>(i);
  }

  void Run() {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (Op& op : ops) {
      for (int& input : op.inputs) input = now_[input];
      if (op.kind == OpKind::kReshard)
        Lower(op);
      else
        graph_.ops.push_back(std::move(op));
    }
    for (int& id : graph_.results) id = now_[id];
    graph_.Renumber();
  }

 private:
  void Lower(const Op& reshard) {
    const int to = reshard.outputs[0];
    const Type from = graph_.value(reshard.inputs[0]).type;
    const std::vector<ReshardStep> steps = PlanReshard(from, graph_.value(to).type.placements, mesh_);
    int at = reshard.inputs[0];
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      const int next = last ? to : Intermediate(to, steps[i]);
      Op op = reshard;
      op.kind = steps[i].kind;
      op.inputs = {at};
      op.outputs = {next};
      op.attributes.numbers["axes"] = steps[i].axes.bits();
      if (op.kind == OpKind::kPad && !(steps[i].placements.partial_max & steps[i].axes).Empty())
        op.attributes.numbers["max"] = 1;
      graph_.ops.push_back(std::move(op));
      at = next;
    }
    if (steps.empty()) now_[to] = at;
  }

  int Intermediate(int of, const ReshardStep& step) {
    Value value = graph_.value(of);
    value.name = graph_.Unique(fmt::format("{}.{}", value.name, step.kind));
    value.layout.clear();
    value.type.placements = step.placements;
    const int id = graph_.AddValue(std::move(value));
    now_.push_back(id);
    return id;
  }

  Graph& graph_;
  const Mesh& mesh_;
  std::vector<int> now_;  // by value: the value that replaces it
};

}  // namespace

void LowerReshards(Graph& graph, const Mesh& mesh) { ReshardLowering(graph, mesh).Run(); }

}  // namespace espalier
