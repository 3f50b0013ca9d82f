// Activations that backward computes again instead of keeping them (Chen et al. 2016; Korthikanti et al. 2022, section
// 5). Redone are F ops that the model marks as cheap (selective), or all of a transformer layer but what leaves it, so
// that only the layer's input is kept (full; the embedding stays, of the head only its cheap norm is redone), and the
// reshards of what is redone. A redone op is cloned into role B, in front of the first backward op that reads one of
// its values; what nobody reads in backward is not cloned, and a reshard of a clone serves all of B and W that ask for
// the same (but not a W that the schedule puts off). A clone runs the same kernel on the same bits.
#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/passes/pipeline.hpp"
#include "espalier/schedule/schedule.hpp"

namespace espalier {
namespace {

class Recomputer {
 public:
  Recomputer(Graph& graph, const Deck& deck)
      : graph_(graph), ops_(std::move(graph.ops)), redone_(ops_.size()), puts_w_off_(PutsWOff(deck.pipeline.schedule)) {
    const bool whole_layers = deck.recompute.mode == "full";
    graph_.ops.clear();
    for (const Op& op : ops_) head_layer_ = std::max(head_layer_, op.layer);
    const std::vector<bool> leaves = LeavesLayer();
    for (size_t i = 0; i < ops_.size(); ++i)
      redone_[i] = ops_[i].role == Role::kF &&
                   (ops_[i].cheap || ReshardsRedone(ops_[i]) || (whole_layers && InLayer(ops_[i]) && !leaves[i]));
  }

  void Run() {
    for (const Op& op : ops_) {
      if (op.role == Role::kB || op.role == Role::kW)
        Emit(op);
      else
        graph_.ops.push_back(op);
    }
    graph_.Renumber();
  }

 private:
  bool InLayer(const Op& op) const { return op.layer > 0 && op.layer < head_layer_; }
  int MakerOf(int value) const { return graph_.values[static_cast<size_t>(value)].producer; }
  bool ReshardsRedone(const Op& op) const {
    const int maker = op.kind == "reshard" ? MakerOf(op.inputs[0]) : -1;
    return maker >= 0 && redone_[static_cast<size_t>(maker)];
  }

  /// By op: a result, or read in forward by another layer.
  std::vector<bool> LeavesLayer() const {
    std::vector<bool> leaves(ops_.size());
    const auto mark = [&](int value, int reader_layer) {
      const int maker = MakerOf(value);
      if (maker >= 0 && ops_[static_cast<size_t>(maker)].layer != reader_layer)
        leaves[static_cast<size_t>(maker)] = true;
    };
    for (const Op& op : ops_)
      if (op.role == Role::kF)
        for (int v : op.inputs) mark(v, op.layer);
    for (int v : graph_.results) mark(v, kUnset);
    return leaves;
  }

  void Emit(Op op) {
    for (int& input : op.inputs) input = Again(input);
    if (const int served = ServedBy(op); served >= 0)
      again_[op.outputs[0]] = served;
    else
      Push(std::move(op));
  }

  /// The value that stands for this one in backward: its clone, if it is redone.
  int Again(int value) {
    if (const auto it = again_.find(value); it != again_.end()) return it->second;
    const int maker = MakerOf(value);
    if (maker < 0 || !redone_[static_cast<size_t>(maker)]) return value;
    Op clone = ops_[static_cast<size_t>(maker)];
    clone.role = Role::kB;
    clone.cheap = false;
    for (int& input : clone.inputs) input = Again(input);
    if (const int served = ServedBy(clone); served >= 0) return again_[value] = served;
    for (int& output : clone.outputs) output = again_[output] = Copy(output);
    Push(std::move(clone));
    return again_.at(value);
  }
  int Copy(int value) {
    Value copy = graph_.values[static_cast<size_t>(value)];
    copy.name = graph_.Unique(copy.name + ".again");
    copy.producer = -1;
    return graph_.AddValue(std::move(copy));
  }

  /// What a reshard in role B makes of a source.
  using Resharded = std::tuple<int, std::string, int>;
  Resharded KeyOf(const Op& reshard) const {
    return {reshard.inputs[0], ToString(TypeOf(reshard.outputs[0])), reshard.chunk};
  }
  const Type& TypeOf(int value) const { return graph_.values[static_cast<size_t>(value)].type; }
  /// Where W is put off, it gathers for itself: what is gathered would live too long.
  int ServedBy(const Op& op) const {
    if (op.kind != "reshard") return -1;
    if (op.role == Role::kW && puts_w_off_ && TypeOf(op.inputs[0]).placements.Partial().Empty()) return -1;
    const auto it = resharded_.find(KeyOf(op));
    return it == resharded_.end() ? -1 : it->second;
  }
  void Push(Op op) {
    if (op.kind == "reshard" && op.role == Role::kB) resharded_[KeyOf(op)] = op.outputs[0];
    graph_.ops.push_back(std::move(op));
  }

  Graph& graph_;
  const std::vector<Op> ops_;
  std::vector<bool> redone_;
  const bool puts_w_off_;
  int head_layer_ = 0;
  std::map<int, int> again_;  // value -> its clone, or the reshard that serves instead
  std::map<Resharded, int> resharded_;
};

}  // namespace

void Recompute(Graph& graph, const Deck& deck) {
  if (deck.recompute.mode != "none") Recomputer(graph, deck).Run();
}

}  // namespace espalier
