// Calls of kernels with their inputs and outputs, and the comparison of tested kernels with the reference.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "espalier/graph/columns.hpp"
#include "espalier/mesh/zigzag.hpp"
#include "kernels_testing.hpp"
#include "tested_kernels.hpp"

namespace espalier::testing {

inline constexpr Dtype kF32 = Dtype::kF32;
inline constexpr Dtype kBf16 = Dtype::kBf16;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One rounding step of an element type, relative.
inline double UnitOf(Dtype dtype) { return dtype == kBf16 ? 1.0 / 128 : 1.0 / (1 << 23); }

/// The element of a result with the largest error, as a share of its bound.
struct Margin {
  int64_t element = 0;
  double deviation = 0, bound = 1;

  double Share() const {
    const double share = deviation / bound;
    return std::isnan(share) ? kInfinity : share;
  }
};

/// Bounds are 2 ulp of the type, plus `absolute`.
inline Margin MarginOf(const OwnedTensor& actual, const OwnedTensor& expected, double absolute) {
  Margin worst;
  for (int64_t i = 0; i < actual.Count(); ++i) {
    const double a = actual[i], e = expected[i];
    if (a == e) continue;
    const Margin margin{i, std::abs(a - e), 2 * UnitOf(expected.dtype()) * std::abs(e) + absolute};
    if (margin.Share() > worst.Share()) worst = margin;
  }
  return worst;
}

/// Appends a line to the file that ESPALIER_KERNEL_MARGINS names: test, result, type, shape, deviation, bound, share.
inline void LogMargin(const Margin& margin, const OwnedTensor& x, const std::string& what) {
  const char* path = std::getenv("ESPALIER_KERNEL_MARGINS");
  if (path == nullptr) return;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::ofstream(path, std::ios::app) << fmt::format(
      "{}.{}\t{}\t{}\t{}\t{:.3e}\t{:.3e}\t{:.4f}\n", test->test_suite_name(), test->name(), what, Name(x.dtype()),
      ToString(x.shape()), margin.deviation, margin.bound, margin.Share());
}

/// |actual - expected| <= 2 ulp of the type, plus `absolute`, for every element.
inline void ExpectNear(const OwnedTensor& actual, const OwnedTensor& expected, double absolute,
                       const std::string& what) {
  ASSERT_EQ(actual.shape(), expected.shape());
  const Margin worst = MarginOf(actual, expected, absolute);
  LogMargin(worst, actual, what);
  ASSERT_LE(worst.Share(), 1) << what << ": element " << worst.element << " of " << ToString(actual.shape()) << " is "
                              << actual[worst.element] << ", not " << expected[worst.element] << ": off by "
                              << worst.deviation << ", more than " << worst.bound;
}

/// Error of an fp32 sum of `terms` terms of size `scale`.
inline double SumBound(int64_t terms, double scale) { return static_cast<double>(terms + 8) * scale / (1 << 24); }

/// Inputs and freshly filled outputs of one call.
struct Case {
  std::string op;
  std::vector<OwnedTensor> inputs, outputs;
  Attributes attributes = {};
  bool accumulate = false;

