// Ops that run once per step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm
// 2; constants as in torch.optim.AdamW and clip_grad_norm_). Each passes over memory once.
#include <algorithm>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/rounding.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Squares are summed in fp64, exactly widened.
double SquaresOf(const float* g, int64_t begin, int64_t end) {
  Doubles low{}, high{};
  ForLanes(begin, end, [&](int64_t i, auto lanes) {
    const Wide x = Widened(Load(g + i, lanes));
    low += x.low * x.low;
    high += x.high * x.high;
  });
  return Sum(low) + Sum(high);
}

/// Index of the first scalar that is not finite; -1: all are.
double FirstNotFinite(const std::vector<const float*>& scalars) {
  const auto first = std::ranges::find_if(scalars, [](const float* s) { return !std::isfinite(*s); });
  return first == scalars.end() ? -1.0 : static_cast<double>(first - scalars.begin());
}

AdamwFactors FactorsOf(const AdamwArgs& a, double weight_decay) {
  AdamwConstants constants = a.constants;
  constants.weight_decay = weight_decay;
  return AdamwFactorsOf(constants, *a.lr, *a.step, *a.scale);
}

struct Math {
  static Floats Root(Floats x) { return SquareRoot(x); }
  template <typename B>
  static Floats Product(Floats a, B b) {
    return cpu::Product(a, b);
  }
};

/// Updates elements [begin, end).
void Update(const AdamwTensor& tensor, int64_t begin, int64_t end, const AdamwFactors& f) {
  const float* gradient = tensor.gradient;
  float *master = tensor.master, *exp_avg = tensor.exp_avg.As<float>(), *exp_avg_sq = tensor.exp_avg_sq.As<float>();
  Bf16* copy = tensor.copy.As<Bf16>();
  ForLanes(begin, end, [=](int64_t i, auto lanes) {
    const AdamwState<Floats> state{Load(master + i, lanes), Load(exp_avg + i, lanes), Load(exp_avg_sq + i, lanes)};
    const AdamwState<Floats> next = AdamwOf<Math>(f, state, Load(gradient + i, lanes));
    Store(exp_avg + i, next.exp_avg, lanes);
    Store(exp_avg_sq + i, next.exp_avg_sq, lanes);
    Store(master + i, next.master, lanes);
    if (copy != nullptr) Store(copy + i, next.master, lanes);
  });
}

/// The same with bf16 moments.
void UpdateRounded(const AdamwTensor& tensor, int64_t begin, int64_t end, const AdamwFactors& f, uint32_t step) {
  const float* gradient = tensor.gradient;
  float* master = tensor.master;
  Bf16 *exp_avg = tensor.exp_avg.As<Bf16>(), *exp_avg_sq = tensor.exp_avg_sq.As<Bf16>(), *copy = tensor.copy.As<Bf16>();
  ForRandomLanes(tensor.rounding, step, begin, end, [=](int64_t i, auto lanes, Words words) {
    const AdamwState<Floats> state{Load(master + i, lanes), Load(exp_avg + i, lanes), Load(exp_avg_sq + i, lanes)};
    const AdamwState<Floats> next = AdamwOf<Math>(f, state, Load(gradient + i, lanes));
    StoreRounded(exp_avg + i, next.exp_avg, words, 0, lanes);
    StoreRounded(exp_avg_sq + i, next.exp_avg_sq, words, 1, lanes);
    Store(master + i, next.master, lanes);
    if (copy != nullptr) Store(copy + i, next.master, lanes);
  });
}

/// The end of a part of a tensor with n elements, near element `at`: at whole vectors, inside the tensor.
int64_t CutAt(int64_t at, int64_t n) { return at >= n ? n : std::max<int64_t>(0, at / kLanes * kLanes); }

}  // namespace

// Blocks of a fixed size of each matrix, added in order.
void SumSquares(const SumSquaresArgs& a) {
  constexpr int64_t kBlock = 65536;
  const int64_t blocks = (a.n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(a.matrices * blocks));
  ParallelRanges(a.matrices * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t in_matrix = b % blocks * kBlock;
      sums[static_cast<size_t>(b)] =
          SquaresOf(a.gradient + b / blocks * a.n, in_matrix, std::min(a.n, in_matrix + kBlock));
    }
  });
  for (int64_t m = 0; m < a.matrices; ++m) {
    double sum = 0;
    for (int64_t b = m * blocks; b < (m + 1) * blocks; ++b) sum += sums[static_cast<size_t>(b)];
    a.sum[m] = static_cast<float>(sum);
  }
}

void Clip(const ClipArgs& a) {
  double squares = 0;
  for (const float* square : a.squares) squares += *square;
  const double first = FirstNotFinite(a.squares);
  const Clipped clipped = ClippedOf(*a.loss, *a.count, squares, a.clip_norm);
  *a.mean_loss = static_cast<float>(clipped.mean);
  *a.norm = static_cast<float>(clipped.norm);
  *a.scale = static_cast<float>(clipped.scale);
  *a.apply = a.loss_limit == nullptr ? static_cast<float>(clipped.apply)
                                     : AppliesWithin(clipped, *a.loss_limit, *a.norm_limit);
  *a.first = static_cast<float>(first);
}

void Mean(const MeanArgs& a) {
  double sum = 0;
  for (const float* term : a.sums) sum += *term;
  *a.mean = static_cast<float>(sum / DivisorOf(*a.count));
}

// The elements of all tensors, one tensor after the other, are split evenly among the threads.
void Adamw(const AdamwArgs& a) {
  if (*a.apply == 0) return;
  const AdamwFactors decayed = FactorsOf(a, a.constants.weight_decay), kept = FactorsOf(a, 0);
  const auto step = static_cast<uint32_t>(*a.step);
  int64_t all = 0;
  for (const AdamwTensor& tensor : a.tensors) all += tensor.n;
  ParallelRanges(all, kWorthAThread, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t t = 0; t < a.tensors.size(); first += a.tensors[t].n, ++t) {
      const AdamwTensor& tensor = a.tensors[t];
      const AdamwFactors& factors = static_cast<int64_t>(t) < a.decaying ? decayed : kept;
      const int64_t from = CutAt(begin - first, tensor.n), to = CutAt(end - first, tensor.n);
      if (tensor.exp_avg.dtype == Dtype::kBf16)
        UpdateRounded(tensor, from, to, factors, step);
      else
        Update(tensor, from, to, factors);
    }
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
