// Attention with any mask, in zigzag order, hop by hop on a ring; its gradient and merge.
#include <fmt/format.h>

#include "fixture.hpp"

namespace espalier::testing {
namespace {

const Heads kHeads[] = {
    {1, 1, 1, 1, 1, 2},
    {2, 17, 17, 3, 3, 6},
    {1, 65, 65, 4, 2, 16},
    {2, 127, 127, 6, 2, 34},
    {1, 200, 200, 2, 1, 64},
    {1, 130, 130, 8, 8, 128},
    {1, 70, 70, 2, 1, 200},
    {1, 65, 65, 2, 2, 256},
    {1, 70, 70, 3, 3, 7},  // odd heads
    {2, 33, 65, 4, 4, 1, 32, 0},
    {1, 66, 66, 2, 2, 65},
    {1, 66, 132, 2, 2, 33, 66, 0, 1, 2, 132},
    {0, 5, 5, 2, 1, 16},  // nothing to do, no queries, no keys
    {1, 0, 5, 2, 1, 16},
    {1, 5, 0, 2, 1, 16, 0, 0, 0},
    {1, 63, 130, 2, 2, 10, 67, 0},    // queries are the last of the keys
    {1, 70, 133, 2, 1, 8, 40, 0},     // keys after the last query
    {2, 33, 65, 2, 2, 16, 10, 31},    // the first queries see nothing
    {1, 20, 30, 2, 2, 16, 0, 100},    // no query sees a key
    {1, 65, 129, 3, 1, 16, 0, 0, 0},  // not causal
    // Zigzag order: the queries of one rank, or of all.
    {1, 66, 132, 2, 1, 16, 0, 0, 1, 2, 132},
    {2, 66, 132, 4, 2, 6, 66, 0, 1, 2, 132},
    {1, 22, 66, 2, 2, 10, 22, 0, 1, 3, 66},
    {1, 264, 264, 2, 1, 16, 0, 0, 1, 4, 264},
    {1, 6, 12, 3, 3, 34, 6, 0, 0, 2, 12},
    // Blocks of a ring: the rank's own, an earlier rank's, a later one's; chunks that fill blocks of the kernel, and
    // others.
    {1, 140, 140, 2, 1, 16, 0, 0, 1, 2, 280, 0},
    {1, 140, 140, 2, 2, 16, 140, 140, 1, 2, 280, 0},
    {2, 66, 66, 2, 1, 10, 66, 66, 1, 3, 198, 1},
    {1, 66, 66, 2, 1, 34, 66, 66, 1, 3, 198, 2},
    {1, 256, 256, 1, 1, 16, 0, 0, 1, 2, 512, 1},
    {1, 2, 2, 1, 1, 2, 4, 4, 1, 4, 8, 3},
    // Values narrower and wider than keys, in order, of one rank of cp, and in a ring.
    {.batch = 1, .queries = 130, .keys = 130, .heads = 3, .kv_heads = 3, .head_dim = 192, .value_dim = 128},
    {.batch = 2, .queries = 65, .keys = 65, .heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = 16},
    {.batch = 1, .queries = 70, .keys = 70, .heads = 2, .kv_heads = 2, .head_dim = 7, .value_dim = 75},
    {.batch = 1,
     .queries = 66,
     .keys = 132,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 40,
     .query_start = 66,
     .cp = 2,
     .length = 132,
     .value_dim = 9},
    {.batch = 2,
     .queries = 66,
     .keys = 66,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 10,
     .query_start = 66,
     .key_start = 66,
     .cp = 3,
     .length = 198,
     .hop = 1,
     .value_dim = 34},
};

/// Windows of one token, smaller and larger than the blocks of a kernel, and larger than the sequence; documents; both.
std::vector<Heads> Masked() {
  constexpr struct {
    int64_t window;
    int documents;
  } kMasks[] = {{1, 0}, {0, 1}, {7, 0}, {40, 2}, {70, 0}, {0, 2}, {500, 0}, {5, 1}, {0, 3}};
  std::vector<Heads> all;
  size_t next = 0;
  for (Heads h : kHeads) {
    if (h.causal == 0) continue;
    for (int i = 0; i < 3; ++i, ++next) {
      h.window = kMasks[next % std::size(kMasks)].window, h.documents = kMasks[next % std::size(kMasks)].documents;
      all.push_back(h);
    }
  }
  return all;
}

std::vector<Heads> AllHeads() {
  std::vector<Heads> all = Masked();
  all.insert(all.end(), std::begin(kHeads), std::end(kHeads));
  return all;
}

TEST_P(Kernels, Attention) {
  for (const Heads& h : AllHeads()) {
    const Case c = AttentionCase(random_, T(), h);
    // |v| <= 1 bounds o. Scores are sums of head_dim terms up to 4; bf16 rounds probabilities.
    const double scores = SumBound(h.head_dim, 4 / std::sqrt(double(h.head_dim)));
    Check(c, 5 * scores + SumBound(h.keys, 1) + (T() == kBf16 ? 1.0 / 256 : 0));
  }
}

TEST_P(Kernels, AttentionGrad) {
  for (const Heads& h : AllHeads()) {
    const Case c = AttentionGradCase(random_, AttentionCase(random_, T(), h));
    const std::vector<OwnedTensor> expected = c.Reference();
    double largest = 1;
    for (const OwnedTensor& x : expected) largest = std::max(largest, x.Largest());
    const double relative =
        SumBound(std::max(h.head_dim, h.ValueDim()) + h.queries * h.heads / std::max<int64_t>(h.kv_heads, 1), 8) +
        (T() == kBf16 ? 1.0 / 64 : 0);
    CheckAgainst(expected, c, largest * relative);
  }
}

/// The same call with q, k and v in columns of one tensor, and their gradients in columns of another.
Case JoinedAttention(const Case& apart) {
  const std::vector<OwnedTensor> qkv(apart.inputs.begin(), apart.inputs.begin() + 3);
  Case joined{apart.op, {SideBySide(qkv)}, apart.outputs, WithColumns(apart.attributes, qkv)};
  joined.inputs.insert(joined.inputs.end(), apart.inputs.begin() + 3, apart.inputs.end());
  if (apart.outputs.size() == 3) joined.outputs = {SideBySide(apart.outputs)};
  return joined;
}

// Grouped heads or not, documents, windows, heads that libraries support and others: the same bits as three tensors.
TEST_P(Kernels, AttentionOfJoinedHeads) {
  for (const Heads& h : {Heads{2, 17, 17, 3, 3, 6},
                         {1, 127, 127, 6, 2, 34},
                         {2, 130, 130, 4, 2, 16},
                         {2, 200, 200, 2, 1, 64},
                         {1, 70, 70, 2, 1, 200},
                         {2, 65, 65, 3, 3, 8, 0, 0, 0},
                         {1, 90, 90, 4, 2, 16, 0, 0, 1, 1, 0, -1, 7},
                         {2, 90, 90, 2, 2, 8, 0, 0, 1, 1, 0, -1, 40, 2},
                         {0, 5, 5, 2, 1, 16},
                         {1, 0, 0, 2, 1, 16}}) {
    const Case forward = AttentionCase(random_, T(), h), joined = JoinedAttention(forward);
    const std::vector<OwnedTensor> results = forward.Tested(), of_joined = joined.Tested();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(of_joined[i].SameBits(results[i])) << "result " << i;
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(joined.Reference()[i].SameBits(forward.Reference()[i])) << i;
    const Case backward = AttentionGradCase(random_, forward), joined_backward = JoinedAttention(backward);
    EXPECT_TRUE(joined_backward.Tested()[0].SameBits(SideBySide(backward.Tested())));
    EXPECT_TRUE(joined_backward.Reference()[0].SameBits(SideBySide(backward.Reference())));
  }
}

// The numbers of the reference itself: a causal query with equal scores averages the values that it sees.
TEST(KernelsAttention, AQuerySeesItsWindowAndItsDocument) {
  constexpr int64_t kLength = 9;
  const auto averages = [&](int64_t window, std::vector<int> first_keys) {
    Case c{"attention",
           {OwnedTensor(kF32, {1, kLength, 1}), OwnedTensor(kF32, {1, kLength, 1}), OwnedTensor(kF32, {1, kLength, 1})},
           {OwnedTensor(kF32, {1, kLength, 1}), OwnedTensor(kF32, {1, 1, kLength})},
           {{{"head_dim", 1}, {"causal", 1}}, {}}};
    for (int64_t i = 0; i < kLength; ++i) c.inputs[2].Set(i, double(i));
    if (window > 0) c.attributes.numbers["window"] = double(window);
    if (!first_keys.empty()) c.inputs.emplace_back(Dtype::kI32, Shape{1, kLength});
    for (size_t i = 0; i < first_keys.size(); ++i) c.inputs[3].Set(int64_t(i), first_keys[i]);
    for (const OwnedTensor& o : {c.Reference()[0], c.Tested()[0]})
      for (int64_t i = 0; i < kLength; ++i) {
        const int64_t document = first_keys.empty() ? 0 : first_keys[size_t(i)];
        const int64_t first = std::max(document, window == 0 ? 0 : std::max<int64_t>(0, i - window + 1));
        EXPECT_NEAR(o[i], double(first + i) / 2, 1e-6) << "window " << window << ", query " << i;
      }
  };
  averages(0, {});
  averages(1, {});
  averages(3, {});
  averages(9, {});
  averages(0, {0, 1, 1, 1, 4, 4, 6, 6, 6});
  averages(2, {0, 1, 1, 1, 4, 4, 6, 6, 6});
}

// A hidden key, however large, changes no bit of a query that does not see it.
TEST_P(Kernels, HiddenTokensChangeNothing) {
  for (const Heads& h : {Heads{1, 200, 200, 2, 1, 16, 0, 0, 1, 1, 0, -1, 0, 2},
                         {1, 200, 200, 2, 1, 16, 0, 0, 1, 1, 0, -1, 50},
                         {1, 140, 140, 2, 1, 16, 0, 0, 1, 2, 280, 0, 0, 1}}) {
    const Case c = AttentionCase(random_, T(), h);
    Case poisoned = c;
    constexpr int64_t kPoisoned = 64;  // rows [0, 64)
    for (int64_t i = 0; i < kPoisoned * 16; ++i) poisoned.inputs[1].Set(i, 1e4), poisoned.inputs[2].Set(i, -1e30);
    const OwnedTensor clean = c.Tested()[0], o = poisoned.Tested()[0];
    int64_t apart = 0;
    for (int64_t i = 0; i < h.queries; ++i) {
      const int64_t position = ZigzagPosition(h.query_start + i, h.length, h.cp);
      const int64_t document = h.documents == 0 ? 0 : DocumentStart(h.documents, 0, position);
      const bool sees = std::max(document, h.window == 0 ? 0 : position - h.window + 1) < kPoisoned;
      apart += !sees;
      for (int64_t e = 0; e < 32 && !sees; ++e) ASSERT_EQ(o[i * 32 + e], clean[i * 32 + e]) << "query " << i;
    }
    EXPECT_GT(apart, 10);
  }
}

/// Parts of one softmax; the first rows of one part, or of both, have no keys.
Case MergeCase(Random& random, Dtype type, const Heads& h) {
  const Shape rows = {h.batch, h.queries, h.heads * h.head_dim}, sums = {h.batch, h.heads, h.queries};
  Case c{"attention_merge",
         {random.Real(kF32, rows), random.Real(kF32, sums, -9, 9), random.Real(kF32, rows),
          random.Real(kF32, sums, -9, 9)},
         {OwnedTensor(type, rows), OwnedTensor(kF32, sums)}};
  for (int64_t i = 0; i < std::min<int64_t>(2, h.queries); ++i) c.inputs[1].Set(i, -kInfinity);
  for (int64_t i = 1; i < std::min<int64_t>(3, h.queries); ++i) c.inputs[3].Set(i, -kInfinity);
  return c;
}

TEST_P(Kernels, AttentionMerge) {
  for (const Heads& h : kHeads) {
    const Case c = MergeCase(random_, T(), h);
    Check(c, SumBound(2, 9));
    if (T() == kF32) CheckInPlace(c, 0, 0);
  }
}

// Sinks that are small, and some that take nearly all of a softmax.
TEST_P(Kernels, AttentionSinks) {
  for (const Heads& h : kHeads) {
    const Shape rows = {h.batch, h.queries, h.heads * h.head_dim}, sums = {h.batch, h.heads, h.queries};
    const OwnedTensor sinks = Real({h.heads}, -9, 9);
    const Attributes attributes{{{"head_dim", double(h.head_dim)}}, {}};
    const Case c{"attention_sink",
                 {Real(rows), random_.Real(kF32, sums, -9, 9), sinks},
                 {Real(rows), OwnedTensor(kF32, sums)},
                 attributes};
    Check(c, SumBound(2, 9));
    CheckInPlace(c, 0, 0);
    CheckInPlace(c, 1, 1);
    // lse is no less than the sink.
    OwnedTensor lse = random_.Real(kF32, sums, 0, 4);
    for (int64_t i = 0; i < lse.Count(); ++i)
      lse.Set(i, lse[i] + sinks[i / std::max<int64_t>(1, h.queries) % std::max<int64_t>(1, h.heads)]);
    for (bool accumulate : {false, true}) {
      const Case grad{
          "attention_sink_grad", {lse, sinks, Real(rows), Real(rows)}, {F32({h.heads})}, attributes, accumulate};
      Check(grad, SumBound(h.batch * h.queries * h.head_dim + 1, 1));
    }
  }
}

// A key with the sink as its score and a value of 0 has the same result, and attention_grad the gradients.
TEST(KernelsAttention, ASinkIsAKeyWithoutAValue) {
  constexpr int64_t kLength = 7, kWidth = 4;
  const double sink = 0.7;
  Random random;
  // The first key of the longer sequence is the sink: all queries give it one score, for its column of ones.
  Case plain{"attention",
             {random.Real(kF32, {1, kLength, kWidth}), random.Real(kF32, {1, kLength, kWidth}),
              random.Real(kF32, {1, kLength, kWidth})},
             {OwnedTensor(kF32, {1, kLength, kWidth}), OwnedTensor(kF32, {1, 1, kLength})},
             {{{"head_dim", kWidth}, {"causal", 1}}, {}}};
  Case longer = plain;
  for (OwnedTensor& x : longer.inputs) x = OwnedTensor(kF32, {1, kLength + 1, kWidth});
  longer.outputs = {OwnedTensor(kF32, {1, kLength + 1, kWidth}), OwnedTensor(kF32, {1, 1, kLength + 1})};
  for (int64_t i = 0; i < kLength; ++i) {
    plain.inputs[0].Set(i * kWidth, 1);
    plain.inputs[1].Set(i * kWidth, 0);
    for (size_t x = 0; x < 3; ++x)
      for (int64_t c = 0; c < kWidth; ++c) longer.inputs[x].Set((i + 1) * kWidth + c, plain.inputs[x][i * kWidth + c]);
  }
  longer.inputs[1].Set(0, sink * std::sqrt(double(kWidth)));
  OwnedTensor sinks(kF32, {1});
  sinks.Set(0, sink);
  const std::vector<OwnedTensor> without = plain.Reference(), whole = longer.Reference();
  const Attributes heads{{{"head_dim", kWidth}}, {}};
  const std::vector<OwnedTensor> with =
      Case{"attention_sink", {without[0], without[1], sinks}, without, heads}.Tested();
  OwnedTensor d_o = random.Real(kF32, {1, kLength, kWidth}), d_longer(kF32, {1, kLength + 1, kWidth});
  for (int64_t i = 0; i < kLength * kWidth; ++i) {
    EXPECT_NEAR(with[0][i], whole[0][kWidth + i], 1e-6);
    d_longer.Set(kWidth + i, d_o[i]);
  }
  for (int64_t i = 0; i < kLength; ++i) EXPECT_NEAR(with[1][i], whole[1][1 + i], 1e-6);
  const auto gradients = [&](const Case& c, const std::vector<OwnedTensor>& results, const OwnedTensor& adjoint) {
    Case grad{"attention_grad", c.inputs, c.inputs, c.attributes};
    grad.inputs.insert(grad.inputs.end(), {results[0], results[1], adjoint});
    return grad.Tested();
  };
  const std::vector<OwnedTensor> of_plain = gradients(plain, with, d_o), of_longer = gradients(longer, whole, d_longer);
  for (int64_t i = 0; i < kLength * kWidth; ++i) {
    if (i % kWidth > 0) {  // the sink's key has no such column
      EXPECT_NEAR(of_plain[0][i], of_longer[0][kWidth + i], 1e-6);
    }
    for (size_t x : {1, 2}) EXPECT_NEAR(of_plain[x][i], of_longer[x][kWidth + i], 1e-6);
  }
  // The score of the sink is its key's first column over sqrt(width), by queries of 1.
  const OwnedTensor of_sink = Case{"attention_sink_grad", {with[1], sinks, with[0], d_o}, {sinks}, heads}.Tested()[0];
  EXPECT_NEAR(of_sink[0], of_longer[1][0] * std::sqrt(double(kWidth)), 1e-6);
}

/// The relative rounding error of bf16: probabilities are rounded before the matmul with the values and, if a library
/// computes attention block by block, each block's results are rounded before they are combined in fp32.
constexpr double kBf16Rounding = 1.0 / 256;

TEST(KernelsAttention, InZigzagOrder) {
  Random random;
  for (const Heads& h : ZigzagHeads()) {
    const Case c = AttentionCase(random, kBf16, h);
    const std::vector<OwnedTensor> tested = c.Tested(), reference = c.Reference();
    const std::string what = fmt::format("cp {}, queries {}, keys {}, hop {}", h.cp, h.query_start, h.keys, h.hop);
    const double scores = SumBound(h.head_dim, 4 / std::sqrt(double(h.head_dim))), sums = SumBound(h.keys, 1);
    // Probabilities and the weights of parts sum to 1, and |v| <= 1.
    ExpectNear(tested[0], reference[0], 2 * kBf16Rounding + 4 * scores + sums, "o, " + what);
    ExpectNear(tested[1], reference[1], 4 * scores + sums, "lse, " + what);
    EXPECT_TRUE(c.Tested()[0].SameBits(tested[0])) << what;
    const Case grad = AttentionGradCase(random, c, reference);
    const std::vector<OwnedTensor> gradients = grad.Tested(), expected = grad.Reference(), again = grad.Tested();
    for (size_t i = 0; i < 3; ++i) {
      // A row has at most a part of each rank's keys or queries, each about as large as the largest sum.
      const double parts = h.hop < 0 ? double(h.cp) : 1.0;
      ExpectNear(gradients[i], expected[i],
                 expected[i].Largest() * ((4 + parts) * kBf16Rounding + SumBound(h.keys * h.heads, 8)),
                 fmt::format("gradient {}, {}", i, what));
      EXPECT_TRUE(again[i].SameBits(gradients[i])) << what;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

/// A sequence on `cp` ranks of a ring, each of which merges its blocks hop by hop, and adds up its gradients.
struct RingCase {
  Dtype type;
  int64_t window;
  int documents;
};
class KernelsRing : public ::testing::TestWithParam<RingCase> {};

TEST_P(KernelsRing, IsTheWhole) {
  const auto [type, window, documents] = GetParam();
  const int64_t kPart = type == kF32 ? 44 : 256;
  constexpr int64_t kCp = 3, kWidth = 2 * 16;
  Random random;
  const Heads whole{1, kCp * kPart, kCp * kPart, 2, 1, 16, 0, 0, 1, kCp, kCp * kPart, -1, window, documents};
  const Case forward = AttentionCase(random, type, whole);
  const std::vector<OwnedTensor> expected = forward.Reference();
  const Case backward = AttentionGradCase(random, forward, expected);
  const std::vector<OwnedTensor> gradients = backward.Reference();
  const double rounding = type == kBf16 ? kBf16Rounding : 0;
  const auto bound = [&](const OwnedTensor& x) { return 1e-4 + (4 + kCp) * rounding * x.Largest(); };
  // Keys of another rank replace the rank's own.
  const auto part = [&](const OwnedTensor& x, int64_t of, int64_t rank) {
    OwnedTensor y(x.dtype(), {1, kPart, x.shape()[2]}, {0, rank * kPart, 0});
    for (int64_t i = 0; i < y.Count(); ++i) y.Set(i, x[of * y.Count() + i]);
    return y;
  };
  const auto lse_part = [&](int64_t rank) {
    OwnedTensor y(kF32, {1, 2, kPart});
    for (int64_t i = 0; i < y.Count(); ++i) y.Set(i, expected[1][i / kPart * kCp * kPart + rank * kPart + i % kPart]);
    return y;
  };
  const auto first_keys_part = [&](int64_t rank) {
    OwnedTensor y(Dtype::kI32, {1, kPart});
    for (int64_t i = 0; i < kPart; ++i) y.Set(i, forward.inputs[3][rank * kPart + i]);
    return y;
  };
  std::vector<OwnedTensor> dk(kCp, OwnedTensor(kF32, {1, kPart, 16})), dv = dk;
  const auto add = [](OwnedTensor& sum, const OwnedTensor& x) {
    for (int64_t i = 0; i < x.Count(); ++i) sum.Set(i, sum[i] + x[i]);
  };
  for (int64_t rank = 0; rank < kCp; ++rank) {
    std::vector<OwnedTensor> merged;
    OwnedTensor dq(kF32, {1, kPart, kWidth});
    for (int64_t hop = 0; hop < kCp; ++hop) {
      const int64_t from = (rank + kCp - hop) % kCp;
      const OwnedTensor k = part(forward.inputs[1], from, rank), v = part(forward.inputs[2], from, rank);
      Case block{"attention",
                 {part(forward.inputs[0], rank, rank), k, v},
                 {OwnedTensor(kF32, {1, kPart, kWidth}), lse_part(rank)},
                 forward.attributes};
      block.attributes.numbers["hop"] = double(hop);
      const std::vector<OwnedTensor> operands = block.inputs;
      if (documents > 0) block.inputs.push_back(first_keys_part(rank));
      const std::vector<OwnedTensor> found = block.Tested();
      merged = hop == 0 ? found
                        : Case{"attention_merge", {merged[0], merged[1], found[0], found[1]}, block.outputs}.Tested();
      Case grad{"attention_grad", operands, {dq, dk[from], dv[from]}, block.attributes};
      grad.inputs.insert(grad.inputs.end(),
                         {part(backward.inputs[3], rank, rank), lse_part(rank), part(backward.inputs[5], rank, rank)});
      if (documents > 0) grad.inputs.push_back(first_keys_part(rank));
      const std::vector<OwnedTensor> parts = grad.Tested();
      add(dq, parts[0]);
      add(dk[from], parts[1]);
      add(dv[from], parts[2]);
    }
    ExpectNear(merged[0], part(expected[0], rank, rank), 1e-5 + 2 * rounding, "o");
    ExpectNear(merged[1], lse_part(rank), 1e-5, "lse");
    ExpectNear(dq, part(gradients[0], rank, rank), bound(gradients[0]), "dq");
  }
  for (int64_t rank = 0; rank < kCp; ++rank) {
    ExpectNear(dk[rank], part(gradients[1], rank, rank), bound(gradients[1]), "dk");
    ExpectNear(dv[rank], part(gradients[2], rank, rank), bound(gradients[2]), "dv");
  }
}

// Windows of one token, shorter than a rank's chunk, so that whole hops are hidden, and longer; documents of one token.
INSTANTIATE_TEST_SUITE_P(, KernelsRing,
                         ::testing::Values(RingCase{kF32, 0, 0}, RingCase{kBf16, 0, 0}, RingCase{kF32, 1, 0},
                                           RingCase{kF32, 9, 0}, RingCase{kF32, 60, 0}, RingCase{kBf16, 100, 0},
                                           RingCase{kF32, 0, 3}, RingCase{kBf16, 0, 1}, RingCase{kF32, 30, 1}),
                         [](const auto& c) {
                           return fmt::format("{}_window{}_documents{}", Name(c.param.type), c.param.window,
                                              c.param.documents);
                         });

TEST(KernelsAttention, LogSumExpIsExactWhateverTheTypeOfTheProducts) {
  Random random;
  const Case c = AttentionCase(random, kBf16, {1, 100, 100, 2, 2, 32});
  ExpectNear(c.Tested()[1], c.Reference()[1], SumBound(132, 2), "lse");
}

TEST(KernelsAttention, NotANumberIsSeen) {
  Random random;
  Case c = AttentionCase(random, kF32, {1, 80, 80, 1, 1, 16});
  c.inputs[1].Set(70 * 16, std::nan(""));
  const OwnedTensor o = c.Tested()[0];
  EXPECT_TRUE(std::isfinite(o[69 * 16]));
  for (int64_t i = 70; i < 80; ++i) EXPECT_TRUE(std::isnan(o[i * 16])) << i;
}

}  // namespace
}  // namespace espalier::testing
