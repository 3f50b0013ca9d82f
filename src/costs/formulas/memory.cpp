// Kernels that only pass over memory: their inputs are read and their outputs written once. Accumulators are read, too.
#include "formulas.hpp"

namespace espalier {
namespace {

double BytesOf(const std::vector<Shape>& shapes, const std::vector<Dtype>& dtypes) {
  double bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) bytes += double(Volume(shapes[i]) * SizeOf(dtypes.at(i)));
  return bytes;
}
double InputBytes(const LocalOp& op, size_t i) {
  return double(Volume(op.inputs.at(i)) * SizeOf(op.input_dtypes.at(i)));
}
double OutputBytes(const LocalOp& op) { return BytesOf(op.outputs, op.output_dtypes); }

/// Rows of an fp32 table are added up: each row of the gradient is read, and a row of the table read and written. The
/// first microbatch clears the table.
double ScatteredBytes(const LocalOp& op, size_t gradient, bool accumulate) {
  const double rows = double(Volume(op.inputs.at(gradient))) * 4;
  return InputBytes(op, gradient) + 2 * rows + (accumulate ? 0 : OutputBytes(op));
}

/// Rows of `quantize` with scales of their own, not transposed.
bool RowsAreStoredAsRead(const Op& quantize) {
  const std::string& spec = quantize.attributes.Text("spec");
  return spec == "bsk->bsk,bsy" || spec == "nk->nk,ny";
}

}  // namespace

double MemoryUs(const DeviceModel& d, double bytes) {
  if (bytes <= 0 || d.memory_bytes_per_us <= 0) return 0;
  const double share = d.memory_share.empty() ? 1 : At(d.memory_share, bytes);
  return bytes / (d.memory_bytes_per_us * share);
}

double MovedBytes(const LocalOp& op, bool accumulate) {
  switch (op.op.kind) {
    case OpKind::kEmbedding:  // of the table, only the rows of the tokens
      return 2 * OutputBytes(op) + InputBytes(op, 0);
    case OpKind::kPositionEmbedding:
      return 3 * OutputBytes(op);
    case OpKind::kEmbeddingGrad:
      return ScatteredBytes(op, 1, accumulate);
    case OpKind::kPositionEmbeddingGrad:
      return ScatteredBytes(op, 1, accumulate);
    case OpKind::kSlice:  // the rest is not touched
    case OpKind::kTakeRows:
      return 2 * OutputBytes(op);
    case OpKind::kPutRows:
      return 2 * InputBytes(op, 0);
    case OpKind::kQuantize:  // the second time to round, which rows of their own find in the caches
      return InputBytes(op, 0) * (RowsAreStoredAsRead(op.op) ? 1 : 2) + OutputBytes(op);
    default:
      return BytesOf(op.inputs, op.input_dtypes) + OutputBytes(op) * (accumulate ? 2 : 1);
  }
}

}  // namespace espalier
