// LayerNorm as torch.nn.LayerNorm (Ba et al. 2016, eq. 4): fp32 inside, rounded once. The variance is the mean square
// of x - mean; a row stays in the first-level cache between its passes.
#include "kernels/cpu/runtime/addend.hpp"
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

template <typename T>
void ForwardRow(const LayerNormArgs& a, int64_t row) {
  const int64_t width = a.width;
  const auto in = RowsWithAddend<T>{a.x.As<T>(), a.addend.As<T>(), a.sum.As<T>()}.Row(row * width);
  const T *w = a.weight.As<T>(), *bias = a.bias.As<T>();
  T* y = a.y.As<T>() + row * width;
  Sums sum, squares;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) { sum.part[part] += in.Load(c, lanes); });
  const T* x = in.Loaded();
  const float m = Sum(sum) / static_cast<float>(width);
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    const Floats v = KeepFirst(Load(x + c, lanes) - m, lanes);
    squares.part[part] += v * v;
  });
  const float r = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + static_cast<float>(a.eps));
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    Store(y + c, Load(w + c, lanes) * ((Load(x + c, lanes) - m) * r) + Load(bias + c, lanes), lanes);
  });
  a.mean[row] = m;
  a.rstd[row] = r;
}

// dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)), plus the addend
template <typename T>
void BackwardRow(const LayerNormGradArgs& a, int64_t row) {
  const int64_t width = a.width;
  const T *x = a.x.As<T>() + row * width, *w = a.weight.As<T>(), *dy = a.dy.As<T>() + row * width;
  const T* addend = a.addend ? a.addend.As<T>() + row * width : nullptr;
  T* dx = a.dx.As<T>() + row * width;
  const float mean = a.mean[row], rstd = a.rstd[row];
  Sums plain, projected;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    const Floats g = Load(w + c, lanes) * Load(dy + c, lanes);
    plain.part[part] += g;
    projected.part[part] += g * (Load(x + c, lanes) - mean);
  });
  const float shift = Sum(plain) / static_cast<float>(width);
  const float factor =
      Sum(projected) / static_cast<float>(width) * rstd * rstd;  // mean(w dy xhat) rstd, applied to x - mean
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    const Floats g = Load(w + c, lanes) * Load(dy + c, lanes);
    StoreWithAddend(addend, dx, c, rstd * (g - shift - (Load(x + c, lanes) - mean) * factor), lanes);
  });
}

/// The terms of a row in dweight and dbias.
template <typename T>
struct WeightTerms {
  const T *x, *dy;
  const float *mean, *rstd;
  int64_t width;

  explicit WeightTerms(const LayerNormWeightGradArgs& a)
      : x(a.x.As<T>()), dy(a.dy.As<T>()), mean(a.mean), rstd(a.rstd), width(a.width) {}
  template <typename Lanes>
  Floats Weight(int64_t r, int64_t c, Lanes lanes) const {
    return Load(dy + r * width + c, lanes) * ((Load(x + r * width + c, lanes) - mean[r]) * rstd[r]);
  }
  template <typename Lanes>
  Floats Bias(int64_t r, int64_t c, Lanes lanes) const {
    return Load(dy + r * width + c, lanes);
  }
};

}  // namespace

void LayerNorm(const LayerNormArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) { ForRows(a.rows, a.width, [&](int64_t r) { ForwardRow<T>(a, r); }); });
}

void LayerNormGrad(const LayerNormGradArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) { ForRows(a.rows, a.width, [&](int64_t r) { BackwardRow<T>(a, r); }); });
}

void LayerNormWeightGrad(const LayerNormWeightGradArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    ForColumns(a.rows, a.width, [&](int64_t c, auto lanes) {
      const WeightTerms<T> terms(a);
      const Floats weight = SumOverRows(a.rows, [=](int64_t r) { return terms.Weight(r, c, lanes); });
      const Floats bias = SumOverRows(a.rows, [=](int64_t r) { return terms.Bias(r, c, lanes); });
      PutColumns(a.dweight + c, weight, a.accumulate, lanes);
      PutColumns(a.dbias + c, bias, a.accumulate, lanes);
    });
  });
}

void LayerNormBackward(const LayerNormBackwardArgs& a) {
  ForElementType(a.input.x.dtype, [&]<typename T>(T) {
    const WeightTerms<T> terms(a.weight);
    SumInPass(
        a.input.rows, a.input.width, {{a.weight.dweight, a.weight.dbias}, a.weight.accumulate},
        [&](int64_t r) { BackwardRow<T>(a.input, r); },
        [terms](int64_t r, int64_t c, auto lanes) { return terms.Weight(r, c, lanes); },
        [terms](int64_t r, int64_t c, auto lanes) { return terms.Bias(r, c, lanes); });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
