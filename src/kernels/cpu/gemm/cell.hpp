// How the threads of a GEMM share c.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

inline int64_t Parts(int64_t n, int64_t of) { return (n + of - 1) / of; }

/// Rows and columns of c in units that stay together.
struct Cell {
  int64_t row_begin, row_end, column_begin, column_end;
  int64_t Rows() const { return row_end - row_begin; }
  int64_t Columns() const { return column_end - column_begin; }
};

/// The whole of c, and the cost of its units: the unit of rows times one of columns is row_size * column_size
/// multiplications; packing one of them costs `packing` times its size.
struct Grid {
  int64_t rows, columns, row_size, column_size, packing;
};

/// The work of thread `thread` of `threads`: a cell of the grid with the least cost per thread. Each thread packs its
/// own operands; fetching what another core has just packed takes longer.
inline Cell CellOf(const Grid& grid, int64_t thread, int64_t threads) {
  int64_t least = 0, across = 0;
  for (int64_t n = 1; n <= threads; ++n) {
    const int64_t r = Parts(grid.rows, threads / n) * grid.row_size, c = Parts(grid.columns, n) * grid.column_size,
                  cost = r * c + grid.packing * (r + c);
    if (across == 0 || cost < least) least = cost, across = n;
  }
  const int64_t down = threads / across, i = thread / across, j = thread % across;
  if (i >= down) return {};
  return {grid.rows * i / down, grid.rows * (i + 1) / down, grid.columns * j / across, grid.columns * (j + 1) / across};
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
