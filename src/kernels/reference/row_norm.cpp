// RMSNorm from given sums of squares (Zhang and Sennrich 2019, eq. 4): xhat = x rstd is rounded to the compute type
// before the weight multiplies it, as in rms_norm.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

double RstdOf(const float* sums, int64_t row, const NormRows& shape, double eps) {
  return 1 / std::sqrt(sums[row] / static_cast<double>(shape.whole_width) + eps);
}

}  // namespace

void RowSquares(const RowSquaresArgs& a) {
  for (int64_t r = 0; r < a.shape.rows; ++r) {
    double sum = 0;
    for (int64_t i = r * a.shape.width; i < (r + 1) * a.shape.width; ++i) sum += Get(a.x, i) * Get(a.x, i);
    Set(a.sums, r, sum);
  }
}

void RowSquaresGrad(const RowSquaresGradArgs& a) {
  for (int64_t i = 0; i < a.shape.rows * a.shape.width; ++i)
    Set(a.dx, i, 2 * Get(a.x, i) * static_cast<double>(a.dsums[i / a.shape.width]));
}

void RowNorm(const RowNormArgs& a) {
  for (int64_t i = 0; i < a.shape.rows * a.shape.width; ++i) {
    const double rstd = RstdOf(a.sums, i / a.shape.width, a.shape, a.eps);
    Set(a.y, i, Get(a.weight, i % a.shape.width) * Rounded(a.x.dtype, Get(a.x, i) * rstd));
  }
}

void RowNormGrad(const RowNormGradArgs& a) {
  for (int64_t i = 0; i < a.shape.rows * a.shape.width; ++i) {
    const double rstd = RstdOf(a.sums, i / a.shape.width, a.shape, a.eps);
    Set(a.dx, i, Get(a.weight, i % a.shape.width) * Get(a.dy, i) * rstd);
  }
}

void RowNormSquaresGrad(const RowNormSquaresGradArgs& a) {
  for (int64_t r = 0; r < a.shape.rows; ++r) {
    const double rstd = RstdOf(a.sums, r, a.shape, a.eps);
    double sum = 0;
    for (int64_t c = 0; c < a.shape.width; ++c) {
      const int64_t i = r * a.shape.width + c;
      sum += Get(a.dy, i) * Get(a.weight, c) * Get(a.x, i);
    }
    Set(a.dsums, r, -sum * rstd * rstd * rstd / (2 * static_cast<double>(a.shape.whole_width)));
  }
}

// xhat is rounded as in forward.
void RowNormWeightGrad(const RowNormWeightGradArgs& a) {
  for (int64_t c = 0; c < a.shape.width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < a.shape.rows; ++r) {
      const int64_t i = r * a.shape.width + c;
      sum += Get(a.dy, i) * Rounded(a.x.dtype, Get(a.x, i) * RstdOf(a.sums, r, a.shape, a.eps));
    }
    Put(a.dweight, c, sum, a.accumulate);
  }
}

}  // namespace espalier::reference
