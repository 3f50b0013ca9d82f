// The cuda backend's kernels by op name.
#include <map>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "kernels.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

cuda::LaunchContext ContextOf(const KernelCall& call) {
  return {static_cast<cudaStream_t>(call.stream), call.workspace, call.workspace_bytes};
}

}  // namespace

Kernel FindCudaKernel(std::string_view op) {
#define ESPALIER_ENTRY(name, function) \
  {name, [](const KernelCall& call) { cuda::function(ReadArguments<function##Args>(call), ContextOf(call)); }},
  static const std::map<std::string_view, Kernel> kernels = {ESPALIER_KERNELS(ESPALIER_ENTRY)};
#undef ESPALIER_ENTRY
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : it->second;
}

void cuda::Require(bool condition, const char* what) { CHECK(condition, "{}", what); }

}  // namespace espalier
