// The workspace that is planned for a call of a cuda kernel.
#pragma once

#include <string>
#include <vector>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/op.hpp"

namespace espalier::testing {

/// Bytes by the op's own formula.
inline int64_t PlannedWorkspace(std::string_view op, const KernelCall& call) {
  const auto formula = Define(op).cuda_workspace;
  if (formula == nullptr) return 0;
  const auto shapes = [](std::span<const Tensor> tensors) {
    std::vector<Shape> all;
    for (const Tensor& x : tensors) all.push_back(x.shape);
    return all;
  };
  Op definition;
  definition.kind = op;
  definition.attributes = *call.attributes;
  return formula({definition, shapes(call.inputs), shapes(call.outputs), call.inputs[0].dtype});
}

}  // namespace espalier::testing
