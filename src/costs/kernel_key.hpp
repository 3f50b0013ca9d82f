// The reverse of KeyOf: an op with the local shapes that a key describes, so that formulas price measured neighbours.
#pragma once

#include <optional>
#include <vector>

#include "espalier/costs/cost_table.hpp"

namespace espalier {

/// An op that owns the objects to which a LocalOp refers. Dims that a kernel treats as one (batch and sequence of a
/// matmul) are one here: the first has extent 1.
struct RebuiltOp {
  Op op;
  std::vector<Shape> inputs, outputs;
  std::vector<Dtype> input_dtypes, output_dtypes;
  bool accumulate = false;

  LocalOp Local() const { return {op, inputs, outputs, input_dtypes.at(0), input_dtypes, output_dtypes}; }
};

/// Nothing if no op of the kind has such a variant with this number of sizes. Otherwise KeyOf of the result is `key`.
std::optional<RebuiltOp> Rebuild(const KernelKey& key);

}  // namespace espalier
