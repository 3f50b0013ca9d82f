// Rows of a table by position, added to the tokens; and their gradient.
#include <vector>

#include "espalier/kernels/shapes.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void PositionEmbedding(const PositionEmbeddingArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t row = CheckedRow(a.positions[r % a.length], a.table_rows);
    for (int64_t c = 0; c < a.width; ++c)
      Set(a.y, r * a.width + c, Get(a.x, r * a.width + c) + Get(a.table, row * a.width + c));
  }
}

void PositionEmbeddingGrad(const PositionEmbeddingGradArgs& a) {
  std::vector<double> sums(static_cast<size_t>(a.table_rows * a.width), 0.0);
  for (int64_t r = 0; r < a.batch * a.length; ++r) {
    const int64_t row = CheckedRow(a.positions[r % a.length], a.table_rows);
    for (int64_t c = 0; c < a.width; ++c) sums[static_cast<size_t>(row * a.width + c)] += Get(a.dy, r * a.width + c);
  }
  for (int64_t i = 0; i < a.table_rows * a.width; ++i) Put(a.dtable, i, sums[static_cast<size_t>(i)], a.accumulate);
}

}  // namespace espalier::reference
