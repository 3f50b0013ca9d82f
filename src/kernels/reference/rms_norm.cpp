// RMSNorm as Hugging Face's LlamaRMSNorm (Zhang and Sennrich 2019, eq. 4): xhat = x rstd is rounded to the compute type
// before the weight multiplies it.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void RmsNorm(const RmsNormArgs& a) {
  const Array x = WithAddend(a.x, a.addend, a.sum, a.rows * a.width);
  for (int64_t r = 0; r < a.rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < a.width; ++c) squares += Get(x, r * a.width + c) * Get(x, r * a.width + c);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(a.width) + a.eps);
    Set(a.rstd, r, rstd);
    for (int64_t c = 0; c < a.width; ++c)
      Set(a.y, r * a.width + c, Get(a.weight, c) * Rounded(x.dtype, Get(x, r * a.width + c) * rstd));
  }
}

void RmsNormGrad(const RmsNormGradArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const double rstd = a.rstd[r];
    double mean = 0;
    for (int64_t c = 0; c < a.width; ++c)
      mean += Get(a.weight, c) * Get(a.dy, r * a.width + c) * Get(a.x, r * a.width + c) * rstd;
    mean /= static_cast<double>(a.width);
    for (int64_t c = 0; c < a.width; ++c) {
      const int64_t i = r * a.width + c;
      SetWithAddend(a.dx, a.addend, i, rstd * (Get(a.weight, c) * Get(a.dy, i) - Get(a.x, i) * rstd * mean));
    }
  }
}

// xhat is rounded as in forward.
void RmsNormWeightGrad(const RmsNormWeightGradArgs& a) {
  for (int64_t c = 0; c < a.width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t i = r * a.width + c;
      sum += Get(a.dy, i) * Rounded(a.x.dtype, Get(a.x, i) * a.rstd[r]);
    }
    Put(a.dweight, c, sum, a.accumulate);
  }
}

void RmsNormBackward(const RmsNormBackwardArgs& a) {
  RmsNormGrad(a.input);
  RmsNormWeightGrad(a.weight);
}

}  // namespace espalier::reference
