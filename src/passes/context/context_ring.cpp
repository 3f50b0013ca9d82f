// Ring attention (Liu et al. 2023). Keys and values make cp - 1 hops around the ranks of a sequence. Each rank computes
// the attention of its queries to one block of keys at a time, while the next block is in flight:
//
//   lane cp   hop 1   hop 2   hop 3
//   compute   block 0 block 1 block 2 block 3
//
// The blocks are parts of one softmax: outputs and log-sum-exps are merged in fp32 after every hop, in this order on
// every rank. In backward keys and values make the same hops again. The gradients of a block of keys move with it from
// hop 1 on, and every rank adds its part, until they are back at their owner after cp - 1 hops; the owner adds its own
// part of hop 0 last.
#include "passes/context/attention_writer.hpp"

namespace espalier {
namespace {

using Tensors = std::vector<int>;  // keys and values, or their gradients

Attributes OfHop(const AttentionWriter& w, int hop) {
  Attributes attributes = w.zigzag();
  attributes.numbers["hop"] = hop;
  return attributes;
}

Tensors Shift(AttentionWriter& w, const Tensors& pair, const Tensors& named_after, int hop) {
  return w.Emit(OpKind::kRingShift, pair, named_after, "hop" + std::to_string(hop),
                {{{"axes", double(AxisSet{Axis::kCp}.bits())}}, {}});
}

Tensors Sum(AttentionWriter& w, const Tensors& a, const Tensors& b, const Tensors& named_after, int hop) {
  Tensors sums;
  for (size_t i = 0; i < a.size(); ++i)
    sums.push_back(w.Emit(OpKind::kAdd, {a[i], b[i]}, {named_after[i]}, "sum" + std::to_string(hop))[0]);
  return sums;
}

/// The sum of two fp32 values, cast to the type of `to`.
void SumInto(AttentionWriter& w, int a, int b, int to) {
  const Dtype dtype = w.ValueOf(to).type.dtype;
  if (dtype == Dtype::kF32) return w.EmitInto(OpKind::kAdd, {a, b}, {to});
  const int sum = w.Emit(OpKind::kAdd, {a, b}, {to}, "sum")[0];
  w.EmitInto(OpKind::kCast, {sum}, {to}, {{}, {{"to", std::string(Name(dtype))}}});
}

}  // namespace

void WriteRing(AttentionWriter& w) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int>& out = w.op().outputs;
  const Tensors own = {in[1], in[2]};
  Tensors keys = own, next, merged;
  for (int hop = 0; hop < w.cp(); ++hop, keys = next) {
    const std::string at = std::to_string(hop);
    const bool last = hop + 1 == w.cp();
    if (!last) next = Shift(w, keys, own, hop + 1);
    const Tensors part =
        w.Emit(OpKind::kAttention, w.WithOthers({in[0], keys[0], keys[1]}, 3), out, "part" + at, OfHop(w, hop));
    const Dtype to = last ? w.ValueOf(out[0]).type.dtype : Dtype::kF32;
    const Attributes as = {{}, {{"to", std::string(Name(to))}}};
    if (hop == 0)
      merged = part;
    else if (last)
      w.EmitInto(OpKind::kAttentionMerge, {merged[0], merged[1], part[0], part[1]}, out, as);
    else
      merged = w.Emit(OpKind::kAttentionMerge, {merged[0], merged[1], part[0], part[1]}, out, "merged" + at, as);
  }
}

void WriteRingGrad(AttentionWriter& w) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int>& out = w.op().outputs;
  const Tensors own = {in[1], in[2]}, gradients = {out[1], out[2]};
  Tensors keys = own, next, mine, moving;
  int queries = -1;
  for (int hop = 0; hop < w.cp(); ++hop, keys = next) {
    const bool last = hop + 1 == w.cp();
    if (hop > 1) moving = Shift(w, moving, gradients, hop);  // before the keys, because it is needed first
    if (!last) next = Shift(w, keys, own, hop + 1);
    const std::vector<int> inputs = w.WithOthers({in[0], keys[0], keys[1], in[3], in[4], in[5]}, 6);
    const std::vector<int> part =
        w.Emit(OpKind::kAttentionGrad, inputs, out, "part" + std::to_string(hop), OfHop(w, hop));
    const Tensors found = {part[1], part[2]};
    if (hop == 0) mine = found;
    if (hop > 0) moving = hop == 1 ? found : Sum(w, moving, found, gradients, hop);
    if (last) moving = Shift(w, moving, gradients, w.cp());
    if (hop == 0)
      queries = part[0];
    else if (last)
      SumInto(w, queries, part[0], out[0]);
    else
      queries = w.Emit(OpKind::kAdd, {queries, part[0]}, {out[0]}, "sum" + std::to_string(hop))[0];
  }
  for (size_t i = 0; i < 2; ++i) SumInto(w, mine[i], moving[i], gradients[i]);
}

}  // namespace espalier
