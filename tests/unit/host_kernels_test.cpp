// Tests for the host alone: the bits of the cpu's GEMMs, its vector functions, and the reference's gradients against
// finite differences of its forwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "espalier/kernels/shapes.hpp"
#include "kernel_cases.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/cpu/runtime/vector.hpp"

namespace espalier {
namespace {

using namespace testing;

/// Rows [first, first + count) of dim 1.
OwnedTensor RowsOf(const OwnedTensor& x, int64_t first, int64_t count) {
  const int64_t rows = x.shape()[1], width = x.shape()[2];
  OwnedTensor y(x.dtype(), {x.shape()[0], count, width});
  for (int64_t i = 0; i < y.Count(); ++i)
    y.Set(i, x[(i / (count * width) * rows + first) * width + i % (count * width)]);
  return y;
}

// Queries over caches whose later rows hold other values: equal to the last queries of a sequence that ends with them.
TEST(KernelsAttention, OverACacheIsThatOfTheWholeSequence) {
  Random random;
  constexpr int64_t kBatch = 2, kLength = 151;
  for (const auto& [heads, kv_heads, head_dim, window] :
       {std::tuple{1, 1, 2, 0}, {4, 2, 16, 0}, {6, 1, 7, 40}, {3, 3, 65, 1}, {2, 2, 128, 500}}) {
    for (const auto& [first, queries] : {std::pair{0, 1}, {0, 70}, {1, 1}, {63, 1}, {64, 5}, {150, 1}, {100, 51}}) {
      for (const Dtype dtype : {kF32, kBf16}) {
        const int64_t end = first + queries;
        Case whole{
            "attention",
            {random.Real(dtype, {kBatch, kLength, heads * head_dim}),
             random.Real(dtype, {kBatch, kLength, kv_heads * head_dim}),
             random.Real(dtype, {kBatch, kLength, kv_heads * head_dim})},
            {OwnedTensor(dtype, {kBatch, kLength, heads * head_dim}), OwnedTensor(kF32, {kBatch, heads, kLength})},
            {{{"head_dim", head_dim}, {"causal", 1}}, {}}};
        if (window > 0) whole.attributes.numbers["window"] = window;
        Case cached = whole;
        cached.attributes.numbers["cached"] = 1;
        cached.inputs[0] = RowsOf(whole.inputs[0], first, queries);
        cached.inputs.emplace_back(Dtype::kI32, Shape{queries});
        for (int64_t i = 0; i < queries; ++i) cached.inputs[3].Set(i, double(first + i));
        for (OwnedTensor* cache : {&cached.inputs[1], &cached.inputs[2]})
          for (int64_t i = 0; i < cache->Count(); ++i)
            if (i / (kv_heads * head_dim) % kLength >= end) cache->Set(i, 1000);
        cached.outputs = {OwnedTensor(dtype, {kBatch, queries, heads * head_dim}),
                          OwnedTensor(kF32, {kBatch, heads, queries})};
        const double scores = SumBound(head_dim, 4 / std::sqrt(double(head_dim)));
        Check(cached, 4 * scores + SumBound(kLength, 1) + (dtype == kBf16 ? 1.0 / 256 : 0));
        ExpectNear(cached.Reference()[0], RowsOf(whole.Reference()[0], first, queries), 0, "the reference");
      }
    }
  }
}

TEST(KernelsLevel, IsTheOneThatTheEnvironmentNames) {
  const char* cap = std::getenv("ESPALIER_ISA");
  if (cap != nullptr) {
    EXPECT_EQ(CpuLevel(), cap);
  }
  EXPECT_EQ(CpuWidensBf16(), CpuLevel() != "avx512_bf16" && CpuLevel() != "amx");
}

/// Elements [first, first + count) of a dim.
OwnedTensor Cut(const OwnedTensor& x, size_t dim, int64_t first, int64_t count) {
  Shape shape = x.shape();
  const int64_t length = shape[dim], inner = Volume(Shape(shape.begin() + static_cast<int64_t>(dim) + 1, shape.end()));
  shape[dim] = count;
  OwnedTensor y(x.dtype(), shape);
  for (int64_t i = 0; i < y.Count(); ++i)
    y.Set(i, x[(i / (count * inner) * length + first) * inner + i % (count * inner)]);
  return y;
}

/// A GEMM as in a layer, of `rows` x `columns` with a contracted dim of `depth`.
struct Form {
  const char* spec;
  Shape a, b;
  size_t row, column;  ///< dims of a and of b that c has
  OwnedTensor c;       ///< its old value
  bool accumulate;
  std::vector<OwnedTensor> bias = {};  ///< one or none

