// RMSNorm as Hugging Face's LlamaRMSNorm (Zhang and Sennrich 2019, eq. 4): fp32 inside, xhat = x rstd is rounded to the
// compute type before the weight multiplies it. A row stays in the first-level cache between its two passes.
#include "kernels/cpu/runtime/addend.hpp"
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

template <typename T>
void ForwardRow(const RmsNormArgs& a, int64_t row) {
  const int64_t width = a.width;
  const auto in = RowsWithAddend<T>{a.x.As<T>(), a.addend.As<T>(), a.sum.As<T>()}.Row(row * width);
  const T* w = a.weight.As<T>();
  T* y = a.y.As<T>() + row * width;
  float* rstd = a.rstd + row;
  Sums squares;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    const Floats v = in.Load(c, lanes);
    squares.part[part] += v * v;
  });
  const T* x = in.Loaded();
  *rstd = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + static_cast<float>(a.eps));
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    Store(y + c, Load(w + c, lanes) * Rounded<T>(Load(x + c, lanes) * *rstd), lanes);
  });
}

// dx = rstd (w dy - xhat mean(w dy xhat)), plus the addend
template <typename T>
void BackwardRow(const RmsNormGradArgs& a, int64_t row) {
  const int64_t width = a.width;
  const T *x = a.x.As<T>() + row * width, *w = a.weight.As<T>(), *dy = a.dy.As<T>() + row * width;
  const T* addend = a.addend ? a.addend.As<T>() + row * width : nullptr;
  T* dx = a.dx.As<T>() + row * width;
  const float rstd = a.rstd[row];
  Sums sum;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    sum.part[part] += Load(w + c, lanes) * Load(dy + c, lanes) * Load(x + c, lanes);
  });
  const float factor = Sum(sum) / static_cast<float>(width) * rstd * rstd;  // mean(w dy xhat) rstd, applied to x
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    StoreWithAddend(addend, dx, c, rstd * (Load(w + c, lanes) * Load(dy + c, lanes) - Load(x + c, lanes) * factor),
                    lanes);
  });
}

/// The terms of a row in dweight.
template <typename T>
struct WeightTerm {
  const T *x, *dy;
  const float* rstd;
  int64_t width;

  explicit WeightTerm(const RmsNormWeightGradArgs& a)
      : x(a.x.As<T>()), dy(a.dy.As<T>()), rstd(a.rstd), width(a.width) {}
  template <typename Lanes>
  Floats operator()(int64_t r, int64_t c, Lanes lanes) const {
    return Load(dy + r * width + c, lanes) * Rounded<T>(Load(x + r * width + c, lanes) * rstd[r]);
  }
};

}  // namespace

void RmsNorm(const RmsNormArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) { ForRows(a.rows, a.width, [&](int64_t r) { ForwardRow<T>(a, r); }); });
}

void RmsNormGrad(const RmsNormGradArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) { ForRows(a.rows, a.width, [&](int64_t r) { BackwardRow<T>(a, r); }); });
}

void RmsNormWeightGrad(const RmsNormWeightGradArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    ForColumns(a.rows, a.width, [&](int64_t c, auto lanes) {
      const auto term = [term = WeightTerm<T>(a), c, lanes](int64_t r) { return term(r, c, lanes); };
      PutColumns(a.dweight + c, SumOverRows(a.rows, term), a.accumulate, lanes);
    });
  });
}

void RmsNormBackward(const RmsNormBackwardArgs& a) {
  ForElementType(a.input.x.dtype, [&]<typename T>(T) {
    SumInPass(
        a.input.rows, a.input.width, {{a.weight.dweight}, a.weight.accumulate},
        [&](int64_t r) { BackwardRow<T>(a.input, r); }, WeightTerm<T>(a.weight));
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
