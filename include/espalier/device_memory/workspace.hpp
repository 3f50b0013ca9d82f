// The scratch memory that each op's cuda kernel needs. Pure: the memory plan reserves these bytes before a job starts,
// and the kernels keep to them. OpDefinition does not have the formulas, because they depend on vendors' libraries,
// which src/ops does not know. But this module compiles only if each kernel of op_list.hpp has a formula here or is
// listed as one without.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/device_memory/fused_attention.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

/// Bytes that a kernel may use besides its inputs and outputs, from the op's shapes on one rank.
using WorkspaceFormula = int64_t (*)(const LocalOp&);

/// The formula for the cuda kernel of an op kind, or nullptr if that kernel needs no workspace. (cpu kernels keep their
/// scratch in the caches of the cores, outside the arena.)
WorkspaceFormula CudaWorkspaceFormula(OpKind kind);

/// The call of an attention or attention_grad on rank `rank` of cp, whose operands are dense.
AttentionInBlocks AttentionOfRank(const LocalOp& op, int64_t rank);

/// Why cuDNN takes no attention or attention_grad of these shapes on a GPU of compute capability 9.0, so that our own,
/// much slower kernels compute it; empty if it does.
std::string WhyPlainAttention(const LocalOp& op);

}  // namespace espalier