  OwnedTensor Product(const OwnedTensor& left, const OwnedTensor& right, const OwnedTensor& to,
                      const std::vector<OwnedTensor>& its_bias) const {
    Case product{"matmul", {left, right}, {to}, {{}, {{"spec", spec}}}, accumulate};
    product.inputs.insert(product.inputs.end(), its_bias.begin(), its_bias.end());
    return product.Tested()[0];
  }
};

std::vector<Form> Forms(Random& random, Dtype dtype, int64_t rows, int64_t columns, int64_t depth) {
  const Shape result = {1, rows, columns}, gradient = {rows, columns};
  return {{"bsk,nk->bsn", {1, rows, depth}, {columns, depth}, 1, 0, {dtype, result}, false},
          {"bsk,kn->bsn",
           {1, rows, depth},
           {depth, columns},
           1,
           1,
           {dtype, result},
           false,
           {random.Real(dtype, {columns})}},
          {"bsn,nk->bsk", {1, rows, depth}, {depth, columns}, 1, 1, {dtype, result}, false},
          {"bsn,bsk->nk", {1, depth, rows}, {1, depth, columns}, 2, 2, {kF32, gradient}, false},
          {"bsn,bsk->nk", {1, depth, rows}, {1, depth, columns}, 2, 2, random.Real(kF32, gradient), true}};
}

struct Part {
  int64_t row, column, rows, columns;
};

/// The GEMM again on three threads, and parts of it alone.
void ExpectSameBits(Random& random, Dtype dtype, const Form& f, const std::vector<Part>& parts) {
  const OwnedTensor a = random.Real(dtype, f.a), b = random.Real(dtype, f.b), whole = f.Product(a, b, f.c, f.bias);
  const std::string what = fmt::format("{} {} of {} and {}", f.spec, Name(dtype), ToString(f.a), ToString(f.b));
  const int threads = cpu::Threads();
  SetCpuThreads(3);
  EXPECT_TRUE(f.Product(a, b, f.c, f.bias).SameBits(whole)) << what;
  SetCpuThreads(threads);
  const size_t dims = f.c.shape().size();
  for (const Part& p : parts) {
    const auto of = [&](const OwnedTensor& c) {
      return Cut(Cut(c, dims - 2, p.row, p.rows), dims - 1, p.column, p.columns);
    };
    std::vector<OwnedTensor> bias;
    for (const OwnedTensor& x : f.bias) bias.push_back(Cut(x, 0, p.column, p.columns));
    const OwnedTensor part =
        f.Product(Cut(a, f.row, p.row, p.rows), Cut(b, f.column, p.column, p.columns), of(f.c), bias);
    EXPECT_TRUE(part.SameBits(of(whole)))
        << what << " from " << p.row << ", " << p.column << ": " << p.rows << " x " << p.columns;
  }
}

// Strips of rows, columns of joined weights, and threads change no bit.
TEST(KernelsMatmul, AnElementDependsOnItsRowAndItsColumnAlone) {
  const char* seed = std::getenv("ESPALIER_SEED");
  std::mt19937 chooser(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 1);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(chooser);
  };
  Random random;
  for (int i = 0; i < 12; ++i) {
    const bool wide = i % 4 == 0;  // more than a block of columns
    const int64_t rows = draw(1, 300), columns = draw(1, wide ? 2600 : 400), depth = draw(1, wide ? 1100 : 2300);
    std::vector<Part> parts = {{0, 0, 1, 1}, {rows - 1, 0, 1, columns}};
    for (int n = 0; n < 3; ++n) {
      const int64_t row = draw(0, rows - 1), column = draw(0, columns - 1);
      parts.push_back({row, column, draw(1, rows - row), draw(1, columns - column)});
    }
    const Dtype dtype = i % 2 == 0 ? kF32 : kBf16;
    ExpectSameBits(random, dtype, Forms(random, dtype, rows, columns, depth)[static_cast<size_t>(draw(0, 4))], parts);
  }
}

// As for a token of a text: GEMMs of up to four rows read their right operand in place. Depths are one and more blocks
// of the contracted dim, whole and partial vectors and squares.
TEST(KernelsMatmul, FewRowsHaveTheBitsOfMany) {
  Random random;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 1},     {3, 15},   {16, 16},    {31, 33},   {64, 1024},
                                                          {70, 1025}, {129, 47}, {200, 2049}, {2500, 40}, {33, 4101}};
  for (const Dtype dtype : {kF32, kBf16})
    for (const auto& [columns, depth] : sizes)
      for (const Form& f : Forms(random, dtype, 7, columns, depth))
        ExpectSameBits(
            random, dtype, f,
            {{0, 0, 1, columns}, {2, 0, 2, columns}, {1, 0, 3, columns}, {3, columns / 2, 4, columns - columns / 2}});
}

