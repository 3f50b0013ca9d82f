// Ring attention (Liu et al. 2023). Keys and values make cp - 1 hops around the ranks of a sequence; each rank meets
// its queries with every block in turn, while the next block is on its way:
//
//   lane cp   hop 1   hop 2   hop 3
//   compute   block 0 block 1 block 2 block 3
//
// The blocks are parts of one softmax: outputs and log-sum-exps are merged in fp32, hop after hop, in this order on
// every rank. Backward lets keys and values travel again, and what each rank finds of the gradients of a block of keys
// travels on with it, from hop 1 until it is home, cp - 1 hops as well; the owner adds its own part of hop 0 last.
#include "passes/context/attention_writer.hpp"

namespace espalier {
namespace {

using Pair = std::vector<int>;  // keys and values, or their gradients

Attributes OfHop(const AttentionWriter& w, int hop) {
  Attributes attributes = w.zigzag();
  attributes.numbers["hop"] = hop;
  return attributes;
}

Pair Shift(AttentionWriter& w, const Pair& pair, const Pair& named_after, int hop) {
  return w.Emit("ring_shift", pair, named_after, "hop" + std::to_string(hop),
                {{{"axes", double(AxisSet{Axis::kCp}.bits())}}, {}});
}

Pair Sum(AttentionWriter& w, const Pair& a, const Pair& b, const Pair& named_after, int hop) {
  Pair sums;
  for (size_t i = 0; i < a.size(); ++i)
    sums.push_back(w.Emit("add", {a[i], b[i]}, {named_after[i]}, "sum" + std::to_string(hop))[0]);
  return sums;
}

/// The sum of two fp32 parts, as `to` wants it.
void SumInto(AttentionWriter& w, int a, int b, int to) {
  const Dtype dtype = w.ValueOf(to).type.dtype;
  if (dtype == Dtype::kF32) return w.EmitInto("add", {a, b}, {to});
  const int sum = w.Emit("add", {a, b}, {to}, "sum")[0];
  w.EmitInto("cast", {sum}, {to}, {{}, {{"to", std::string(Name(dtype))}}});
}

}  // namespace

void WriteRing(AttentionWriter& w) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int>& out = w.op().outputs;
  const Pair own = {in[1], in[2]};
  Pair keys = own, next, merged;
  for (int hop = 0; hop < w.cp(); ++hop, keys = next) {
    const std::string at = std::to_string(hop);
    const bool last = hop + 1 == w.cp();
    if (!last) next = Shift(w, keys, own, hop + 1);
    const Pair part = w.Emit("attention", {in[0], keys[0], keys[1]}, out, "part" + at, OfHop(w, hop));
    const Dtype to = last ? w.ValueOf(out[0]).type.dtype : Dtype::kF32;
    const Attributes as = {{}, {{"to", std::string(Name(to))}}};
    if (hop == 0)
      merged = part;
    else if (last)
      w.EmitInto("attention_merge", {merged[0], merged[1], part[0], part[1]}, out, as);
    else
      merged = w.Emit("attention_merge", {merged[0], merged[1], part[0], part[1]}, out, "merged" + at, as);
  }
}

void WriteRingGrad(AttentionWriter& w) {
  const std::vector<int>& in = w.op().inputs;
  const std::vector<int>& out = w.op().outputs;
  const Pair own = {in[1], in[2]}, gradients = {out[1], out[2]};
  Pair keys = own, next, mine, travelling;
  int queries = -1;
  for (int hop = 0; hop < w.cp(); ++hop, keys = next) {
    const bool last = hop + 1 == w.cp();
    if (hop > 1) travelling = Shift(w, travelling, gradients, hop);  // first: it is needed first
    if (!last) next = Shift(w, keys, own, hop + 1);
    const std::vector<int> part = w.Emit("attention_grad", {in[0], keys[0], keys[1], in[3], in[4], in[5]}, out,
                                         "part" + std::to_string(hop), OfHop(w, hop));
    const Pair found = {part[1], part[2]};
    if (hop == 0) mine = found;
    if (hop > 0) travelling = hop == 1 ? found : Sum(w, travelling, found, gradients, hop);
    if (last) travelling = Shift(w, travelling, gradients, w.cp());
    if (hop == 0)
      queries = part[0];
    else if (last)
      SumInto(w, queries, part[0], out[0]);
    else
      queries = w.Emit("add", {queries, part[0]}, {out[0]}, "sum" + std::to_string(hop))[0];
  }
  for (size_t i = 0; i < 2; ++i) SumInto(w, mine[i], travelling[i], gradients[i]);
}

}  // namespace espalier
