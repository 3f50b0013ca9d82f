// Attention with grouped heads, row by row (Vaswani et al. 2017, eq. 1).
#include <limits>
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// Offsets of one (batch, query head) into queries, results, keys and lse.
struct Head {
  const AttentionShape& shape;
  int64_t b, h;
  int64_t Query(int64_t i, int64_t c) const {
    return (b * shape.queries + i) * shape.QueryRow() + h * shape.head_dim + c;
  }
  int64_t Result(int64_t i, int64_t c) const {
    return ((b * shape.queries + i) * shape.heads + h) * shape.ValueDim() + c;
  }
  int64_t Key(int64_t j, int64_t c) const {
    return (b * shape.keys + j) * shape.KeyRow() + shape.KvHeadOf(h) * shape.head_dim + c;
  }
  int64_t Value(int64_t j, int64_t c) const {
    return (b * shape.keys + j) * shape.ValueRow() + shape.KvHeadOf(h) * shape.ValueDim() + c;
  }
  /// Offsets in dense tensors.
  int64_t DenseQuery(int64_t i, int64_t c) const {
    return ((b * shape.queries + i) * shape.heads + h) * shape.head_dim + c;
  }
  int64_t DenseKey(int64_t j, int64_t c) const {
    return ((b * shape.keys + j) * shape.kv_heads + shape.KvHeadOf(h)) * shape.head_dim + c;
  }
  int64_t DenseValue(int64_t j, int64_t c) const {
    return ((b * shape.keys + j) * shape.kv_heads + shape.KvHeadOf(h)) * shape.ValueDim() + c;
  }
  int64_t Row(int64_t i) const { return (b * shape.heads + h) * shape.queries + i; }
};

template <typename F>
void ForRows(const AttentionShape& shape, F f) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      for (int64_t i = 0; i < shape.queries; ++i) f(Head{shape, b, h}, i);
    }
  }
}

/// Dot product of `count` elements of x, from x0 on, with those of y, from y0 on.
double Dot(const Array& x, int64_t x0, const Array& y, int64_t y0, int64_t count) {
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += Get(x, x0 + c) * Get(y, y0 + c);
  return sum;
}

double ScaleOf(const AttentionShape& s) { return double(s.score_factor) / std::sqrt(static_cast<double>(s.head_dim)); }

/// The dropout factor of a query's probability for a key.
double FactorOf(const DropoutMask& mask, const Head& head, int64_t i, int64_t j) {
  if (!mask.Drops()) return 1;
  return mask.OfProbability(mask.tokens[head.b * head.shape.queries + i], head.h, head.shape.key_shard.PositionOf(j),
                            mask.Step());
}

void ForwardRow(const AttentionArgs& a, const Head& head, int64_t i) {
  const AttentionShape& s = a.shape;
  const double scale = ScaleOf(s), hidden = -std::numeric_limits<double>::infinity();
  std::vector<double> p(static_cast<size_t>(s.keys), hidden);
  double largest = hidden, sum = 0;
  for (int64_t j = 0; j < s.keys; ++j) {
    if (!s.Sees(a.first_keys, head.b, i, j)) continue;
    p[static_cast<size_t>(j)] = scale * Dot(a.q, head.Query(i, 0), a.k, head.Key(j, 0), s.head_dim);
    largest = std::max(largest, p[static_cast<size_t>(j)]);
  }
  for (double& x : p) sum += x = x == hidden ? 0 : std::exp(x - largest);
  Set(a.lse, head.Row(i), sum == 0 ? hidden : largest + std::log(sum));
  for (int64_t j = 0; j < s.keys; ++j) p[static_cast<size_t>(j)] *= FactorOf(a.dropout, head, i, j);
  std::vector<double> o(static_cast<size_t>(s.ValueDim()));
  for (int64_t j = 0; j < s.keys; ++j) {
    if (!s.Sees(a.first_keys, head.b, i, j)) continue;
    const double weight = p[static_cast<size_t>(j)];
    const int64_t value = head.Value(j, 0);
    for (int64_t c = 0; c < s.ValueDim(); ++c) o[static_cast<size_t>(c)] += weight * Get(a.v, value + c);
  }
  for (int64_t c = 0; c < s.ValueDim(); ++c)
    Set(a.o, head.Result(i, c), sum == 0 ? 0 : o[static_cast<size_t>(c)] / sum);
}

