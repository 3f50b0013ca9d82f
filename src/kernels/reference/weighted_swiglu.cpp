// The SwiGLU gate of rows with weights.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

double GateOf(const SwigluRule& rule, double g) { return std::min(g, double{rule.limit}); }
double UpOf(const SwigluRule& rule, double u) {
  return std::clamp(u, -double{rule.limit}, double{rule.limit}) + rule.offset;
}
double SigmoidOfGate(const SwigluRule& rule, double g) {
  return 1 / (1 + std::exp(-double{rule.alpha} * GateOf(rule, g)));
}

}  // namespace

void WeightedSwiglu(const WeightedSwigluArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r)
    for (int64_t i = r * a.width; i < (r + 1) * a.width; ++i) {
      const double g = Get(a.gate, i);
      Set(a.y, i, a.weights[r] * GateOf(a.rule, g) * SigmoidOfGate(a.rule, g) * UpOf(a.rule, Get(a.up, i)));
    }
}

void WeightedSwigluGrad(const WeightedSwigluGradArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r) {
    double sum = 0;
    for (int64_t i = r * a.width; i < (r + 1) * a.width; ++i) {
      const double gate = Get(a.gate, i), up = Get(a.up, i), dy = Get(a.dy, i);
      const double g = GateOf(a.rule, gate), u = UpOf(a.rule, up), s = SigmoidOfGate(a.rule, gate), w = a.weights[r];
      sum += dy * g * s * u;
      Set(a.dgate, i, gate > a.rule.limit ? 0 : w * dy * u * s * (1 + a.rule.alpha * g * (1 - s)));
      Set(a.dup, i, std::abs(up) > a.rule.limit ? 0 : w * dy * g * s);
    }
    Set(a.dweights, r, sum);
  }
}

}  // namespace espalier::reference
