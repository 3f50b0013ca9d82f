// The bias of its expert added to each row, and its gradients.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

double WeightOf(const float* weights, int64_t r) { return weights == nullptr ? 1 : weights[r]; }

}  // namespace

void AddRowBias(const AddRowBiasArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r)
    for (int64_t c = 0; c < a.width; ++c) {
      const double bias = Get(a.bias, a.group.expert_of_row[r] * a.width + c);
      Set(a.y, r * a.width + c, Get(a.x, r * a.width + c) + WeightOf(a.weights, r) * bias);
    }
}

void RowBiasGrad(const RowBiasGradArgs& a) {
  for (int64_t e = 0; e < a.group.experts; ++e)
    for (int64_t c = 0; c < a.width; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < a.group.rows; ++r)
        if (a.group.expert_of_row[r] == e) sum += WeightOf(a.weights, r) * Get(a.dy, r * a.width + c);
      Put(a.dbias, e * a.width + c, sum, a.accumulate);
    }
}

void RowWeightGrad(const RowWeightGradArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < a.width; ++c)
      sum += Get(a.dy, r * a.width + c) * Get(a.bias, a.group.expert_of_row[r] * a.width + c);
    Set(a.dweights, r, sum);
  }
}

}  // namespace espalier::reference
