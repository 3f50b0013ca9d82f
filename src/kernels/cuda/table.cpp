// The cuda backend's kernels by op name.
#include <map>

#include "kernels.hpp"

namespace espalier {

Kernel FindCudaKernel(std::string_view op) {
  static const std::map<std::string_view, Kernel> kernels = {{"accumulate", cuda::Accumulate}};
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : it->second;
}

}  // namespace espalier
