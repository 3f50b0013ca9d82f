// Muon's element-wise steps (Jordan et al. 2024; as torch.optim.Muon).
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void MuonDirection(const MuonDirectionArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double g = static_cast<double>(a.gradient[i]) * *a.scale, before = Get(a.momentum, i);
    const double momentum = *a.apply == 0 ? before : before + (1 - a.beta) * (g - before);
    const bool ahead = a.nesterov && *a.apply != 0;
    Set(a.direction, i, ahead ? g + a.beta * (momentum - g) : momentum);
    SetMoment(a.momentum, 0, i, momentum, a.rounding, a.step == nullptr ? 0 : *a.step);
  }
}

void Normalize(const NormalizeArgs& a) {
  for (int64_t m = 0; m < a.matrices; ++m) {
    const double norm = std::max(std::sqrt(static_cast<double>(a.squares[m])), a.eps);
    for (int64_t i = m * a.n; i < (m + 1) * a.n; ++i) Set(a.y, i, a.x[i] / norm);
  }
}

void WeightedSum(const WeightedSumArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) Set(a.z, i, a.alpha * Get(a.x, i) + a.beta * Get(a.y, i));
}

void MuonUpdate(const MuonUpdateArgs& a) {
  if (*a.apply == 0) return;
  const double lr = *a.lr;
  for (int64_t i = 0; i < a.n; ++i) {
    Set(a.master, i, a.master[i] * (1 - lr * a.weight_decay) - lr * a.factor * Get(a.orthogonal, i));
    SetCopy(a.copy, a.master, i);
  }
}

}  // namespace espalier::reference