// With tiles: more than one block of each dim, and their remainders, against parts that fit into one block.
TEST(KernelsTiles, AnElementDependsOnItsRowAndItsColumnAlone) {
  if (CpuLevel() != "amx") GTEST_SKIP() << "level " << CpuLevel();
  Random random;
  for (const Form& f : Forms(random, kBf16, 2150, 2120, 2100))
    ExpectSameBits(random, kBf16, f, {{0, 0, 1, 1}, {2047, 2040, 103, 80}, {1000, 31, 33, 70}});
}

TEST(KernelsVector, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (int64_t i = -87300000; i <= 88300000; i += 3001) {
    const float x = static_cast<float>(i) * 1e-6f;
    const float actual = cpu::Exp(cpu::Broadcast(x))[0];
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::nextafter(static_cast<float>(exact), kInfinity) - static_cast<float>(exact);
    worst = std::max(worst, std::abs(actual - exact) / ulp);
  }
  EXPECT_LE(worst, 2);
  EXPECT_EQ(cpu::Exp(cpu::Broadcast(-kInfinity))[0], 0);
  EXPECT_EQ(cpu::Exp(cpu::Broadcast(-200))[0], 0);
  EXPECT_EQ(cpu::Exp(cpu::Broadcast(200))[0], kInfinity);
  EXPECT_EQ(cpu::Exp(cpu::Broadcast(0))[0], 1);
  EXPECT_TRUE(std::isnan(cpu::Exp(cpu::Broadcast(std::nanf("")))[0]));
}

// Finite differences. With random weights u, f(x) = sum of u y(x); df/dx_i must equal the gradient kernel's result for
// dy = u. The forwards round to fp32, so steps are large and bounds have the size of the third derivative.
class Differences : public ::testing::Test {
 protected:
  OwnedTensor Real(Shape shape, double low = -1, double high = 1) { return random_.Real(kF32, shape, low, high); }

  /// Derivatives of the weighted sum of output 0 with respect to every element of an input.
  static std::vector<double> Differentiate(Case c, size_t input, const OwnedTensor& weights) {
    const auto sum = [&] {
      const OwnedTensor y = c.Reference()[0];
      double f = 0;
      for (int64_t i = 0; i < y.Count(); ++i) f += weights[i] * y[i];
      return f;
    };
    std::vector<double> result;
    OwnedTensor& x = c.inputs[input];
    for (int64_t i = 0; i < x.Count(); ++i) {
      const double at = x[i];
      x.Set(i, at + 0.0078125);
      const double high = x[i], above = sum();
      x.Set(i, at - 0.0078125);
      const double low = x[i], below = sum();
      x.Set(i, at);
      result.push_back((above - below) / (high - low));
    }
    return result;
  }

  static void ExpectGradient(const OwnedTensor& gradient, const std::vector<double>& differences) {
    ASSERT_EQ(static_cast<size_t>(gradient.Count()), differences.size());
    for (int64_t i = 0; i < gradient.Count(); ++i) {
      EXPECT_NEAR(gradient[i], differences[static_cast<size_t>(i)], 5e-4) << "element " << i;
    }
  }

  Random random_;
};

