#include <algorithm>

#include "ops.hpp"

namespace espalier {

double InputBytes(const LocalOp& op, size_t input) {
  return double(Volume(op.inputs.at(input)) * SizeOf(op.input_dtypes.at(input)));
}

double OutputBytes(const LocalOp& op) {
  double bytes = 0;
  for (size_t o = 0; o < op.outputs.size(); ++o)
    bytes += double(Volume(op.outputs[o]) * SizeOf(op.output_dtypes.at(o)));
  return bytes;
}

double EachOperandOnce(const LocalOp& op, bool accumulate) {
  double bytes = 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) bytes += InputBytes(op, i);
  return bytes + OutputBytes(op) * (accumulate ? 2 : 1);
}

double LargerSideBytes(const LocalOp& op) {
  double bytes = 0;
  for (size_t t = 0; t < op.inputs.size(); ++t)
    bytes += double(std::max(Volume(op.inputs[t]), Volume(op.outputs[t])) * SizeOf(op.dtype));
  return bytes;
}

double AddedRowsBytes(const LocalOp& op, bool accumulate) {
  const double rows = double(Volume(op.inputs.at(1))) * 4;
  return InputBytes(op, 1) + 2 * rows + (accumulate ? 0 : OutputBytes(op));
}

}  // namespace espalier
