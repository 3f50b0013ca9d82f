// Arithmetic that backends share: on the host and, under nvcc, on the device. V is a number or a vector of the host's
// lanes; the order of operations is part of each formula. (The cpu's GELU and softmax choose branches per lane, so they
// have their own forms.)
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.hpp"

namespace espalier {

template <typename V>
struct GateAndUp {
  V gate, up;
};

/// silu(g) u, with s = sigmoid(g).
template <typename V>
ESPALIER_HOST_DEVICE inline V SwigluOf(V g, V u, V s) {
  return g * s * u;
}

/// dg = dy u s (1 + g (1 - s)), du = dy g s.
template <typename V>
ESPALIER_HOST_DEVICE inline GateAndUp<V> SwigluGradOf(V g, V u, V dy, V s) {
  return {dy * u * s * (1.0f + g * (1.0f - s)), dy * g * s};
}

/// A form of SwiGLU: g' s (u' + offset) with g' = min(g, limit), u' = u within plus and minus limit, and s =
/// sigmoid(alpha g'). By default silu(g) u; gpt-oss has alpha 1.702, limit 7 and offset 1. As in PyTorch, a gradient
/// passes a limit that is just met.
struct SwigluRule {
  float alpha = 1, limit = INFINITY, offset = 0;

  template <typename V>
  ESPALIER_HOST_DEVICE V Gate(V g) const {
    const V most = V{} + limit;
    return g > most ? most : g;
  }
  template <typename V>
  ESPALIER_HOST_DEVICE V Up(V u) const {
    const V most = V{} + limit;
    return (u > most ? most : u < -most ? -most : u) + offset;
  }
  /// Adjoints of g and u, s as above.
  template <typename V>
  ESPALIER_HOST_DEVICE GateAndUp<V> Gradient(V g, V u, V dy, V s) const {
    const V zero{}, most = zero + limit, inner = Gate(g);
    const V dg = dy * Up(u) * s * (1.0f + alpha * inner * (1.0f - s)), du = dy * inner * s;
    return {g > most ? zero : dg, u > most ? zero : u < -most ? zero : du};
  }
};
inline constexpr float kGptOssAlpha = 1.702f;

ESPALIER_HOST_DEVICE inline float SigmoidOf(float x) { return 1.0f / (1.0f + std::exp(-x)); }
/// log(sigmoid(x)), finite for any finite x.
ESPALIER_HOST_DEVICE inline float LogSigmoidOf(float x) {
  return (x < 0 ? x : 0.0f) - std::log1p(std::exp(x < 0 ? x : -x));
}

/// GELU's gate sigmoid(2 u) and its derivative by x, 2 u = 2 sqrt(2 / pi) (x + 0.044715 x^3): t = exp(-|2 u|) gives
/// both without cancellation. Beyond 12 it is 0 in fp32; the cube stays finite within.
struct GeluGate {
  float sigmoid, slope;
};
ESPALIER_HOST_DEVICE inline GeluGate GeluGateOf(float x) {
  constexpr float kTwoScale = 1.59576912160573071f, kCubic = 0.044715f, kFar = 12.0f;
  const float low = x < -kFar ? -kFar : x, z = low > kFar ? kFar : low;
  const float squared = z * z, exponent = kTwoScale * z * (1.0f + kCubic * squared);
  const float t = std::exp(exponent < 0.0f ? exponent : -exponent), inverse = 1.0f / (1.0f + t);
  return {exponent < 0.0f ? t * inverse : inverse,
          t * inverse * inverse * kTwoScale * (1.0f + 3.0f * kCubic * squared)};
}

/// Inverse frequency i of a head of `head_dim`: 1 / theta^(2i / head_dim), each step in fp32 as in Hugging Face's
/// Llama.
ESPALIER_HOST_DEVICE inline float RopeFrequency(double theta, int64_t head_dim, int64_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
  return 1.0f /
         static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
}

/// How RoPE's frequencies are scaled for longer sequences: divided by `factor`, except for a share `keep` of each:
///   linear  none
///   llama3  (turns - low) / (high - low) within 0 and 1, of the turns in `original_length` positions (Llama 3.1)
///   yarn    1 - (i - low) / (high - low) within 0 and 1, of frequency i (Peng et al. 2023, eq. 17 to 20)
/// Cosines and sines are multiplied by `amplitude`.
enum class RopeStretch : uint8_t { kNone, kLinear, kLlama3, kYarn };
struct RopeRule {
  double theta;
  int64_t head_dim;
  RopeStretch stretch;
  double factor, low, high, original_length, amplitude;
};

/// Inverse frequency i under a rule.
ESPALIER_HOST_DEVICE inline float RopeFrequency(const RopeRule& rule, int64_t i) {
  const float plain = RopeFrequency(rule.theta, rule.head_dim, i);
  if (rule.stretch == RopeStretch::kNone) return plain;
  constexpr double kTwoPi = 6.283185307179586;
  const double turns = rule.original_length * static_cast<double>(plain) / kTwoPi;
  const double ramp =
      ((rule.stretch == RopeStretch::kYarn ? static_cast<double>(i) : turns) - rule.low) / (rule.high - rule.low);
  const double share = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
  const double keep = rule.stretch == RopeStretch::kLinear ? 0 : rule.stretch == RopeStretch::kYarn ? 1 - share : share;
  return static_cast<float>(static_cast<double>(plain) * (keep + (1 - keep) / rule.factor));
}

template <typename V>
struct Rotated {
  V x0, x1;
};

/// A pair rotated by the angle of cosine c and sine s.
template <typename V>
ESPALIER_HOST_DEVICE inline Rotated<V> RotatedOf(V x0, V x1, V c, V s) {
  return {x0 * c - x1 * s, x1 * c + x0 * s};
}

/// The loss of a counted token: log(sum) + max - target.
ESPALIER_HOST_DEVICE inline double TokenLossOf(float largest, float sum, float target) {
  return std::log(static_cast<double>(sum)) + (static_cast<double>(largest) - static_cast<double>(target));
}

/// log Z of a token, Z the denominator of its softmax.
ESPALIER_HOST_DEVICE inline double LogZOf(float largest, float sum) {
  return std::log(static_cast<double>(sum)) + static_cast<double>(largest);
}
/// The factor of exp(x - max) in the gradient of a loss with this weight: weight (1 + 2 z_loss log Z) / sum.
ESPALIER_HOST_DEVICE inline float SoftmaxFactorOf(float largest, float sum, double z_loss, float weight) {
  return z_loss > 0 ? static_cast<float>(static_cast<double>(weight) * (1 + 2 * z_loss * LogZOf(largest, sum)) /
                                         static_cast<double>(sum))
                    : weight / sum;
}

/// The weights of the two parts of a merged softmax, and the log of its denominator.
struct MergeWeights {
  float a, b, lse;
};
ESPALIER_HOST_DEVICE inline MergeWeights MergeWeightsOf(float lse_a, float lse_b) {
  const float largest = lse_a > lse_b ? lse_a : lse_b;
  if (largest == -INFINITY) return {0, 0, largest};
  const float a = std::exp(lse_a - largest), b = std::exp(lse_b - largest);
  return {a / (a + b), b / (a + b), largest + std::log(a + b)};
}

/// The probability of a head's sink: e^(sink - lse), the denominator with the sink in it.
ESPALIER_HOST_DEVICE inline float SinkShareOf(float sink, float lse) { return std::exp(sink - lse); }

/// The divisor of sums for means: a step without counted tokens has means of 0.
ESPALIER_HOST_DEVICE inline double DivisorOf(double count) { return count > 0 ? count : 1; }

/// The results of `clip`, from the sums of losses, of tokens and of squared gradients. Without tokens no update
/// applies.
struct Clipped {
  double mean, norm, scale, apply;
};
ESPALIER_HOST_DEVICE inline Clipped ClippedOf(double loss, double count, double squares, double clip_norm) {
  const double divisor = DivisorOf(count), mean = loss / divisor, norm = std::sqrt(squares) / divisor;
  const double limited = clip_norm / (norm + 1e-6);
  const double factor = clip_norm != 0 && limited < 1 ? limited : 1;
  return {mean, norm, factor / divisor, count > 0 && std::isfinite(mean) && std::isfinite(norm) ? 1.0 : 0.0};
}

/// Whether an update applies: 1, or 0 if mean loss or norm exceed limits. The host compares the same fp32 numbers.
ESPALIER_HOST_DEVICE inline float AppliesWithin(const Clipped& c, float loss_limit, float norm_limit) {
  const bool within = static_cast<float>(c.mean) <= loss_limit && static_cast<float>(c.norm) <= norm_limit;
  return within ? static_cast<float>(c.apply) : 0.0f;
}

/// The factors of one step's AdamW update, in fp32.
struct AdamwFactors {
  float scale, decay, lerp1, beta2, lerp2, rate, root, eps;
};
/// The optimizer's constants.
struct AdamwConstants {
  double beta1, beta2, eps, weight_decay, lr_factor;
};
ESPALIER_HOST_DEVICE inline AdamwFactors AdamwFactorsOf(const AdamwConstants& k, double highest, double step,
                                                        float scale) {
  const double lr = highest * k.lr_factor;
  return {scale,
          static_cast<float>(1 - lr * k.weight_decay),
          static_cast<float>(1 - k.beta1),
          static_cast<float>(k.beta2),
          static_cast<float>(1 - k.beta2),
          static_cast<float>(lr / (1 - std::pow(k.beta1, step))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(k.beta2, step))),
          static_cast<float>(k.eps)};
}

template <typename V>
struct AdamwState {
  V master, exp_avg, exp_avg_sq;
};
/// One element's update (Loshchilov and Hutter 2019, algorithm 2, as torch.optim.AdamW). `Math` has V's square root
/// Root(x) and Product(a, b), which is rounded before it is added to anything: whether it is fused must not be the
/// compiler's choice, which may differ from loop to loop.
template <typename Math, typename V>
ESPALIER_HOST_DEVICE inline AdamwState<V> AdamwOf(const AdamwFactors& f, AdamwState<V> s, V gradient) {
  const V g = Math::Product(gradient, f.scale), m = s.exp_avg + f.lerp1 * (g - s.exp_avg);
  const V v = f.beta2 * s.exp_avg_sq + Math::Product(f.lerp2 * g, g);
  return {s.master * f.decay - f.rate * m / (Math::Root(v) * f.root + f.eps), m, v};
}

}  // namespace espalier
