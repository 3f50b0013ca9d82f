// RMSNorm from given sums of squares (Zhang and Sennrich 2019, eq. 4): fp32 inside, xhat = x rstd is rounded to the
// compute type before the weight multiplies it, as in rms_norm.
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

float RstdOf(float sum, const NormRows& shape, double eps) {
  return 1.0f / std::sqrt(sum / static_cast<float>(shape.whole_width) + static_cast<float>(eps));
}

template <typename T>
float SumOfSquares(const T* x, int64_t width) {
  Sums squares;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    const Floats v = Load(x + c, lanes);
    squares.part[part] += v * v;
  });
  return Sum(squares);
}

template <typename T>
float SumOfProducts(const T* dy, const T* w, const T* x, int64_t width) {
  Sums sum;
  ForSums(0, width, [&](int64_t part, int64_t c, auto lanes) {
    sum.part[part] += Load(dy + c, lanes) * Load(w + c, lanes) * Load(x + c, lanes);
  });
  return Sum(sum);
}

/// Calls f(T{}, row, its first element) for all rows of a norm.
template <typename F>
void ForNormRows(Dtype dtype, const NormRows& shape, F f) {
  ForElementType(dtype, [&]<typename T>(T type) {
    ForRows(shape.rows, shape.width, [&](int64_t r) { f(type, r, r * shape.width); });
  });
}

}  // namespace

void RowSquares(const RowSquaresArgs& a) {
  ForNormRows(a.x.dtype, a.shape, [&]<typename T>(T, int64_t r, int64_t first) {
    a.sums[r] = SumOfSquares(a.x.As<T>() + first, a.shape.width);
  });
}

void RowSquaresGrad(const RowSquaresGradArgs& a) {
  ForNormRows(a.x.dtype, a.shape, [&]<typename T>(T, int64_t r, int64_t first) {
    const T* x = a.x.As<T>() + first;
    T* dx = a.dx.As<T>() + first;
    const float factor = 2.0f * a.dsums[r];
    ForLanes(0, a.shape.width, [&](int64_t c, auto lanes) { Store(dx + c, Load(x + c, lanes) * factor, lanes); });
  });
}

void RowNorm(const RowNormArgs& a) {
  ForNormRows(a.x.dtype, a.shape, [&]<typename T>(T, int64_t r, int64_t first) {
    const T *x = a.x.As<T>() + first, *w = a.weight.As<T>();
    T* y = a.y.As<T>() + first;
    const float rstd = RstdOf(a.sums[r], a.shape, a.eps);
    ForLanes(0, a.shape.width, [&](int64_t c, auto lanes) {
      Store(y + c, Load(w + c, lanes) * Rounded<T>(Load(x + c, lanes) * rstd), lanes);
    });
  });
}

void RowNormGrad(const RowNormGradArgs& a) {
  ForNormRows(a.dy.dtype, a.shape, [&]<typename T>(T, int64_t r, int64_t first) {
    const T *dy = a.dy.As<T>() + first, *w = a.weight.As<T>();
    T* dx = a.dx.As<T>() + first;
    const float rstd = RstdOf(a.sums[r], a.shape, a.eps);
    ForLanes(0, a.shape.width,
             [&](int64_t c, auto lanes) { Store(dx + c, Load(w + c, lanes) * Load(dy + c, lanes) * rstd, lanes); });
  });
}

void RowNormSquaresGrad(const RowNormSquaresGradArgs& a) {
  ForNormRows(a.x.dtype, a.shape, [&]<typename T>(T, int64_t r, int64_t first) {
    const float rstd = RstdOf(a.sums[r], a.shape, a.eps);
    const float sum = SumOfProducts(a.dy.As<T>() + first, a.weight.As<T>(), a.x.As<T>() + first, a.shape.width);
    a.dsums[r] = -sum / static_cast<float>(2 * a.shape.whole_width) * rstd * rstd * rstd;
  });
}

void RowNormWeightGrad(const RowNormWeightGradArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    const T *x = a.x.As<T>(), *dy = a.dy.As<T>();
    ForColumns(a.shape.rows, a.shape.width, [&](int64_t c, auto lanes) {
      const Floats sum = SumOverRows(a.shape.rows, [=, &a](int64_t r) {
        const int64_t i = r * a.shape.width + c;
        return Load(dy + i, lanes) * Rounded<T>(Load(x + i, lanes) * RstdOf(a.sums[r], a.shape, a.eps));
      });
      PutColumns(a.dweight + c, sum, a.accumulate, lanes);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
