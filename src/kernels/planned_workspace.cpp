#include "espalier/kernels/planned_workspace.hpp"

#include "espalier/device_memory/workspace.hpp"
#include "espalier/ops/unjoin.hpp"

namespace espalier {

LocalOp LocalOpOf(std::string_view op, const KernelCall& call) {
  LocalOp local{{}, {}, {}, call.inputs[0].dtype};
  local.op.kind = OpKindOf(op);
  local.op.attributes = *call.attributes;
  for (const Tensor& x : call.inputs) local.inputs.push_back(x.shape), local.input_dtypes.push_back(x.dtype);
  for (const Tensor& x : call.outputs) local.outputs.push_back(x.shape), local.output_dtypes.push_back(x.dtype);
  Unjoin(local);
  return local;
}

int64_t PlannedWorkspace(std::string_view op, const KernelCall& call) {
  const WorkspaceFormula formula = CudaWorkspaceFormula(OpKindOf(op));
  return formula == nullptr ? 0 : formula(LocalOpOf(op, call));
}

}  // namespace espalier
