// The kernels under test are the cuda backend's, emulated.
#include <vector>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "unit/tested_kernels.hpp"

namespace espalier::testing {

bool IsTested(std::string_view op) { return FindCudaKernel(op) != nullptr; }

void RunTested(std::string_view op, const KernelCall& call) {
  constexpr unsigned char kNan = 0xff, kGuard = 0xa5;
  constexpr size_t kGuardBytes = 64, kAlignment = cuda::kWorkspaceAlignment;
  const auto bytes = static_cast<size_t>(PlannedWorkspace(op, call));
  // Starts as far before a multiple of the libraries' alignment as a buffer can begin.
  std::vector<unsigned char> workspace(bytes + kGuardBytes + 2 * kAlignment, kGuard);
  const size_t begin = kAlignment - reinterpret_cast<uintptr_t>(workspace.data()) % kAlignment + cuda::kBufferAlignment;
  workspace.resize(begin + bytes + kGuardBytes);
  std::fill_n(workspace.begin() + static_cast<std::ptrdiff_t>(begin), bytes, kNan);
  KernelCall planned = call;
  planned.workspace = workspace.data() + begin;
  planned.workspace_bytes = static_cast<int64_t>(bytes);
  PrepareCudaKernel(op, planned);
  FindCudaKernel(op)(planned);
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  CHECK(std::all_of(workspace.end() - kGuardBytes, workspace.end(), is_guard), "{} writes past its workspace", op);
}

void SetTestedThreads(int) {}
bool RefusesOnTheDevice() { return false; }

}  // namespace espalier::testing
