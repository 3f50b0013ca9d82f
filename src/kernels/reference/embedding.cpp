// Rows of a table by token id, and their gradient.
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Embedding(const EmbeddingArgs& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t row = a.ids[t] - a.first_id;
    const bool here = row >= 0 && row < a.rows;
    for (int64_t c = 0; c < a.width; ++c) Set(a.y, t * a.width + c, here ? Get(a.table, row * a.width + c) : 0.0);
  }
}

void EmbeddingGrad(const EmbeddingGradArgs& a) {
  std::vector<double> sums(static_cast<size_t>(a.rows * a.width), 0.0);
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t row = a.ids[t] - a.first_id;
    if (row < 0 || row >= a.rows) continue;
    for (int64_t c = 0; c < a.width; ++c) sums[static_cast<size_t>(row * a.width + c)] += Get(a.dy, t * a.width + c);
  }
  for (int64_t i = 0; i < a.rows * a.width; ++i) Put(a.dtable, i, sums[static_cast<size_t>(i)], a.accumulate);
}

}  // namespace espalier::reference
