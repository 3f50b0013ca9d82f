// The cuda backend's kernels by op name.
#include <map>

#include "kernels.hpp"

namespace espalier {

Kernel FindCudaKernel(std::string_view op) {
#define ESPALIER_ENTRY(name, function) {name, cuda::function},
  static const std::map<std::string_view, Kernel> kernels = {ESPALIER_KERNELS(ESPALIER_ENTRY)};
#undef ESPALIER_ENTRY
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : it->second;
}

}  // namespace espalier
