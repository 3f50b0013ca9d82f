// The kernels under test are the cpu's.
#include <cstdio>
#include <cstdlib>

#include "espalier/util/error.hpp"
#include "tested_kernels.hpp"

namespace espalier::testing {
namespace {

constexpr int kUsualThreads = 2, kOtherThreads[] = {1, 5};

/// Ignores the environment's settings of threads. If the processor lacks ESPALIER_ISA, or uses it anyway, the test is
/// skipped: the same test without ESPALIER_ISA runs at that level.
bool SetUp() try {
  if (CpuLevel() == UncappedCpuLevel() && std::getenv("ESPALIER_ISA") != nullptr) {
    std::puts("skipped: this processor has this level without ESPALIER_ISA");
    std::exit(77);
  }
  SetCpuThreads(kUsualThreads);
  return true;
} catch (const UserError& error) {
  std::puts(error.what());
  std::exit(77);
}
const bool kIsSetUp = SetUp();

}  // namespace

bool IsTested(std::string_view op) { return FindCpuKernel(op) != nullptr; }
void RunTested(std::string_view op, const KernelCall& call) { FindCpuKernel(op)(call); }
std::span<const int> OtherWays() { return kOtherThreads; }
void SetWay(int way) { SetCpuThreads(way == 0 ? kUsualThreads : way); }
bool RefusesOnTheDevice() { return false; }
bool Multiplies(Scales) { return true; }

}  // namespace espalier::testing
