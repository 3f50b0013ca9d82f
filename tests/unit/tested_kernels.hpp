// The backend whose kernels a test binary tries: the one that it is linked with.
#pragma once

#include <string_view>

#include "espalier/kernels/kernel_table.hpp"

namespace espalier::testing {

/// True if the backend has a kernel of `op`.
bool IsTested(std::string_view op);

/// Runs its kernel on tensors in the host's memory; on return their results are there. Tensors with one address are
/// one. The call gets the workspace that would be planned for it, full of NaN.
void RunTested(std::string_view op, const KernelCall& call);

/// True if a broken invariant that only a device sees ends all further use of it: no test may break one.
bool RefusesOnTheDevice();

/// As SetCpuThreads, where that means something.
void SetTestedThreads(int threads);

}  // namespace espalier::testing
