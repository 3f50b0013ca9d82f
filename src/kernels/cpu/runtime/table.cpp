// The cpu backend's kernels by op name, at the level in use.
#include <map>

#include "espalier/graph/op_list.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/error.hpp"
#include "kernels/arguments.hpp"
#include "kernels/read_arguments.hpp"
#include "level.hpp"

// Declares the tables of all levels; src/kernels/meson.build compiles their functions once per level.
#define ESPALIER_DECLARE(name, function) void function(const function##Args& args);
#define ESPALIER_ENTRY(name, function) \
  {name, [](const KernelCall& call) { function(ReadArguments<function##Args>(call)); }},
#define ESPALIER_LEVEL(level)                                                                     \
  namespace espalier::cpu::level {                                                                \
  ESPALIER_KERNELS(ESPALIER_DECLARE)                                                              \
  static const std::map<std::string_view, Kernel>& Kernels() {                                    \
    static const std::map<std::string_view, Kernel> kernels = {ESPALIER_KERNELS(ESPALIER_ENTRY)}; \
    return kernels;                                                                               \
  }                                                                                               \
  }
ESPALIER_LEVEL(baseline)
#if defined(__x86_64__)
ESPALIER_LEVEL(avx2)
ESPALIER_LEVEL(avx512)
ESPALIER_LEVEL(avx512_bf16)
#endif

namespace espalier {
namespace {

const std::map<std::string_view, Kernel>& KernelsOf(cpu::Level level) {
  switch (level) {
#if defined(__x86_64__)
    case cpu::Level::kAvx2:
      return cpu::avx2::Kernels();
    case cpu::Level::kAvx512:
      return cpu::avx512::Kernels();
    case cpu::Level::kAvx512Bf16:
    case cpu::Level::kAmx:
      return cpu::avx512_bf16::Kernels();
#endif
    default:
      return cpu::baseline::Kernels();
  }
}

}  // namespace

Kernel FindCpuKernel(std::string_view op) {
  const auto& kernels = KernelsOf(cpu::UsedLevel());
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : it->second;
}

}  // namespace espalier
