// The kernels under test are the cpu's.
#include "tested_kernels.hpp"

namespace espalier::testing {
namespace {

/// Whatever the environment says.
const bool kThreadsAreSet = (SetCpuThreads(2), true);

}  // namespace

bool IsTested(std::string_view op) { return FindCpuKernel(op) != nullptr; }
void RunTested(std::string_view op, const KernelCall& call) { FindCpuKernel(op)(call); }
void SetTestedThreads(int threads) { SetCpuThreads(threads); }
bool RefusesOnTheDevice() { return false; }

}  // namespace espalier::testing
