// RMSNorm as Hugging Face's LlamaRMSNorm (Zhang and Sennrich 2019, eq. 4): xhat = x rstd is rounded to the compute type
// before the weight multiplies it.
#include <vector>

#include "access.hpp"

namespace espalier::reference {

// x T[b,s,d], w T[d] -> y T[b,s,d], rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void RmsNorm(const KernelCall& call) {
  const Tensor& x = Summed(call, 2, 2);
  const Tensor& w = call.inputs[1];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  const double eps = call.attributes->Number("eps");
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += Get(x, r * width + c) * Get(x, r * width + c);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    Set(call.outputs[1], r, rstd);
    for (int64_t c = 0; c < width; ++c) {
      Set(call.outputs[0], r * width + c, Get(w, c) * Rounded(x.dtype, Get(x, r * width + c) * rstd));
    }
  }
}

// x, w, rstd, dy -> dx: dx = rstd (w dy - xhat mean(w dy xhat)); with an addend: dx + addend
void RmsNormGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& w = call.inputs[1];
  const Tensor& dy = call.inputs[3];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = Get(call.inputs[2], r);
    double mean = 0;
    for (int64_t c = 0; c < width; ++c) mean += Get(w, c) * Get(dy, r * width + c) * Get(x, r * width + c) * rstd;
    mean /= static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = r * width + c;
      SetWith(call, 4, i, rstd * (Get(w, c) * Get(dy, i) - Get(x, i) * rstd * mean));
    }
  }
}

// x, rstd, dy -> dw f32[d]: sum over rows of dy xhat, xhat rounded as forward used it
void RmsNormWeightGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = r * width + c;
      sum += Get(call.inputs[2], i) * Rounded(x.dtype, Get(x, i) * Get(call.inputs[1], r));
    }
    Put(call, 0, c, sum);
  }
}

}  // namespace espalier::reference
