// Once a step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm 2; constants
// as in torch.optim.AdamW and clip_grad_norm_). One pass over memory each.
#include <vector>

#include "../arithmetic.hpp"
#include "kernels.hpp"

namespace espalier::cpu {
namespace {

F16 SquareRoot(F16 x) {
#ifdef __AVX512F__
  return _mm512_maskz_sqrt_ps(0xffff, x);  // this form: GCC 12 warns of its own plain one
#else
  for (int i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

/// Squares are summed in fp64, exactly widened.
double SquaresOf(const float* g, int64_t begin, int64_t end) {
  D8 sums[2] = {};
  ForLanes(begin, end, [&](int64_t i, auto lanes) {
    const F16 x = Load(g + i, lanes);
    F8 half[2];
    std::memcpy(half, &x, sizeof x);
    for (int h = 0; h < 2; ++h) {
      const D8 wide = __builtin_convertvector(half[h], D8);
      sums[h] += wide * wide;
    }
  });
  return Sum(sums[0]) + Sum(sums[1]);
}

/// Index of the first scalar that is not finite; -1: all are.
double FirstNotFinite(std::span<const Tensor> scalars) {
  const auto first = std::ranges::find_if(scalars, [](const Tensor& s) { return !std::isfinite(Scalar(s)); });
  return first == scalars.end() ? -1.0 : static_cast<double>(first - scalars.begin());
}

AdamwFactors FactorsOf(const KernelCall& call) {
  const Attributes& a = *call.attributes;
  const AdamwConstants constants{a.Number("beta1"), a.Number("beta2"), a.Number("eps"), a.Number("weight_decay")};
  return AdamwFactorsOf(constants, Scalar(call.inputs[4]), Scalar(call.inputs[5]), Scalar(call.inputs[6]));
}

}  // namespace

// g f32[...] -> f32[]. Fixed blocks, added in order.
void SumSquares(const KernelCall& call) {
  constexpr int64_t kBlock = 65536;
  const int64_t n = Volume(call.inputs[0].shape), blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      sums[static_cast<size_t>(b)] = SquaresOf(call.inputs[0].As<float>(), b * kBlock, std::min(n, (b + 1) * kBlock));
    }
  });
  double sum = 0;
  for (double s : sums) sum += s;
  *call.outputs[0].As<float>() = static_cast<float>(sum);
}

// loss, count, squares of each tensor f32[] -> mean loss, norm, scale, apply, first f32[]
void Clip(const KernelCall& call) {
  double squares = 0;
  for (const Tensor& s : call.inputs.subspan(2)) squares += Scalar(s);
  const Clipped clipped = ClippedOf(Scalar(call.inputs[0]), Scalar(call.inputs[1]), squares, call.attributes->Number("clip_norm"));
  const double values[] = {clipped.mean, clipped.norm, clipped.scale, clipped.apply, FirstNotFinite(call.inputs.subspan(2))};
  for (size_t o = 0; o < 5; ++o) *call.outputs[o].As<float>() = static_cast<float>(values[o]);
}

// master, exp_avg, exp_avg_sq, g f32[...], lr, step, scale, apply f32[] -> master, exp_avg, exp_avg_sq in place
void Adamw(const KernelCall& call) {
  if (Scalar(call.inputs[7]) == 0) return;
  const AdamwFactors f = FactorsOf(call);
  const float* gradient = call.inputs[3].As<float>();
  float *master = call.outputs[0].As<float>(), *exp_avg = call.outputs[1].As<float>();
  float* exp_avg_sq = call.outputs[2].As<float>();
  ParallelRanges(Volume(call.outputs[0].shape), kWorthAThread, [=](int64_t begin, int64_t end) {
    ForLanes(begin, end, [=](int64_t i, auto lanes) {
      const AdamwState<F16> state{Load(master + i, lanes), Load(exp_avg + i, lanes), Load(exp_avg_sq + i, lanes)};
      const AdamwState<F16> next = AdamwOf(f, state, Load(gradient + i, lanes), SquareRoot);
      Store(exp_avg + i, next.exp_avg, lanes);
      Store(exp_avg_sq + i, next.exp_avg_sq, lanes);
      Store(master + i, next.master, lanes);
    });
  });
}

}  // namespace espalier::cpu
