// RMSNorm and LayerNorm, their gradients, and both with an addend.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, RmsNorm) {
  for (int64_t d : {1, 3, 17, 65, 127, 768}) {
    Case c{"rms_norm", {Real({2, 33, d}), Real({d}, 0.5, 2)}, {}, {{{"eps", 1e-5}}, {}}};
    c.outputs = {Empty(T(), {2, 33, d}), Empty(kF32, {2, 33})};
    // With bf16, xhat may round to either neighbour before the weight multiplies it.
    Check(c, SumBound(d, 4));
    const OwnedTensor rstd = c.Reference()[1];
    Case input{"rms_norm_grad", {c.inputs[0], c.inputs[1], rstd, Real({2, 33, d})}, {Empty(T(), {2, 33, d})}};
    Check(input, SumBound(d, rstd.Largest() * rstd.Largest() * 4));
    Case weight{"rms_norm_weight_grad", {c.inputs[0], rstd, input.inputs[3]}, {F32({d})}};
    const double rounding = T() == kBf16 ? 66 * rstd.Largest() / 256 * 0.05 : 0;  // single flips of xhat's rounding
    Check(weight, SumBound(66, rstd.Largest()) + rounding);
    weight.accumulate = true;
    Check(weight, SumBound(66, rstd.Largest()) + rounding);
  }
}

TEST_P(Kernels, LayerNorm) {
  for (int64_t d : {1, 3, 17, 65, 127, 768}) {
    Case c{"layer_norm", {Real({2, 33, d}, -1, 3), Real({d}, 0.5, 2), Real({d})}, {}, {{{"eps", 1e-5}}, {}}};
    c.outputs = {Empty(T(), {2, 33, d}), Empty(kF32, {2, 33}), Empty(kF32, {2, 33})};
    const std::vector<OwnedTensor> results = c.Reference();
    const OwnedTensor &mean = results[1], &rstd = results[2];
    Check(c, SumBound(d, 4 * std::max(1.0, rstd.Largest())));
    Case input{"layer_norm_grad", {c.inputs[0], c.inputs[1], mean, rstd, Real({2, 33, d})}, {Empty(T(), {2, 33, d})}};
    Check(input, SumBound(d, rstd.Largest() * rstd.Largest() * 8));
    for (bool accumulate : {false, true}) {
      Check(
          {"layer_norm_weight_grad", {c.inputs[0], mean, rstd, input.inputs[4]}, {F32({d}), F32({d})}, {}, accumulate},
          SumBound(66, 2 * rstd.Largest()));
    }
  }
}

/// The ops of RMSNorm in two steps on rows of `width`: whole rows, or three heads each.
struct TwoSteps {
  Case squares, norm, norm_grad, squares_of_norm, squares_grad, weight_grad;
};

TwoSteps NormInTwoSteps(Random& random, Dtype type, int64_t width, bool heads) {
  const int64_t columns = heads ? 3 * width : width;
  const Shape rows = {2, 11, columns}, sums = heads ? Shape{2, 11, 3} : Shape{2, 11};
  // The shard has only part of each whole row.
  Attributes a{{{"eps", 1e-5}, {"width", heads ? double(width) : 2.0 * double(width)}}, {}};
  if (heads) a.numbers["head_dim"] = double(width);
  const OwnedTensor x = random.Real(type, rows), w = random.Real(type, {width}, 0.5, 2), dy = random.Real(type, rows),
                    y(type, rows), s(kF32, sums);
  TwoSteps two;
  two.squares = {"row_squares", {x}, {s}, a};
  const OwnedTensor sum = two.squares.Reference()[0];
  two.norm = {"row_norm", {x, w, sum}, {y}, a};
  two.norm_grad = {"row_norm_grad", {dy, w, sum}, {y}, a};
  two.squares_of_norm = {"row_norm_squares_grad", {dy, x, w, sum}, {s}, a};
  two.squares_grad = {"row_squares_grad", {random.Real(kF32, sums), x}, {y}, a};
  two.weight_grad = {"row_norm_weight_grad", {dy, x, sum}, {random.Real(kF32, {width})}, a};
  return two;
}

