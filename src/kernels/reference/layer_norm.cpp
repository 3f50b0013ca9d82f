// LayerNorm as torch.nn.LayerNorm (Ba et al. 2016, eq. 4): xhat = (x - mean) rstd, rounded once, with weight and bias.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void LayerNorm(const LayerNormArgs& a) {
  const Array x = WithAddend(a.x, a.addend, a.sum, a.rows * a.width);
  for (int64_t r = 0; r < a.rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < a.width; ++c) sum += Get(x, r * a.width + c);
    const double mean = sum / static_cast<double>(a.width);
    for (int64_t c = 0; c < a.width; ++c)
      squares += (Get(x, r * a.width + c) - mean) * (Get(x, r * a.width + c) - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(a.width) + a.eps);
    Set(a.mean, r, mean);
    Set(a.rstd, r, rstd);
    for (int64_t c = 0; c < a.width; ++c) {
      const double xhat = (Get(x, r * a.width + c) - mean) * rstd;
      Set(a.y, r * a.width + c, Get(a.weight, c) * xhat + Get(a.bias, c));
    }
  }
}

void LayerNormGrad(const LayerNormGradArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const double mean = a.mean[r], rstd = a.rstd[r];
    double plain = 0, projected = 0;
    for (int64_t c = 0; c < a.width; ++c) {
      const double g = Get(a.weight, c) * Get(a.dy, r * a.width + c);
      plain += g / static_cast<double>(a.width);
      projected += g * (Get(a.x, r * a.width + c) - mean) * rstd / static_cast<double>(a.width);
    }
    for (int64_t c = 0; c < a.width; ++c) {
      const int64_t i = r * a.width + c;
      const double xhat_term = (Get(a.x, i) - mean) * rstd * projected;
      SetWithAddend(a.dx, a.addend, i, rstd * (Get(a.weight, c) * Get(a.dy, i) - plain - xhat_term));
    }
  }
}

void LayerNormWeightGrad(const LayerNormWeightGradArgs& a) {
  for (int64_t c = 0; c < a.width; ++c) {
    double weight = 0, bias = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t i = r * a.width + c;
      weight += Get(a.dy, i) * (Get(a.x, i) - a.mean[r]) * a.rstd[r];
      bias += Get(a.dy, i);
    }
    Put(a.dweight, c, weight, a.accumulate);
    Put(a.dbias, c, bias, a.accumulate);
  }
}

void LayerNormBackward(const LayerNormBackwardArgs& a) {
  LayerNormGrad(a.input);
  LayerNormWeightGrad(a.weight);
}

}  // namespace espalier::reference
