// Attention over sequences that cp cuts: the only op whose tokens meet. The sequence lies in zigzag order
// (mesh/zigzag.hpp), so its queries' work is even over the ranks; attributes tell the kernels which positions their
// rows hold. How the keys come to the queries is the deck's choice (parallel.context):
//   all_gather  every rank gathers keys and values, backward gathers them again and scatters their gradients' sums. The
//   engine that
//               places values does it all: queries may be cut, keys may not.
//   all_to_all  parts of sequences with all heads turn into whole sequences with some of them, and back (DeepSpeed
//   Ulysses, Jacobs
//               et al. 2023). What was turned is kept for backward: it is no larger than what it came from.
//   ring        keys and values travel (context_ring.cpp).
#include <map>

#include "espalier/passes/pipeline.hpp"
#include "passes/context/attention_writer.hpp"

namespace espalier {
namespace {

constexpr const char* kCut = "batch,seq,heads";
constexpr const char* kCutKeys = "batch,seq,kv_heads";
constexpr const char* kTurned = "batch,whole_seq,turned_heads";

void WriteGather(AttentionWriter& w) { w.EmitInto("attention", w.op().inputs, w.op().outputs, w.zigzag()); }

void WriteGatherGrad(AttentionWriter& w) {
  w.EmitInto("attention_grad", w.op().inputs, w.op().outputs, w.zigzag());
  for (size_t i : {1, 2}) w.ValueOf(w.op().outputs[i]).layout = kCutKeys;
}

/// A value -> the same as whole sequences of some heads.
using Turned = std::map<int, int>;

void WriteTurn(AttentionWriter& w, Turned& turned) {
  std::vector<int> inputs;
  for (int input : w.op().inputs) inputs.push_back(turned[input] = w.Reshard(input, kTurned, "turned"));
  const int o = w.op().outputs[0], lse = w.op().outputs[1];
  turned[o] = w.Like(o, "turned");
  w.EmitInto("attention", inputs, {turned[o], lse}, w.zigzag());
  w.EmitInto("reshard", {turned[o]}, {o});
  w.ValueOf(o).layout = kCut;
}

void WriteTurnGrad(AttentionWriter& w, const Turned& turned) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int> inputs = {turned.at(in[0]),
                                   turned.at(in[1]),
                                   turned.at(in[2]),
                                   turned.at(in[3]),
                                   in[4],
                                   w.Reshard(in[5], kTurned, "turned")};
  const std::vector<int> gradients = w.Emit("attention_grad", inputs, w.op().outputs, "turned", w.zigzag());
  for (size_t i = 0; i < gradients.size(); ++i) {
    w.EmitInto("reshard", {gradients[i]}, {w.op().outputs[i]});
    w.ValueOf(w.op().outputs[i]).layout = kCut;
  }
}

}  // namespace

void ContextParallel(Graph& graph, const PassContext& context) {
  const int cp = context.mesh.Degree(Axis::kCp);
  if (cp == 1) return;
  const std::string& way = context.deck.parallel.context;
  std::vector<Op> ops;
  Turned turned;
  for (const Op& op : graph.ops) {
    const bool forward = op.kind == "attention";
    if (!forward && op.kind != "attention_grad") {
      ops.push_back(op);
      continue;
    }
    AttentionWriter writer(graph, ops, op, cp);
    if (way == "all_gather")
      forward ? WriteGather(writer) : WriteGatherGrad(writer);
    else if (way == "all_to_all")
      forward ? WriteTurn(writer, turned) : WriteTurnGrad(writer, turned);
    else
      forward ? WriteRing(writer) : WriteRingGrad(writer);
  }
  graph.ops = std::move(ops);
  graph.Renumber();
}

}  // namespace espalier