struct Gradients {
  std::vector<double> dq, dk, dv;
};

// With p the probabilities and f the factors of dropout: dv_j += p f dO_i, ds = p (f dO_i . v_j - dO_i . o_i), dq_i +=
// ds k_j, dk_j += ds q_i.
void BackwardRow(const AttentionGradArgs& a, const Head& head, int64_t i, Gradients& g) {
  const AttentionShape& s = a.shape;
  const double scale = ScaleOf(s), lse = a.lse[head.Row(i)];
  const int64_t query = head.Query(i, 0), result = head.Result(i, 0);
  const double mean = Dot(a.o, result, a.d_o, result, s.ValueDim());
  double* const dq = g.dq.data() + head.DenseQuery(i, 0);
  for (int64_t j = 0; j < s.keys; ++j) {
    if (!s.Sees(a.first_keys, head.b, i, j)) continue;
    const int64_t key = head.Key(j, 0);
    const double p = std::exp(scale * Dot(a.q, query, a.k, key, s.head_dim) - lse);
    const double factor = FactorOf(a.dropout, head, i, j);
    const double ds = scale * p * (factor * Dot(a.d_o, result, a.v, head.Value(j, 0), s.ValueDim()) - mean);
    double *const dk = g.dk.data() + head.DenseKey(j, 0), *const dv = g.dv.data() + head.DenseValue(j, 0);
    for (int64_t c = 0; c < s.ValueDim(); ++c) dv[c] += p * factor * Get(a.d_o, result + c);
    for (int64_t c = 0; c < s.head_dim; ++c) {
      dq[c] += ds * Get(a.k, key + c);
      dk[c] += ds * Get(a.q, query + c);
    }
  }
}

/// Stores rows of `width` values into rows that are `row` elements apart.
void SetRows(const Array& x, const std::vector<double>& values, int64_t width, int64_t row) {
  for (int64_t i = 0; i < std::ssize(values); ++i) Set(x, i / width * row + i % width, values[static_cast<size_t>(i)]);
}

void MergeRow(const AttentionMergeArgs& a, const Head& head, int64_t i) {
  const double lse_a = a.lse_a[head.Row(i)], lse_b = a.lse_b[head.Row(i)], largest = std::max(lse_a, lse_b);
  const bool hidden = largest == -std::numeric_limits<double>::infinity();
  const double wa = hidden ? 0 : std::exp(lse_a - largest), wb = hidden ? 0 : std::exp(lse_b - largest);
  for (int64_t c = 0; c < a.head_dim; ++c) {
    const int64_t at = head.Result(i, c);
    const double o_a = a.o_a[at], o_b = a.o_b[at];
    Set(a.o, at, hidden ? 0 : (wa * o_a + wb * o_b) / (wa + wb));
  }
  Set(a.lse, head.Row(i), hidden ? largest : largest + std::log(wa + wb));
}

}  // namespace

void Attention(const AttentionArgs& args) {
  AttentionArgs a = args;
  a.shape = args.Placed();
  ForRows(a.shape, [&](const Head& head, int64_t i) { ForwardRow(a, head, i); });
}

void AttentionGrad(const AttentionGradArgs& a) {
  const AttentionShape& s = a.shape;
  const int64_t keys = s.batch * s.keys * s.kv_heads;
  const auto zeros = [](int64_t count) { return std::vector<double>(static_cast<size_t>(count)); };
  Gradients g{zeros(s.batch * s.queries * s.heads * s.head_dim), zeros(keys * s.head_dim), zeros(keys * s.ValueDim())};
  ForRows(s, [&](const Head& head, int64_t i) { BackwardRow(a, head, i, g); });
  SetRows(a.dq, g.dq, s.heads * s.head_dim, s.QueryRow());
  SetRows(a.dk, g.dk, s.kv_heads * s.head_dim, s.KeyRow());
  SetRows(a.dv, g.dv, s.kv_heads * s.ValueDim(), s.ValueRow());
}

void AttentionMerge(const AttentionMergeArgs& a) {
  const AttentionShape shape{a.batch, a.queries, 0, a.heads, a.heads, a.head_dim, false, {}, {}};
  ForRows(shape, [&](const Head& head, int64_t i) { MergeRow(a, head, i); });
}

}  // namespace espalier::reference