TEST_F(Differences, Embedding) {
  const Case forward{"embedding", {random_.Integer({2, 5}, 0, 6), Real({7, 3})}, {OwnedTensor(kF32, {2, 5, 3})}};
  const OwnedTensor dy = Real({2, 5, 3});
  const Case grad{"embedding_grad", {forward.inputs[0], dy}, {OwnedTensor(kF32, {7, 3})}};
  ExpectGradient(grad.Reference()[0], Differentiate(forward, 1, dy));
}

TEST_F(Differences, RmsNorm) {
  const Case forward{"rms_norm",
                     {Real({2, 2, 7}), Real({7})},
                     {OwnedTensor(kF32, {2, 2, 7}), OwnedTensor(kF32, {2, 2})},
                     {{{"eps", 1e-2}}, {}}};
  const OwnedTensor dy = Real({2, 2, 7}), rstd = forward.Reference()[1];
  const Case input{"rms_norm_grad", {forward.inputs[0], forward.inputs[1], rstd, dy}, {OwnedTensor(kF32, {2, 2, 7})}};
  ExpectGradient(input.Reference()[0], Differentiate(forward, 0, dy));
  const Case weight{"rms_norm_weight_grad", {forward.inputs[0], rstd, dy}, {OwnedTensor(kF32, {7})}};
  ExpectGradient(weight.Reference()[0], Differentiate(forward, 1, dy));
}

TEST_F(Differences, LayerNorm) {
  const Case forward{"layer_norm",
                     {Real({2, 2, 7}), Real({7}), Real({7})},
                     {OwnedTensor(kF32, {2, 2, 7}), OwnedTensor(kF32, {2, 2}), OwnedTensor(kF32, {2, 2})},
                     {{{"eps", 1e-1}}, {}}};
  const OwnedTensor dy = Real({2, 2, 7}), mean = forward.Reference()[1], rstd = forward.Reference()[2];
  const Case input{
      "layer_norm_grad", {forward.inputs[0], forward.inputs[1], mean, rstd, dy}, {OwnedTensor(kF32, {2, 2, 7})}};
  ExpectGradient(input.Reference()[0], Differentiate(forward, 0, dy));
  const Case weight{
      "layer_norm_weight_grad", {forward.inputs[0], mean, rstd, dy}, {OwnedTensor(kF32, {7}), OwnedTensor(kF32, {7})}};
  const std::vector<OwnedTensor> gradients = weight.Reference();
  for (size_t i = 0; i < 2; ++i) ExpectGradient(gradients[i], Differentiate(forward, i + 1, dy));
}

TEST_F(Differences, PositionEmbedding) {
  const Case forward{"position_embedding",
                     {Real({2, 3, 4}), random_.Integer({3}, 0, 4), Real({5, 4})},
                     {OwnedTensor(kF32, {2, 3, 4})}};
  const OwnedTensor dy = Real({2, 3, 4});
  const Case grad{"position_embedding_grad", {forward.inputs[1], dy}, {OwnedTensor(kF32, {5, 4})}};
  ExpectGradient(grad.Reference()[0], Differentiate(forward, 2, dy));
}

TEST_F(Differences, Bias) {
  const Case forward{"add_bias", {Real({2, 3, 4}), Real({4})}, {OwnedTensor(kF32, {2, 3, 4})}};
  const OwnedTensor dy = Real({2, 3, 4});
  ExpectGradient(Case{"bias_grad", {dy}, {OwnedTensor(kF32, {4})}}.Reference()[0], Differentiate(forward, 1, dy));
}

TEST_F(Differences, Gelu) {
  const Case forward{"gelu", {Real({9}, -3, 3)}, {OwnedTensor(kF32, {9})}};
  const OwnedTensor dy = Real({9});
  const Case grad{"gelu_grad", {forward.inputs[0], dy}, {OwnedTensor(kF32, {9})}};
  ExpectGradient(grad.Reference()[0], Differentiate(forward, 0, dy));
}

