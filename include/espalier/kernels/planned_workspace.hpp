// What the memory plan says of a kernel's call, for calls that are in no program.
#pragma once

#include <string_view>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

/// The op of a call, a joined one as the plain op that it is equal to (ops/unjoin.hpp). Needs operands' shapes only.
LocalOp LocalOpOf(std::string_view op, const KernelCall& call);

/// Bytes of workspace that the plan reserves for the call of a cuda kernel.
int64_t PlannedWorkspace(std::string_view op, const KernelCall& call);

}  // namespace espalier
