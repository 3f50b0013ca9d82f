// The reference backend's kernels by op name.
#include <map>

#include "access.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {

Kernel FindReferenceKernel(std::string_view op) {
#define ESPALIER_ENTRY(name, function) \
  {name, [](const KernelCall& call) { reference::function(ReadArguments<function##Args>(call)); }},
  static const std::map<std::string_view, Kernel> kernels = {ESPALIER_KERNELS(ESPALIER_ENTRY)};
#undef ESPALIER_ENTRY
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : it->second;
}

}  // namespace espalier
