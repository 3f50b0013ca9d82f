// The kernels under test are the cuda backend's, emulated.
#include <vector>

#include "kernels/cuda/kernels.hpp"
#include "planned_workspace.hpp"
#include "unit/tested_kernels.hpp"

namespace espalier::testing {

bool IsTested(std::string_view op) { return FindCudaKernel(op) != nullptr; }

void RunTested(std::string_view op, const KernelCall& call) {
  constexpr unsigned char kNan = 0xff, kGuard = 0xa5;
  constexpr size_t kGuardBytes = 64;
  const auto bytes = static_cast<size_t>(PlannedWorkspace(op, call));
  std::vector<unsigned char> workspace(bytes + kGuardBytes, kGuard);
  std::fill_n(workspace.begin(), bytes, kNan);
  KernelCall planned = call;
  planned.workspace = workspace.data();
  planned.workspace_bytes = static_cast<int64_t>(bytes);
  PrepareCudaKernel(op, planned);
  FindCudaKernel(op)(planned);
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  CHECK(std::all_of(workspace.end() - kGuardBytes, workspace.end(), is_guard), "{} writes past its workspace", op);
}

void SetTestedThreads(int) {}
bool RefusesOnTheDevice() { return false; }

}  // namespace espalier::testing
