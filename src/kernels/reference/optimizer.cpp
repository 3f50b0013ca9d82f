// Once per step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm 2; constants
// as in torch.optim.AdamW and clip_grad_norm_).
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void SumSquares(const SumSquaresArgs& a) {
  for (int64_t m = 0; m < a.matrices; ++m) {
    double sum = 0;
    for (int64_t i = m * a.n; i < (m + 1) * a.n; ++i)
      sum += static_cast<double>(a.gradient[i]) * static_cast<double>(a.gradient[i]);
    Set(a.sum, m, sum);
  }
}

void Clip(const ClipArgs& a) {
  const double count = *a.count == 0 ? 1 : *a.count;
  double squares = 0, first = -1;
  for (size_t i = a.squares.size(); i-- > 0;)
    if (!std::isfinite(*a.squares[i])) first = static_cast<double>(i);
  for (const float* square : a.squares) squares += *square;
  const double mean = *a.loss / count, norm = std::sqrt(squares) / count;
  Set(a.mean_loss, 0, mean);
  Set(a.norm, 0, norm);
  Set(a.scale, 0, (a.clip_norm == 0 ? 1 : std::min(1.0, a.clip_norm / (norm + 1e-6))) / count);
  const bool within = a.loss_limit == nullptr || (*a.mean_loss <= *a.loss_limit && *a.norm <= *a.norm_limit);
  Set(a.apply, 0, std::isfinite(mean) && std::isfinite(norm) && within && *a.count > 0 ? 1 : 0);
  Set(a.first, 0, first);
}

void Mean(const MeanArgs& a) {
  double sum = 0;
  for (const float* term : a.sums) sum += *term;
  Set(a.mean, 0, sum / (*a.count == 0 ? 1 : *a.count));
}

void Adamw(const AdamwArgs& a) {
  if (*a.apply == 0) return;
  const auto& [beta1, beta2, eps, weight_decay, lr_factor] = a.constants;
  const double lr = *a.lr * lr_factor, step = *a.step, scale = *a.scale;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t t = 0; t < a.tensors.size(); ++t) {
    const AdamwTensor& x = a.tensors[t];
    const double decay = static_cast<int64_t>(t) < a.decaying ? weight_decay : 0;
    for (int64_t i = 0; i < x.n; ++i) {
      const double g = x.gradient[i] * scale;
      const double before = Get(x.exp_avg, i), m = before + (1 - beta1) * (g - before);
      const double v = beta2 * Get(x.exp_avg_sq, i) + (1 - beta2) * g * g;
      const double p = x.master[i] * (1 - lr * decay);
      Set(x.master, i, p - lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + eps));
      SetCopy(x.copy, x.master, i);
      SetMoment(x.exp_avg, 0, i, m, x.rounding, step);
      SetMoment(x.exp_avg_sq, 1, i, v, x.rounding, step);
    }
  }
}

}  // namespace espalier::reference
