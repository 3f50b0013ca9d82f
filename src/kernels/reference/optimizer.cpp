// Once a step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm 2; constants
// as in torch.optim.AdamW and clip_grad_norm_).
#include "access.hpp"

namespace espalier::reference {

// g f32[...] -> f32[]
void SumSquares(const KernelCall& call) {
  const int64_t n = Volume(call.inputs[0].shape);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Get(call.inputs[0], i) * Get(call.inputs[0], i);
  Set(call.outputs[0], 0, sum);
}

// loss, count, squares of each tensor f32[] -> mean loss, norm, scale, apply, first f32[]
void Clip(const KernelCall& call) {
  const double count = Get(call.inputs[1], 0), clip_norm = call.attributes->Number("clip_norm");
  double squares = 0, first = -1;
  for (size_t i = call.inputs.size(); i-- > 2;)
    if (!std::isfinite(Get(call.inputs[i], 0))) first = static_cast<double>(i - 2);
  for (size_t i = 2; i < call.inputs.size(); ++i) squares += Get(call.inputs[i], 0);
  const double mean = Get(call.inputs[0], 0) / count, norm = std::sqrt(squares) / count;
  Set(call.outputs[0], 0, mean);
  Set(call.outputs[1], 0, norm);
  Set(call.outputs[2], 0, (clip_norm == 0 ? 1 : std::min(1.0, clip_norm / (norm + 1e-6))) / count);
  Set(call.outputs[3], 0, std::isfinite(mean) && std::isfinite(norm) ? 1 : 0);
  Set(call.outputs[4], 0, first);
}

// lr, step, scale, apply f32[], master, exp_avg, exp_avg_sq, g f32[...] of each tensor -> master, exp_avg, exp_avg_sq
// of each, in place
void Adamw(const KernelCall& call) {
  if (Get(call.inputs[3], 0) == 0) return;
  const Attributes& a = *call.attributes;
  const double beta1 = a.Number("beta1"), beta2 = a.Number("beta2"), eps = a.Number("eps");
  const double lr = Get(call.inputs[0], 0), step = Get(call.inputs[1], 0), scale = Get(call.inputs[2], 0);
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t t = 0; 3 * t < call.outputs.size(); ++t) {
    const auto in = call.inputs.subspan(4 + 4 * t, 4);
    const auto out = call.outputs.subspan(3 * t, 3);
    const double decay = static_cast<double>(t) < a.Number("decaying") ? a.Number("weight_decay") : 0;
    for (int64_t i = 0; i < Volume(out[0].shape); ++i) {
      const double g = Get(in[3], i) * scale;
      const double m = Get(in[1], i) + (1 - beta1) * (g - Get(in[1], i));
      const double v = beta2 * Get(in[2], i) + (1 - beta2) * g * g;
      const double p = Get(in[0], i) * (1 - lr * decay);
      Set(out[0], i, p - lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + eps));
      Set(out[1], i, m);
      Set(out[2], i, v);
    }
  }
}

}  // namespace espalier::reference