  template <typename F>
  std::vector<OwnedTensor> Outputs(F run) const {
    std::vector<OwnedTensor> results = outputs;
    std::vector<Tensor> in, out;
    for (const OwnedTensor& x : inputs) in.push_back(x.View());
    for (OwnedTensor& y : results) out.push_back(y.View());
    run(KernelCall{.inputs = in, .outputs = out, .attributes = &attributes, .accumulate = accumulate});
    for (const OwnedTensor& y : results) EXPECT_TRUE(y.IsIntact()) << op << " writes past its output";
    return results;
  }
  std::vector<OwnedTensor> Tested() const {
    return Outputs([&](const KernelCall& call) { RunTested(op, call); });
  }
  std::vector<OwnedTensor> Reference() const {
    return Outputs([&](const KernelCall& call) { FindReferenceKernel(op)(call); });
  }
};

/// Columns of tensors with the same rows, side by side in one.
inline OwnedTensor SideBySide(const std::vector<OwnedTensor>& parts) {
  Shape shape = parts[0].shape();
  shape.back() = 0;
  for (const OwnedTensor& x : parts) shape.back() += x.shape().back();
  OwnedTensor all(parts[0].dtype(), shape);
  int64_t first = 0;
  for (const OwnedTensor& x : parts) {
    const int64_t width = x.shape().back();
    for (int64_t i = 0; i < x.Count(); ++i) all.Set(i / width * shape.back() + first + i % width, x[i]);
    first += width;
  }
  return all;
}

/// The attribute `columns` of parts with these widths, each times `shards`, since it states global widths.
inline Attributes WithColumns(Attributes attributes, const std::vector<OwnedTensor>& parts, int64_t shards = 3) {
  std::vector<int64_t> widths;
  for (const OwnedTensor& x : parts) widths.push_back(shards * x.shape().back());
  SetColumns(attributes, widths);
  return attributes;
}

/// Calls `check(way)` while the tested kernels compute in each of the other ways.
template <typename F>
void InOtherWays(F check) {
  for (int way : OtherWays()) {
    SetWay(way);
    check(way);
  }
  SetWay(0);
}

/// Compares all outputs with the reference's, and bit by bit with those of the other ways to compute (`in_any_way`).
inline void CheckAgainst(const std::vector<OwnedTensor>& reference, const Case& c, double absolute,
                         bool in_any_way = true) {
  const std::vector<OwnedTensor> tested = c.Tested();
  for (size_t o = 0; o < tested.size(); ++o) {
    ExpectNear(tested[o], reference[o], absolute, c.op + " output " + std::to_string(o));
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (!in_any_way) return;
  InOtherWays([&](int way) {
    const std::vector<OwnedTensor> again = c.Tested();
    for (size_t o = 0; o < tested.size(); ++o)
      EXPECT_TRUE(again[o].SameBits(tested[o])) << c.op << " output " << o << " differs in way " << way;
  });
}

inline void Check(const Case& c, double absolute, bool in_any_way = true) {
  CheckAgainst(c.Reference(), c, absolute, in_any_way);
}

/// Runs the tested kernel with output `output` in the memory of input `input`; its bits must not change.
inline void CheckInPlace(const Case& c, size_t output, size_t input) {
  const std::vector<OwnedTensor> apart = c.Tested();
  std::vector<OwnedTensor> inputs = c.inputs, outputs = c.outputs;
  std::vector<Tensor> in, out;
  for (const OwnedTensor& x : inputs) in.push_back(x.View());
  for (const OwnedTensor& y : outputs) out.push_back(y.View());
  out[output] = in[input];
  RunTested(c.op, {.inputs = in, .outputs = out, .attributes = &c.attributes, .accumulate = c.accumulate});
  for (size_t o = 0; o < outputs.size(); ++o) {
    EXPECT_TRUE((o == output ? inputs[input] : outputs[o]).SameBits(apart[o])) << c.op << " in place, output " << o;
  }
}

/// An element-wise kernel on pieces of its tensors, which end within vectors, computes the bits that it computes on the
/// whole. Scalars are of every piece.
inline void CheckPieces(const Case& c) {
  const std::vector<OwnedTensor> whole = c.Tested();
  const int64_t rows = whole[0].shape()[0];
  for (int64_t begin = 0, size = 1; begin < rows; begin += std::exchange(size, 2 * size + 1)) {
    const int64_t end = std::min(rows, begin + size);
    Case piece = c;
    for (std::vector<OwnedTensor>* tensors : {&piece.inputs, &piece.outputs})
      for (OwnedTensor& x : *tensors)
        if (!x.shape().empty()) x = x.Rows(begin, end);
    const std::vector<OwnedTensor> results = piece.Tested();
    for (size_t o = 0; o < results.size(); ++o)
      EXPECT_TRUE(results[o].SameBits(whole[o].Rows(begin, end)))
          << c.op << " output " << o << ", rows " << begin << " to " << end;
  }
}

struct Sizes {
  int64_t rows, n, k;
};

struct Heads {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  int64_t query_start = 0, key_start = 0;
  int causal = 1;
  int64_t cp = 1, length = 0;  ///< zigzag order
  int hop = -1;                ///< a block of a ring
  int64_t window = 0;
  int documents = 0;      ///< 0: not separated; otherwise a row of kDocumentLengths, from 1
  int64_t value_dim = 0;  ///< 0: head_dim

  int64_t ValueDim() const { return value_dim > 0 ? value_dim : head_dim; }
};

/// Lengths of the documents of a sequence, repeated: one token, within a block of 64 and across, at its edges.
inline constexpr int64_t kDocumentLengths[][5] = {{1, 5, 90, 1, 33}, {64, 128, 64, 1, 63}, {3, 1, 1, 2, 300}};

/// The first position of the document at a position of sequence `batch`; every sequence has its own order of lengths.
inline int64_t DocumentStart(int documents, int64_t batch, int64_t position) {
  int64_t start = 0;
  for (int64_t i = batch;; ++i) {
    const int64_t next = start + kDocumentLengths[documents - 1][i % 5];
    if (position < next) return start;
    start = next;
  }
}

/// Sequences in zigzag order, in the chunks that libraries support: every hop of a ring on every rank, one rank's
/// queries against gathered keys, and whole sequences.
inline std::vector<Heads> ZigzagHeads() {
  constexpr int64_t kPart = 256;
  std::vector<Heads> all;
  for (int64_t cp : {2, 3, 4}) {
    const int64_t length = cp * kPart, b = cp == 2 ? 2 : 1, e = cp == 2 ? 64 : 8;
    for (int64_t rank = 0; rank < cp; ++rank) {
      for (int hop = 0; hop < cp; ++hop)
        all.push_back({b, kPart, kPart, 2, 1, e, rank * kPart, rank * kPart, 1, cp, length, hop});
      all.push_back({b, kPart, length, 2, 1, e, rank * kPart, 0, 1, cp, length});
    }
    all.push_back({1, length, length, 2, 2, 16, 0, 0, 1, cp, length});
  }
  return all;
}

inline Case AttentionCase(Random& random, Dtype type, const Heads& h) {
  const Dtype result = h.hop < 0 ? type : kF32;
  Case c{"attention",
         {random.Real(type, {h.batch, h.queries, h.heads * h.head_dim}, -2, 2, {0, h.query_start, 0}),
          random.Real(type, {h.batch, h.keys, h.kv_heads * h.head_dim}, -2, 2, {0, h.key_start, 0}),
          random.Real(type, {h.batch, h.keys, h.kv_heads * h.ValueDim()}, -1, 1, {0, h.key_start, 0})},
         {OwnedTensor(result, {h.batch, h.queries, h.heads * h.ValueDim()}),
          OwnedTensor(kF32, {h.batch, h.heads, h.queries})}};
  c.attributes.numbers = {{"head_dim", h.head_dim}, {"causal", h.causal}};
  if (h.cp > 1) c.attributes.numbers.insert({{"cp", h.cp}, {"length", h.length}});
  if (h.hop >= 0) c.attributes.numbers["hop"] = h.hop;
  if (h.window > 0) c.attributes.numbers["window"] = double(h.window);
  if (h.value_dim > 0) c.attributes.numbers.insert({{"value_dim", double(h.value_dim)}, {"score_factor", 1.25}});
  if (h.documents == 0) return c;
  OwnedTensor& first_keys = c.inputs.emplace_back(Dtype::kI32, Shape{h.batch, h.queries});
  for (int64_t i = 0; i < first_keys.Count(); ++i)
    first_keys.Set(i, double(DocumentStart(h.documents, i / h.queries,
                                           ZigzagPosition(h.query_start + i % h.queries, h.length, h.cp))));
  return c;
}

/// The gradient of `forward`, whose results are the reference's.
inline Case AttentionGradCase(Random& random, const Case& forward, const std::vector<OwnedTensor>& results) {
  Case c{"attention_grad", {}, {}, forward.attributes};
  c.inputs.assign(forward.inputs.begin(), forward.inputs.begin() + 3);
  OwnedTensor o(forward.inputs[0].dtype(), results[0].shape());
  for (int64_t i = 0; i < o.Count(); ++i) o.Set(i, results[0][i]);
  c.inputs.insert(c.inputs.end(), {o, results[1], random.Real(o.dtype(), o.shape())});
  c.inputs.insert(c.inputs.end(), forward.inputs.begin() + 3, forward.inputs.end());
  for (int i = 0; i < 3; ++i) c.outputs.push_back(random.Real(results[0].dtype(), forward.inputs[i].shape()));
  return c;
}

inline Case AttentionGradCase(Random& random, const Case& forward) {
  return AttentionGradCase(random, forward, forward.Reference());
}

/// Tensors with these numbers of elements; the first `decaying` decay.
inline Case AdamwCase(const std::vector<int64_t>& tensors, int decaying, double apply = 1) {
  Random random;
  Case c{"adamw", {}, {}};
  for (double x : {3e-2, 7.0, 0.25, apply}) c.inputs.push_back(random.Real(kF32, {}, x, x));
  for (int64_t n : tensors) {
    const std::vector<OwnedTensor> state = {random.Real(kF32, {n}), random.Real(kF32, {n}),
                                            random.Real(kF32, {n}, 0, 1)};
    c.inputs.insert(c.inputs.end(), state.begin(), state.end());
    c.inputs.push_back(random.Real(kF32, {n}));
    c.outputs.insert(c.outputs.end(), state.begin(), state.end());
  }
  c.attributes.numbers = {
      {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decaying", decaying}};
  return c;
}

}  // namespace espalier::testing
