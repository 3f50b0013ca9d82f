// Adds up rows of a matrix by index: the gradient of reading rows of a table.
#pragma once

#include <cuda_runtime.h>

#include "kernels/arguments.hpp"

namespace espalier::cuda {

/// Rows of dy, summed over the batch, are added up by id, in the order of tokens. Ids outside of the table add nothing.
struct AddRowsArgs {
  const int32_t* ids;  ///< i32[tokens], at most 2^31 - 1
  Array dy;            ///< T[batch,tokens,width]
  float* table;        ///< f32[rows,width]; row 0 is the row of first_id
  int64_t batch, tokens, first_id, rows, width;
  bool accumulate;
};
void LaunchAddRows(const AddRowsArgs& args, cudaStream_t stream);

}  // namespace espalier::cuda
