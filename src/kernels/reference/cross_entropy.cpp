// Softmax cross-entropy in the steps that a sharded vocabulary needs.
#include <limits>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void LogitsMax(const LogitsMaxArgs& a) {
  const auto& [x, rows, width, first] = a.logits;
  for (int64_t r = 0; r < rows; ++r) {
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < width; ++c) max = std::max(max, Get(x, r * width + c));
    Set(a.max, r, max);
  }
}

void LogitsSum(const LogitsSumArgs& a) {
  const auto& [x, rows, width, first] = a.logits;
  if (a.max == nullptr) LogitsMax({a.logits, a.found_max});
  const float* max = a.max == nullptr ? a.found_max : a.max;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += std::exp(Get(x, r * width + c) - max[r]);
    const int64_t target = a.targets[r] - first;
    Set(a.sum, r, sum);
    Set(a.target, r, target >= 0 && target < width ? Get(x, r * width + target) : 0.0);
  }
}

void TokenLoss(const TokenLossArgs& a) {
  double loss = 0, count = 0, z = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    if (a.targets[r] < 0) continue;
    loss += std::log(static_cast<double>(a.sum[r])) + static_cast<double>(a.max[r]) - static_cast<double>(a.target[r]);
    count += 1;
    const double log_z = std::log(static_cast<double>(a.sum[r])) + static_cast<double>(a.max[r]);
    z += a.z_loss * log_z * log_z;
  }
  Put(a.loss, 0, loss, a.accumulate);
  Put(a.count, 0, count, a.accumulate);
  if (a.z != nullptr) Put(a.z, 0, z, a.accumulate);
}

void CrossEntropyGrad(const CrossEntropyGradArgs& a) {
  const auto& [x, rows, width, first] = a.logits;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = a.targets[r];
    const double log_z = std::log(static_cast<double>(a.sum[r])) + static_cast<double>(a.max[r]);
    for (int64_t c = 0; c < width; ++c) {
      const double p = std::exp(Get(x, r * width + c) - a.max[r]) / a.sum[r] * (1 + 2 * a.z_loss * log_z);
      Set(a.dlogits, r * width + c, target < 0 ? 0.0 : a.weight * (p - (first + c == target ? 1 : 0)));
    }
  }
}

void CrossEntropy(const CrossEntropyArgs& a) {
  LogitsSum({a.logits, nullptr, a.targets, a.sum, a.target, a.max});
  CrossEntropyGrad({a.logits, a.max, a.sum, a.targets, a.dlogits, a.z_loss, a.weight});
}

}  // namespace espalier::reference
