// LayerNorm as torch.nn.LayerNorm (Ba et al. 2016, eq. 4): xhat = (x - mean) rstd, rounded once, with weight and bias.
#include "access.hpp"

namespace espalier::reference {

// x T[b,s,d], w, bias T[d] -> y T[b,s,d], mean, rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void LayerNorm(const KernelCall& call) {
  const Tensor& x = Summed(call, 3, 3);
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  const double eps = call.attributes->Number("eps");
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < width; ++c) sum += Get(x, r * width + c);
    const double mean = sum / static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) squares += (Get(x, r * width + c) - mean) * (Get(x, r * width + c) - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    Set(call.outputs[1], r, mean);
    Set(call.outputs[2], r, rstd);
    for (int64_t c = 0; c < width; ++c) {
      const double xhat = (Get(x, r * width + c) - mean) * rstd;
      Set(call.outputs[0], r * width + c, Get(call.inputs[1], c) * xhat + Get(call.inputs[2], c));
    }
  }
}

// x, w, mean, rstd, dy -> dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)); with an addend: dx + addend
void LayerNormGrad(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &w = call.inputs[1], &dy = call.inputs[4];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = Get(call.inputs[2], r), rstd = Get(call.inputs[3], r);
    double plain = 0, projected = 0;
    for (int64_t c = 0; c < width; ++c) {
      const double g = Get(w, c) * Get(dy, r * width + c);
      plain += g / static_cast<double>(width);
      projected += g * (Get(x, r * width + c) - mean) * rstd / static_cast<double>(width);
    }
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = r * width + c;
      SetWith(call, 5, i, rstd * (Get(w, c) * Get(dy, i) - plain - (Get(x, i) - mean) * rstd * projected));
    }
  }
}

// x, mean, rstd, dy -> dw, dbias f32[d]: sums over rows of dy xhat and of dy
void LayerNormWeightGrad(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &dy = call.inputs[3];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  for (int64_t c = 0; c < width; ++c) {
    double weight = 0, bias = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = r * width + c;
      weight += Get(dy, i) * (Get(x, i) - Get(call.inputs[1], r)) * Get(call.inputs[2], r);
      bias += Get(dy, i);
    }
    Put(call, 0, c, weight);
    Put(call, 1, c, bias);
  }
}

}  // namespace espalier::reference
