// The cuda backend's kernels: each issues its work on the context's stream and returns at once. All pointers are device
// pointers. Included by nvcc.
#pragma once

#include "espalier/graph/op_list.hpp"
#include "kernels/arguments.hpp"
#include "launch_context.hpp"

namespace espalier::cuda {

#define ESPALIER_DECLARE(name, function) void function(const function##Args& args, const LaunchContext& context);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

}  // namespace espalier::cuda
