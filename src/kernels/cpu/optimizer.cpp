// Once a step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm 2; constants
// as in torch.optim.AdamW and clip_grad_norm_). One pass over memory each.
#include <vector>

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

struct AdamwFactors {
  float scale, decay, lerp1, beta2, lerp2, rate, root, eps;
};

AdamwFactors FactorsOf(const KernelCall& call) {
  const Attributes& a = *call.attributes;
  const double beta1 = a.Number("beta1"), beta2 = a.Number("beta2");
  const double lr = Scalar(call.inputs[4]), step = Scalar(call.inputs[5]);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {Scalar(call.inputs[6]),
          f(1 - lr * a.Number("weight_decay")),
          f(1 - beta1),
          f(beta2),
          f(1 - beta2),
          f(lr / (1 - std::pow(beta1, step))),
          f(1 / std::sqrt(1 - std::pow(beta2, step))),
          f(a.Number("eps"))};
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
  const double loss = Scalar(call.inputs[0]), count = Scalar(call.inputs[1]);
  const double clip_norm = call.attributes->Number("clip_norm");
  double squares = 0;
  for (const Tensor& s : call.inputs.subspan(2)) squares += Scalar(s);
  const double mean = loss / count, norm = std::sqrt(squares) / count;
  const double factor = clip_norm == 0 ? 1 : std::min(1.0, clip_norm / (norm + 1e-6));
  const double values[] = {mean, norm, factor / count, std::isfinite(mean) && std::isfinite(norm) ? 1.0 : 0.0, FirstNotFinite(call.inputs.subspan(2))};
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
      const F16 g = Load(gradient + i, lanes) * f.scale, m0 = Load(exp_avg + i, lanes);
      const F16 m = m0 + f.lerp1 * (g - m0);
      const F16 v = f.beta2 * Load(exp_avg_sq + i, lanes) + f.lerp2 * g * g;
      const F16 p = Load(master + i, lanes) * f.decay - f.rate * m / (SquareRoot(v) * f.root + f.eps);
      Store(exp_avg + i, m, lanes);
      Store(exp_avg_sq + i, v, lanes);
      Store(master + i, p, lanes);
    });
  });
}

}  // namespace espalier::cpu