TEST_P(Kernels, RmsNormInTwoSteps) {
  for (bool heads : {false, true}) {
    for (int64_t d : {1, 3, 17, 64, 127, 768}) {
      TwoSteps two = NormInTwoSteps(random_, T(), d, heads);
      const OwnedTensor sums = two.squares.Reference()[0];
      double least = sums[0];
      for (int64_t i = 0; i < 2 * 11 * (heads ? 3 : 1); ++i) least = std::min(least, sums[i]);
      const double rstd = 1 / std::sqrt(least / (heads ? double(d) : 2 * double(d)) + 1e-5);
      Check(two.squares, SumBound(d, 1));
      Check(two.norm, SumBound(4, 2 * rstd));
      CheckInPlace(two.norm, 0, 0);
      Check(two.norm_grad, SumBound(4, 2 * rstd));
      CheckInPlace(two.norm_grad, 0, 0);
      Check(two.squares_of_norm, SumBound(d, 2 * rstd * rstd * rstd));
      Check(two.squares_grad, SumBound(4, 2));
      CheckInPlace(two.squares_grad, 0, 1);
      const int64_t rows = 22 * (heads ? 3 : 1);
      const double rounding = T() == kBf16 ? double(rows) * rstd / 256 * 0.1 : 0;  // single flips of xhat's rounding
      for (bool accumulate : {false, true}) {
        two.weight_grad.accumulate = accumulate;
        Check(two.weight_grad, SumBound(rows, rstd) + rounding);
      }
    }
  }
}

// With one rank and whole rows both steps together equal rms_norm, and so do their gradients.
TEST_P(Kernels, BothStepsAreRmsNorm) {
  const OwnedTensor x = Real({2, 5, 33}), w = Real({33}, 0.5, 2), dy = Real({2, 5, 33}), y = Empty(T(), {2, 5, 33});
  const Attributes a{{{"eps", 1e-5}, {"width", 33}}, {}};
  const std::vector<OwnedTensor> one = Case{"rms_norm", {x, w}, {y, Empty(kF32, {2, 5})}, a}.Tested();
  const OwnedTensor sums = Case{"row_squares", {x}, {Empty(kF32, {2, 5})}, a}.Tested()[0];
  const OwnedTensor two = Case{"row_norm", {x, w, sums}, {y}, a}.Tested()[0];
  const OwnedTensor past = Case{"row_norm_grad", {dy, w, sums}, {y}, a}.Tested()[0];
  const OwnedTensor ds = Case{"row_norm_squares_grad", {dy, x, w, sums}, {Empty(kF32, {2, 5})}, a}.Tested()[0];
  const OwnedTensor through = Case{"row_squares_grad", {ds, x}, {y}, a}.Tested()[0];
  const OwnedTensor whole = Case{"rms_norm_grad", {x, w, one[1], dy}, {y}, a}.Tested()[0];
  const double unit = T() == kBf16 ? 4.0 / 128 : 1e-5;
  for (int64_t i = 0; i < 2 * 5 * 33; ++i) {
    EXPECT_NEAR(two[i], one[0][i], unit * (1 + std::abs(one[0][i])));
    EXPECT_NEAR(past[i] + through[i], whole[i], unit * (1 + std::abs(past[i]) + std::abs(through[i])));
  }
}

/// Both gradients of a norm in one op, against two ops: bitwise. `input` is the gradient of x, `weight` the gradient of
/// the weight, which ignores the inputs w and addend.
void ExpectBitsOfTwoOps(const Case& input, const Case& weight, const std::string& both, bool accumulate) {
  Case one = input, apart = weight;
  one.op = both;
  one.accumulate = apart.accumulate = accumulate;
  one.outputs.insert(one.outputs.end(), weight.outputs.begin(), weight.outputs.end());
  const std::vector<OwnedTensor> fused = one.Tested();
  InOtherWays([&](int way) {
    const std::vector<OwnedTensor> again = one.Tested();
    for (size_t o = 0; o < again.size(); ++o) EXPECT_TRUE(again[o].SameBits(fused[o])) << both << " in way " << way;
  });
  const std::vector<OwnedTensor> sums = apart.Tested();
  EXPECT_TRUE(fused[0].SameBits(input.Tested()[0])) << both << ToString(one.outputs[0].shape());
  for (size_t i = 0; i < sums.size(); ++i)
    EXPECT_TRUE(fused[i + 1].SameBits(sums[i])) << both << ToString(one.outputs[0].shape()) << " sum " << i;
  const size_t addend = weight.inputs.size() + 1;  // after the weight, which only the input gradient reads
  if (input.inputs.size() > addend) CheckInPlace(one, 0, addend);
}

