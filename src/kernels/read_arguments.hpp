// Translates a call, whose operands are numbered, into the arguments of its kernel, which have names.
#pragma once

#include "espalier/graph/op_list.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "kernels/arguments.hpp"

namespace espalier {

/// The arguments of one op's kernel. CHECKs that operands have the required types, and extents that fit.
template <typename Args>
Args ReadArguments(const KernelCall& call);

#define ESPALIER_DECLARE(name, function) \
  template <>                            \
  function##Args ReadArguments(const KernelCall& call);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

}  // namespace espalier
