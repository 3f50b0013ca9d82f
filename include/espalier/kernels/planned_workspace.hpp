// The workspace that the memory plan gives a kernel call, for calls outside of programs.
#pragma once

#include <string_view>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

/// The op of a call. A joined op is described as the plain op that it replaces (ops/unjoin.hpp). Needs the operands'
/// shapes only.
LocalOp LocalOpOf(std::string_view op, const KernelCall& call);

/// Bytes of workspace that the plan reserves for the call of a cuda kernel.
int64_t PlannedWorkspace(std::string_view op, const KernelCall& call);

}  // namespace espalier