/// 663 rows are parts of unequal size. The sums of 25100 columns do not fit into a multiprocessor's shared memory.
TEST_P(Kernels, BothGradientsOfANormAreTheTwoOps) {
  for (const Shape& shape :
       {Shape{2, 33, 1}, Shape{2, 33, 17}, Shape{3, 221, 65}, Shape{2, 65, 128}, Shape{1, 3, 25100}}) {
    const OwnedTensor x = Real(shape), w = Real({shape[2]}, 0.5, 2), dy = Real(shape), addend = Real(shape);
    const Shape rows = {shape[0], shape[1]};
    const OwnedTensor mean = F32(rows), rstd = F32(rows, 1, 2), y = Empty(T(), shape), dw = F32({shape[2]});
    const Case rms{"rms_norm_weight_grad", {x, rstd, dy}, {dw}},
        layer{"layer_norm_weight_grad", {x, mean, rstd, dy}, {dw, F32({shape[2]})}};
    for (bool accumulate : {false, true}) {
      ExpectBitsOfTwoOps({"rms_norm_grad", {x, w, rstd, dy}, {y}}, rms, "rms_norm_backward", accumulate);
      ExpectBitsOfTwoOps({"rms_norm_grad", {x, w, rstd, dy, addend}, {y}}, rms, "rms_norm_backward", accumulate);
      ExpectBitsOfTwoOps({"layer_norm_grad", {x, w, mean, rstd, dy}, {y}}, layer, "layer_norm_backward", accumulate);
      ExpectBitsOfTwoOps({"layer_norm_grad", {x, w, mean, rstd, dy, addend}, {y}}, layer, "layer_norm_backward",
                         accumulate);
    }
  }
}

/// A norm with an addend, and its gradient.
struct WithAddend {
  Case forward, gradient;
  size_t addend;
};

/// A norm of rows of `d`, and its gradient from the statistics of forward.
WithAddend NormWithAddend(Random& random, Dtype type, const std::string& kind, int64_t d) {
  const OwnedTensor x = random.Real(type, {2, 33, d}, -1, 3), y(type, {2, 33, d}), row(kF32, {2, 33});
  WithAddend norm{
      {kind, {x, random.Real(type, {d}, 0.5, 2)}, {y, row}, {{{"eps", 1e-5}}, {}}}, {kind + "_grad", {}, {y}}, 2};
  if (kind == "layer_norm") {
    norm.forward.inputs.push_back(random.Real(type, {d}));
    norm.forward.outputs.push_back(row);
    norm.addend = 3;
  }
  norm.forward.inputs.push_back(random.Real(type, {2, 33, d}));
  norm.forward.outputs.push_back(y);
  const std::vector<OwnedTensor> results = norm.forward.Reference();
  norm.gradient.inputs = {results.back(), norm.forward.inputs[1]};
  norm.gradient.inputs.insert(norm.gradient.inputs.end(), results.begin() + 1, results.end() - 1);
  norm.gradient.inputs.insert(norm.gradient.inputs.end(),
                              {random.Real(type, {2, 33, d}), random.Real(type, {2, 33, d})});
  return norm;
}

OwnedTensor Added(const OwnedTensor& a, const OwnedTensor& b) {
  return Case{"add", {a, b}, {OwnedTensor(a.dtype(), a.shape())}}.Tested()[0];
}

// A sum that is fused into a norm, or into its gradient, has the bits of a separate op.
TEST_P(Kernels, NormsWithAddend) {
  for (const char* kind : {"rms_norm", "layer_norm"}) {
    for (int64_t d : {1, 3, 17, 65, 127, 768}) {
      const auto [forward, gradient, addend] = NormWithAddend(random_, T(), kind, d);
      Case plain = forward;
      plain.inputs[0] = Added(forward.inputs[0], forward.inputs[addend]);
      plain.inputs.pop_back();
      plain.outputs.pop_back();
      std::vector<OwnedTensor> parts = plain.Tested();
      parts.push_back(plain.inputs[0]);
      const std::vector<OwnedTensor> fused = forward.Tested();
      for (size_t o = 0; o < parts.size(); ++o)
        EXPECT_TRUE(fused[o].SameBits(parts[o])) << kind << " of " << d << ", output " << o;
      Check(forward, SumBound(d, 4 * std::max(1.0, parts[addend - 1].Largest())));
      for (size_t input : {size_t{0}, addend}) CheckInPlace(forward, addend, input);

      Case alone = gradient;
      alone.inputs.pop_back();
      const OwnedTensor dx = alone.Tested()[0];
      EXPECT_TRUE(gradient.Tested()[0].SameBits(Added(dx, gradient.inputs.back()))) << kind << "_grad of " << d;
      const double rstd = parts[addend - 1].Largest();
      Check(gradient, SumBound(d, rstd * rstd * 8) + 2 * UnitOf(T()) * dx.Largest());
      CheckInPlace(gradient, 0, gradient.inputs.size() - 1);
    }
  }
}

}  // namespace
}  // namespace espalier::testing
