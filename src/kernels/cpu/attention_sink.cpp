// A logit of each head in the denominators of attention, and its gradient.
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void AttentionSink(const AttentionSinkArgs& a) {
  ForElementType(a.o.dtype, [&]<typename T>(T) {
    const T *o = a.o.As<T>(), *sinks = a.sinks.As<T>();
    ForRows(a.batch * a.queries, a.heads * a.head_dim, [&](int64_t row) {
      for (int64_t head = 0; head < a.heads; ++head) {
        const int64_t query = (row / a.queries * a.heads + head) * a.queries + row % a.queries;
        const int64_t at = (row * a.heads + head) * a.head_dim;
        const MergeWeights weights = MergeWeightsOf(a.lse[query], Load(sinks + head, 1)[0]);
        a.lse_with[query] = weights.lse;
        T* with = a.o_with.As<T>() + at;
        ForLanes(0, a.head_dim,
                 [&](int64_t c, auto lanes) { Store(with + c, Load(o + at + c, lanes) * weights.a, lanes); });
      }
    });
  });
}

// Threads own heads; blocks of rows are summed in fp32, the blocks in fp64.
void AttentionSinkGrad(const AttentionSinkGradArgs& a) {
  const int64_t rows = a.batch * a.queries;
  ForElementType(a.o.dtype, [&]<typename T>(T) {
    const T *o = a.o.As<T>(), *d_o = a.d_o.As<T>(), *sinks = a.sinks.As<T>();
    ParallelRanges(a.heads, RowGrain(rows * a.head_dim), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        double sum = 0;
        for (int64_t block = 0; block < BlocksOf(rows); ++block) {
          float of_block = 0;
          ForRowsOfBlock(rows, block, [&](int64_t row) {
            const int64_t query = (row / a.queries * a.heads + head) * a.queries + row % a.queries;
            const int64_t at = (row * a.heads + head) * a.head_dim;
            Sums products;
            ForSums(0, a.head_dim, [&](int64_t part, int64_t c, auto lanes) {
              products.part[part] += Load(o + at + c, lanes) * Load(d_o + at + c, lanes);
            });
            of_block += SinkShareOf(Load(sinks + head, 1)[0], a.lse[query]) * Sum(products);
          });
          sum += of_block;
        }
        a.dsinks[head] = (a.accumulate ? a.dsinks[head] : 0.0f) - static_cast<float>(sum);
      }
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
