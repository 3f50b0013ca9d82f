#include <fmt/core.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "espalier/comm/mpi_communication.hpp"
#include "espalier/costs/costs.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/executor/sleep_executor.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

/// Argument of sched_setattr, which the C library does not declare.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes), policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

/// This thread, and the threads that it starts, use little of a core and are scheduled soon when they wake: their
/// timers are exact to a microsecond, and they request short time slices (Linux 6.12 and later). Both are hints:
/// without them times are less exact.
void WakePromptly() {
  prctl(PR_SET_TIMERSLACK, 1000UL);
  SchedulingAttributes attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

class SleepDevice final : public Device {
 public:
  SleepDevice(Costs costs, double dilation) : costs_(std::move(costs)), dilation_(dilation) {
    WakePromptly();  // this thread runs the compute lane, and starts the communication thread
  }

  DeviceKind Kind() const override { return costs_.cluster().device; }
  bool Computes() const override { return false; }
  std::string Describe() const override {
    const Cluster& cluster = costs_.cluster();
    return fmt::format("sleep, as {} ({}), {:g} times as slow", cluster.name, cluster.compute.name, dilation_);
  }
  std::string Conditions() const override { return "nothing is computed"; }
  int64_t OutsideBytes(int64_t, int64_t) const override { return PeakResidentMemory(); }

  PeakRate Peak(Dtype compute) const override {
    const Cluster& cluster = costs_.cluster();
    const double tera = compute == Dtype::kBf16 ? cluster.compute.bf16_tflops : cluster.compute.fp32_tflops;
    return {tera * kTera, fmt::format("{}: {} TFLOP/s in {}", cluster.path, tera, Name(compute))};
  }

  std::vector<MemoryLimit> ArenaLimits() const override { return {}; }
  std::vector<MemoryLimit> HostLimits() const override { return {}; }
  std::unique_ptr<Arena> MakeArena(int64_t bytes) override { return std::make_unique<ReservedArena>(bytes); }
  std::unique_ptr<Arena> MakeStaging(int64_t bytes) override { return std::make_unique<ReservedArena>(bytes); }

  void Connect(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels) override {
    communication_ = std::make_unique<MpiCommunication>(world, mesh, channels);
  }
  std::unique_ptr<Executor> MakeExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                                         Executor::Abort abort) override {
    std::vector<double> costs_us;
    for (const InstructionCost& cost : CostInstructions(costs_, program, coordinate)) costs_us.push_back(cost.us);
    return std::make_unique<SleepExecutor>(program, coordinate, memory, communication_.get(), costs_us, dilation_,
                                           std::move(abort));
  }

 private:
  const Costs costs_;
  const double dilation_;
  std::unique_ptr<MpiCommunication> communication_;
};

}  // namespace

std::unique_ptr<Device> MakeSleepDevice(Costs costs, double dilation) {
  return std::make_unique<SleepDevice>(std::move(costs), dilation);
}

}  // namespace espalier
