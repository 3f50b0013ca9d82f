// The kernels under test are the cuda backend's, emulated.
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "emulate.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "kernels/cuda/runtime/workspace.hpp"
#include "unit/tested_kernels.hpp"

namespace espalier::testing {
namespace {

constexpr int kOpposite[] = {1};
bool opposite = false;

/// An emulated GPU that multiplies blocks with scales, as long as it lives.
class Blackwell {
 public:
  Blackwell() {
    if (const char* given = std::getenv(kName)) before_ = given;
    setenv(kName, "100", 1);
  }
  ~Blackwell() { before_.empty() ? unsetenv(kName) : setenv(kName, before_.c_str(), 1); }

 private:
  static constexpr const char* kName = "ESPALIER_EMULATED_CAPABILITY";
  std::string before_;
};

}  // namespace

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
  // The opposite of the order in which the previous call was computed.
  static emulation::Order previous;
  if (opposite)
    emulation::order = {previous.launch, true};
  else
    previous = emulation::order;
  std::optional<Blackwell> gpu;
  if (call.attributes != nullptr && call.attributes->TextOr("scales", "") == "mx") gpu.emplace();
  PrepareCudaKernel(op, planned);
  FindCudaKernel(op)(planned);
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  CHECK(std::all_of(workspace.end() - kGuardBytes, workspace.end(), is_guard), "{} writes past its workspace", op);
}

std::span<const int> OtherWays() { return kOpposite; }
void SetWay(int way) {
  opposite = way != 0;
  emulation::order.opposite = false;
}
bool RefusesOnTheDevice() { return false; }
bool Multiplies(Scales) { return true; }

}  // namespace espalier::testing
