// The backend whose kernels a test binary tests: the one that it is linked with.
#pragma once

#include <span>
#include <string_view>

#include "espalier/kernels/gemm.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier::testing {

/// True if the backend has a kernel of `op`.
bool IsTested(std::string_view op);

/// Runs its kernel on tensors in the host's memory, where the results are on return. Tensors with one address are one
/// tensor. The call gets the planned workspace, full of NaN.
void RunTested(std::string_view op, const KernelCall& call);

/// True if a broken invariant on the device ends all further use of it: then no test may break one.
bool RefusesOnTheDevice();

/// True if the device multiplies fp8 operands with such scales.
bool Multiplies(Scales scales);

/// Other ways to compute, which must give the same bits: on other numbers of threads, in the opposite order, or again.
std::span<const int> OtherWays();
/// Chooses the way of the following calls: one of OtherWays(), or 0, the usual one.
void SetWay(int way);

}  // namespace espalier::testing
