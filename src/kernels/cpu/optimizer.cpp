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

AdamwFactors FactorsOf(const KernelCall& call, double weight_decay) {
  const Attributes& a = *call.attributes;
  const AdamwConstants constants{a.Number("beta1"), a.Number("beta2"), a.Number("eps"), weight_decay};
  return AdamwFactorsOf(constants, Scalar(call.inputs[0]), Scalar(call.inputs[1]), Scalar(call.inputs[2]));
}

/// Elements [begin, end) of tensor t.
void Update(const KernelCall& call, size_t t, int64_t begin, int64_t end, const AdamwFactors& f) {
  const float* gradient = call.inputs[4 + 4 * t + 3].As<float>();
  float *master = call.outputs[3 * t].As<float>(), *exp_avg = call.outputs[3 * t + 1].As<float>();
  float* exp_avg_sq = call.outputs[3 * t + 2].As<float>();
  ForLanes(begin, end, [=](int64_t i, auto lanes) {
    const AdamwState<F16> state{Load(master + i, lanes), Load(exp_avg + i, lanes), Load(exp_avg_sq + i, lanes)};
    const AdamwState<F16> next = AdamwOf(f, state, Load(gradient + i, lanes), SquareRoot);
    Store(exp_avg + i, next.exp_avg, lanes);
    Store(exp_avg_sq + i, next.exp_avg_sq, lanes);
    Store(master + i, next.master, lanes);
  });
}

/// Where a part that ends at element `at` of a tensor ends: at whole lanes, inside it.
int64_t CutAt(int64_t at, int64_t n) { return at >= n ? n : std::max<int64_t>(0, at / kLanes * kLanes); }

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
  const Clipped clipped =
      ClippedOf(Scalar(call.inputs[0]), Scalar(call.inputs[1]), squares, call.attributes->Number("clip_norm"));
  const double values[] = {clipped.mean, clipped.norm, clipped.scale, clipped.apply,
                           FirstNotFinite(call.inputs.subspan(2))};
  for (size_t o = 0; o < 5; ++o) *call.outputs[o].As<float>() = static_cast<float>(values[o]);
}

// lr, step, scale, apply f32[], master, exp_avg, exp_avg_sq, g f32[...] of each tensor -> master, exp_avg, exp_avg_sq
// of each, in place. The elements of all tensors, one behind the other, are cut evenly.
void Adamw(const KernelCall& call) {
  if (Scalar(call.inputs[3]) == 0) return;
  const AdamwFactors decayed = FactorsOf(call, call.attributes->Number("weight_decay")), kept = FactorsOf(call, 0);
  const double decaying = call.attributes->Number("decaying");
  const size_t tensors = call.outputs.size() / 3;
  const auto count = [&](size_t t) { return Volume(call.outputs[3 * t].shape); };
  int64_t all = 0;
  for (size_t t = 0; t < tensors; ++t) all += count(t);
  ParallelRanges(all, kWorthAThread, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t t = 0; t < tensors; first += count(t), ++t)
      Update(call, t, CutAt(begin - first, count(t)), CutAt(end - first, count(t)),
             static_cast<double>(t) < decaying ? decayed : kept);
  });
}

}  // namespace espalier::cpu
