// The workspace that is planned for a call of a cuda kernel.
#pragma once

#include <string>
#include <vector>

#include "espalier/device_memory/workspace.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/unjoin.hpp"

namespace espalier::testing {

/// Bytes by the formula of the memory plan.
inline int64_t PlannedWorkspace(std::string_view op, const KernelCall& call) {
  const WorkspaceFormula formula = CudaWorkspaceFormula(OpKindOf(op));
  if (formula == nullptr) return 0;
  const auto shapes = [](std::span<const Tensor> tensors) {
    std::vector<Shape> all;
    for (const Tensor& x : tensors) all.push_back(x.shape);
    return all;
  };
  Op definition;
  definition.kind = OpKindOf(op);
  definition.attributes = *call.attributes;
  const auto dtypes = [](std::span<const Tensor> tensors) {
    std::vector<Dtype> all;
    for (const Tensor& x : tensors) all.push_back(x.dtype);
    return all;
  };
  LocalOp local{definition,           shapes(call.inputs), shapes(call.outputs),
                call.inputs[0].dtype, dtypes(call.inputs), dtypes(call.outputs)};
  Unjoin(local);
  return formula(local);
}

}  // namespace espalier::testing
