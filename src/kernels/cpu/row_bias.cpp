// The bias of its expert added to each row, and its gradients.
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

float WeightOf(const float* weights, int64_t r) { return weights == nullptr ? 1.0f : weights[r]; }

}  // namespace

void AddRowBias(const AddRowBiasArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T *x = a.x.As<T>(), *biases = a.bias.As<T>();
    T* y = a.y.As<T>();
    ForRows(FilledRows(a.group), a.width, [=](int64_t r) {
      const T* bias = biases + a.group.expert_of_row[r] * a.width;
      const float weight = WeightOf(a.weights, r);
      ForLanes(0, a.width, [=, width = a.width](int64_t c, auto lanes) {
        Store(y + r * width + c, Load(x + r * width + c, lanes) + weight * Load(bias + c, lanes), lanes);
      });
    });
  });
}

void RowBiasGrad(const RowBiasGradArgs& a) {
  const int32_t *row = a.group.expert_of_row, *end = row + a.group.rows;
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    for (int64_t e = 0; e < a.group.experts; ++e) {
      const int32_t* next = std::upper_bound(row, end, static_cast<int32_t>(e));
      const int64_t first = row - a.group.expert_of_row, rows = next - row;
      row = next;
      if (rows == 0 && a.accumulate) continue;
      ForColumns(rows, a.width, [&](int64_t c, auto lanes) {
        const T* column = a.dy.As<T>() + first * a.width + c;
        const Floats sum = SumOverRows(
            rows, [&](int64_t r) { return WeightOf(a.weights, first + r) * Load(column + r * a.width, lanes); });
        PutColumns(a.dbias + e * a.width + c, sum, a.accumulate, lanes);
      });
    }
  });
}

void RowWeightGrad(const RowWeightGradArgs& a) {
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    const T *adjoint = a.dy.As<T>(), *biases = a.bias.As<T>();
    ForRows(FilledRows(a.group), a.width, [=](int64_t r) {
      const T *dy = adjoint + r * a.width, *bias = biases + a.group.expert_of_row[r] * a.width;
      Sums sums;
      ForSums(0, a.width, [&](int64_t part, int64_t c, auto lanes) {
        sums.part[part] += Load(dy + c, lanes) * Load(bias + c, lanes);
      });
      a.dweights[r] = Sum(sums);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
