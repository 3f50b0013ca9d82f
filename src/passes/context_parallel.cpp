// Attention over sequences that are sharded on cp: the only op in which tokens interact. The sequence is in zigzag
// order (mesh/zigzag.hpp), so all ranks have equally much work; attributes tell the kernels which positions their rows
// have. parallel.context selects how queries meet the keys of other ranks:
//   all_gather  Every rank gathers keys and values. Backward gathers them again and reduce-scatters their gradients.
//               The partitioner does all of it: queries may be sharded on the sequence, keys may not.
//   all_to_all  An all-to-all turns shards of sequences with all heads into whole sequences with some of the heads, and
//               back (DeepSpeed Ulysses, Jacobs et al. 2023). Its results are kept for backward: they are no larger
//               than its inputs. attention_sink, if there is one, comes before the results are turned back.
//   ring        Keys and values move around a ring of ranks (context_ring.cpp).
// The documents of queries, and the numbers of their tokens for dropout, are inputs of the program, so every rank reads
// those that it needs: nothing is sent.
#include <map>
#include <set>

#include "espalier/graph/rewriter.hpp"
#include "espalier/passes/pipeline.hpp"
#include "passes/context/attention_writer.hpp"

namespace espalier {
namespace {

constexpr const char* kSharded = "batch,seq,heads";
constexpr const char* kShardedSums = "batch,heads,seq";
constexpr const char* kShardedKeys = "batch,seq,kv_heads";
constexpr const char* kWholeSequences = "batch,whole_seq,context_heads";
constexpr const char* kWholeRows = "batch,whole_seq";

void WriteGather(AttentionWriter& w) { w.EmitInto(OpKind::kAttention, w.op().inputs, w.op().outputs, w.zigzag()); }

void WriteGatherGrad(AttentionWriter& w) {
  w.EmitInto(OpKind::kAttentionGrad, w.op().inputs, w.op().outputs, w.zigzag());
  for (size_t i : {1, 2}) w.ValueOf(w.op().outputs[i]).layout = kShardedKeys;
}

/// A value -> the same value as whole sequences of some heads.
using WholeSequences = std::map<int, int>;

/// `sunk`: an attention_sink follows, which works on whole sequences, too.
void WriteAllToAll(AttentionWriter& w, WholeSequences& whole, bool sunk) {
  std::vector<int> inputs;
  for (size_t i : {0, 1, 2}) {
    const int input = w.op().inputs[i];
    inputs.push_back(whole[input] = w.Reshard(input, kWholeSequences, "whole"));
  }
  inputs = w.WithOthers(std::move(inputs), 3);
  for (size_t i = 3; i < inputs.size(); ++i)
    if (Value& value = w.ValueOf(inputs[i]); !value.type.shape.empty()) value.layout = kWholeRows;
  if (sunk) return w.EmitInto(OpKind::kAttention, inputs, w.op().outputs, w.zigzag());
  const int o = w.op().outputs[0], lse = w.op().outputs[1];
  whole[o] = w.Like(o, "whole");
  w.EmitInto(OpKind::kAttention, inputs, {whole[o], lse}, w.zigzag());
  w.EmitInto(OpKind::kReshard, {whole[o]}, {o});
  w.ValueOf(o).layout = kSharded;
}

/// Works on whole sequences, as attention does. The gradient of the sinks (`trains`) reads shards of both results.
void WriteAllToAllSink(AttentionWriter& w, WholeSequences& whole, bool trains) {
  const int o = w.op().outputs[0], lse = w.op().outputs[1];
  whole[o] = w.Like(o, "whole");
  whole[lse] = trains ? w.Like(lse, "whole") : lse;
  w.EmitInto(OpKind::kAttentionSink, w.op().inputs, {whole[o], whole[lse]}, w.op().attributes);
  w.EmitInto(OpKind::kReshard, {whole[o]}, {o});
  w.ValueOf(o).layout = kSharded;
  if (!trains) return;
  w.EmitInto(OpKind::kReshard, {whole[lse]}, {lse});
  w.ValueOf(lse).layout = kShardedSums;
}

void WriteAllToAllGrad(AttentionWriter& w, const WholeSequences& whole) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int> inputs =
      w.WithOthers({whole.at(in[0]), whole.at(in[1]), whole.at(in[2]), whole.at(in[3]),
                    whole.contains(in[4]) ? whole.at(in[4]) : in[4], w.Reshard(in[5], kWholeSequences, "whole")},
                   6);
  const std::vector<int> gradients = w.Emit(OpKind::kAttentionGrad, inputs, w.op().outputs, "whole", w.zigzag());
  for (size_t i = 0; i < gradients.size(); ++i) {
    w.EmitInto(OpKind::kReshard, {gradients[i]}, {w.op().outputs[i]});
    w.ValueOf(w.op().outputs[i]).layout = kSharded;
  }
}

void Write(AttentionWriter& w, ContextMode mode, WholeSequences& whole, bool sunk) {
  switch (mode) {
    case ContextMode::kRing:
      return WriteRing(w);
    case ContextMode::kAllGather:
      return WriteGather(w);
    case ContextMode::kAllToAll:
      return WriteAllToAll(w, whole, sunk);
  }
}
void WriteGrad(AttentionWriter& w, ContextMode mode, const WholeSequences& whole) {
  switch (mode) {
    case ContextMode::kRing:
      return WriteRingGrad(w);
    case ContextMode::kAllGather:
      return WriteGatherGrad(w);
    case ContextMode::kAllToAll:
      return WriteAllToAllGrad(w, whole);
  }
}

}  // namespace

void ContextParallel(Graph& graph, const PassContext& context) {
  const int cp = context.mesh.Degree(Axis::kCp);
  if (cp == 1) return;
  const Rewriter old(graph);
  const ContextMode mode = context.deck.parallel.context;
  WholeSequences whole;
  std::set<int> sunk;  // what attention_sink reads
  for (const Op& op : old.ops)
    if (op.kind == OpKind::kAttentionSink) sunk.insert(op.inputs[0]);
  for (const Op& op : old.ops) {
    if (op.kind == OpKind::kAttentionSink && mode == ContextMode::kAllToAll) {
      AttentionWriter writer(graph, op, cp);
      WriteAllToAllSink(writer, whole, HasBackward(context.purpose));
      continue;
    }
    const bool forward = op.kind == OpKind::kAttention;
    if (!forward && op.kind != OpKind::kAttentionGrad) {
      graph.ops.push_back(op);
      continue;
    }
    AttentionWriter writer(graph, op, cp);
    if (forward)
      Write(writer, mode, whole, sunk.contains(op.outputs[0]));
    else
      WriteGrad(writer, mode, whole);
  }
}

}  // namespace espalier