TEST_F(Differences, Matmul) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const Case forward{"matmul", {Real({2, 3, 5}), Real({4, 5})}, {OwnedTensor(kF32, {2, 3, 4})}, spec("bsk,nk->bsn")};
  const OwnedTensor dy = Real({2, 3, 4});
  const Case input{"matmul", {dy, forward.inputs[1]}, {OwnedTensor(kF32, {2, 3, 5})}, spec("bsn,nk->bsk")};
  ExpectGradient(input.Reference()[0], Differentiate(forward, 0, dy));
  const Case weight{"matmul", {dy, forward.inputs[0]}, {OwnedTensor(kF32, {4, 5})}, spec("bsn,bsk->nk")};
  ExpectGradient(weight.Reference()[0], Differentiate(forward, 1, dy));
}

TEST_F(Differences, Rope) {
  const Case table{
      "rope_table", {random_.Integer({3}, 0, 9)}, {OwnedTensor(kF32, {3, 6})}, {{{"theta", 1e4}, {"head_dim", 6}}, {}}};
  Case forward{"rope",
               {Real({2, 3, 12}), table.Reference()[0]},
               {OwnedTensor(kF32, {2, 3, 12})},
               {{{"head_dim", 6}, {"inverse", 0}}, {}}};
  const OwnedTensor dy = Real({2, 3, 12});
  const std::vector<double> differences = Differentiate(forward, 0, dy);
  forward.inputs[0] = dy;
  forward.attributes.numbers["inverse"] = 1;
  ExpectGradient(forward.Reference()[0], differences);
}

TEST_F(Differences, Attention) {
  for (const Heads& h : {Heads{2, 3, 3, 4, 2, 4},
                         {1, 3, 5, 2, 1, 2, 1, 0},
                         {1, 4, 5, 2, 2, 2, 2, 3},
                         {1, 3, 4, 2, 1, 2, 0, 0, 0},
                         Heads{1, 4, 8, 2, 1, 2, 0, 0, 1, 2, 8}}) {
    const Case forward = AttentionCase(random_, kF32, h);
    const Case grad = AttentionGradCase(random_, forward);
    const std::vector<OwnedTensor> gradients = grad.Reference();
    for (size_t i = 0; i < 3; ++i) ExpectGradient(gradients[i], Differentiate(forward, i, grad.inputs[5]));
  }
}

TEST_F(Differences, Swiglu) {
  const Case forward{"swiglu", {Real({9}, -3, 3), Real({9})}, {OwnedTensor(kF32, {9})}};
  const OwnedTensor dy = Real({9});
  const Case grad{
      "swiglu_grad", {forward.inputs[0], forward.inputs[1], dy}, {OwnedTensor(kF32, {9}), OwnedTensor(kF32, {9})}};
  const std::vector<OwnedTensor> gradients = grad.Reference();
  for (size_t i = 0; i < 2; ++i) ExpectGradient(gradients[i], Differentiate(forward, i, dy));
}

// The loss of a shard of the vocabulary as one function of its logits.
TEST_F(Differences, CrossEntropy) {
  OwnedTensor logits = Real({1, 4, 6}, -2, 2);
  const OwnedTensor targets = random_.Integer({1, 4}, -1, 5);
  const auto steps = [&] {
    const OwnedTensor largest = Case{"logits_max", {logits}, {OwnedTensor(kF32, {1, 4})}}.Reference()[0];
    std::vector<OwnedTensor> values = Case{"logits_sum", {logits, largest, targets}, {largest, largest}}.Reference();
    values.push_back(largest);
    return values;
  };
  const auto loss = [&] {
    const std::vector<OwnedTensor> v = steps();
    const OwnedTensor scalar(kF32, {});
    return Case{"token_loss", {v[2], v[0], v[1], targets}, {scalar, scalar}}.Reference()[0][0];
  };
  const std::vector<OwnedTensor> v = steps();
  const OwnedTensor gradient = Case{"cross_entropy_grad", {logits, v[2], v[0], targets}, {logits}}.Reference()[0];
  std::vector<double> differences;
  for (int64_t i = 0; i < logits.Count(); ++i) {
    const double at = logits[i];
    logits.Set(i, at + 0.0078125);
    const double high = logits[i], above = loss();
    logits.Set(i, at - 0.0078125);
    differences.push_back((above - loss()) / (high - logits[i]));
    logits.Set(i, at);
  }
  ExpectGradient(gradient, differences);
}

}  // namespace
}  // namespace espalier
