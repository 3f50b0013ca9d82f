// Causal attention with grouped heads, row by row (Vaswani et al. 2017, eq. 1).
#include <limits>
#include <vector>

#include "access.hpp"

namespace espalier::reference {
namespace {

/// Offsets of one (batch, query head) into [b,s,n] and [b,t,m] tensors.
struct Head {
  const AttentionShape& a;
  int64_t b, h;
  int64_t Query(int64_t i, int64_t c) const { return ((b * a.queries + i) * a.heads + h) * a.head_dim + c; }
  int64_t Key(int64_t j, int64_t c) const { return ((b * a.keys + j) * a.kv_heads + a.KvHeadOf(h)) * a.head_dim + c; }
  int64_t Row(int64_t i) const { return (b * a.heads + h) * a.queries + i; }
};

double Dot(const Tensor& x, const Tensor& y, const Head& head, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t c = 0; c < head.a.head_dim; ++c) sum += Get(x, head.Query(i, c)) * Get(y, head.Key(j, c));
  return sum;
}

void ForwardRow(const KernelCall& call, const Head& head, int64_t i) {
  const AttentionShape& a = head.a;
  const double scale = 1 / std::sqrt(static_cast<double>(a.head_dim)),
               hidden = -std::numeric_limits<double>::infinity();
  std::vector<double> p(static_cast<size_t>(a.keys), hidden);
  double largest = hidden, sum = 0;
  for (int64_t j = 0; j < a.keys; ++j) {
    if (!a.Sees(i, j)) continue;
    p[static_cast<size_t>(j)] = scale * Dot(call.inputs[0], call.inputs[1], head, i, j);
    largest = std::max(largest, p[static_cast<size_t>(j)]);
  }
  for (double& x : p) sum += x = x == hidden ? 0 : std::exp(x - largest);
  Set(call.outputs[1], head.Row(i), sum == 0 ? hidden : largest + std::log(sum));
  for (int64_t c = 0; c < a.head_dim; ++c) {
    double o = 0;
    for (int64_t j = 0; j < a.keys; ++j)
      if (a.Sees(i, j)) o += p[static_cast<size_t>(j)] * Get(call.inputs[2], head.Key(j, c));
    Set(call.outputs[0], head.Query(i, c), sum == 0 ? 0 : o / sum);
  }
}

struct Gradients {
  std::vector<double> dq, dk, dv;
};

// With p the probabilities: dv_j += p dO_i, ds = p (dO_i . v_j - dO_i . o_i), dq_i += ds k_j, dk_j += ds q_i.
void BackwardRow(const KernelCall& call, const Head& head, int64_t i, Gradients& g) {
  const AttentionShape& a = head.a;
  const Tensor &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2], &o = call.inputs[3], &dy = call.inputs[5];
  const double scale = 1 / std::sqrt(static_cast<double>(a.head_dim)), lse = Get(call.inputs[4], head.Row(i));
  double mean = 0;
  for (int64_t c = 0; c < a.head_dim; ++c) mean += Get(o, head.Query(i, c)) * Get(dy, head.Query(i, c));
  for (int64_t j = 0; j < a.keys; ++j) {
    if (!a.Sees(i, j)) continue;
    const double p = std::exp(scale * Dot(q, k, head, i, j) - lse);
    const double ds = scale * p * (Dot(dy, v, head, i, j) - mean);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const auto query = static_cast<size_t>(head.Query(i, c)), key = static_cast<size_t>(head.Key(j, c));
      g.dv[key] += p * Get(dy, head.Query(i, c));
      g.dq[query] += ds * Get(k, head.Key(j, c));
      g.dk[key] += ds * Get(q, head.Query(i, c));
    }
  }
}

void SetAll(const Tensor& x, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) Set(x, static_cast<int64_t>(i), values[i]);
}

template <typename F>
void ForRows(const AttentionShape& a, F f) {
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.queries; ++i) f(Head{a, b, h}, i);
    }
  }
}

// Two parts of one softmax, each over keys of its own: o = (e^la oa + e^lb ob) / (e^la + e^lb).
void MergeRow(const KernelCall& call, const Head& head, int64_t i) {
  const double la = Get(call.inputs[1], head.Row(i)), lb = Get(call.inputs[3], head.Row(i)), largest = std::max(la, lb);
  const bool hidden = largest == -std::numeric_limits<double>::infinity();
  const double wa = hidden ? 0 : std::exp(la - largest), wb = hidden ? 0 : std::exp(lb - largest);
  for (int64_t c = 0; c < head.a.head_dim; ++c) {
    const int64_t at = head.Query(i, c);
    Set(call.outputs[0], at, hidden ? 0 : (wa * Get(call.inputs[0], at) + wb * Get(call.inputs[2], at)) / (wa + wb));
  }
  Set(call.outputs[1], head.Row(i), hidden ? largest : largest + std::log(wa + wb));
}

}  // namespace

// q T[b,s,n], k T[b,t,m], v T[b,t,m] -> o T or f32[b,s,n], lse f32[b,h,s]. A query that sees no key: o = 0, lse = -inf.
void Attention(const KernelCall& call) {
  ForRows(AttentionOf(call), [&](const Head& head, int64_t i) { ForwardRow(call, head, i); });
}

// q, k, v, o, lse, dO -> dq, dk, dv
void AttentionGrad(const KernelCall& call) {
  Gradients g;
  g.dq.resize(static_cast<size_t>(Volume(call.outputs[0].shape)));
  g.dk.resize(static_cast<size_t>(Volume(call.outputs[1].shape)));
  g.dv.resize(static_cast<size_t>(Volume(call.outputs[2].shape)));
  ForRows(AttentionOf(call), [&](const Head& head, int64_t i) { BackwardRow(call, head, i, g); });
  SetAll(call.outputs[0], g.dq);
  SetAll(call.outputs[1], g.dk);
  SetAll(call.outputs[2], g.dv);
}

// oa f32[b,s,n], lse_a f32[b,h,s], ob, lse_b -> o T[b,s,n], lse f32[b,h,s]
void AttentionMerge(const KernelCall& call) {
  ForRows(MergedAttentionOf(call), [&](const Head& head, int64_t i) { MergeRow(call, head, i); });
}

}  // namespace espalier::reference
