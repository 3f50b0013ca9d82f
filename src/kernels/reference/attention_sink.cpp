// A logit of each head in the denominators of attention, and its gradient.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void AttentionSink(const AttentionSinkArgs& a) {
  for (int64_t row = 0; row < a.batch * a.queries; ++row)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t query = (row / a.queries * a.heads + h) * a.queries + row % a.queries;
      const double lse = a.lse[query], sink = Get(a.sinks, h), largest = std::max(lse, sink);
      const double with = largest + std::log(std::exp(lse - largest) + std::exp(sink - largest));
      for (int64_t i = (row * a.heads + h) * a.head_dim; i < (row * a.heads + h + 1) * a.head_dim; ++i)
        Set(a.o_with, i, std::exp(lse - with) * Get(a.o, i));
      Set(a.lse_with, query, with);
    }
}

void AttentionSinkGrad(const AttentionSinkGradArgs& a) {
  for (int64_t h = 0; h < a.heads; ++h) {
    double sum = 0;
    for (int64_t row = 0; row < a.batch * a.queries; ++row) {
      const int64_t query = (row / a.queries * a.heads + h) * a.queries + row % a.queries;
      double products = 0;
      for (int64_t i = (row * a.heads + h) * a.head_dim; i < (row * a.heads + h + 1) * a.head_dim; ++i)
        products += Get(a.o, i) * Get(a.d_o, i);
      sum += std::exp(Get(a.sinks, h) - a.lse[query]) * products;
    }
    Put(a.dsinks, h, -sum, a.accumulate);
  }
}

}  // namespace espalier::reference
