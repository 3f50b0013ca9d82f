// Fails on one rank in the way that its argument names, while the others wait for it; the job must end soon, with a
// nonzero status.
#include <cstdio>
#include <optional>
#include <string>

#include "comm/mpi/mpi_call.hpp"
#include "espalier/util/error.hpp"
#include "harness.hpp"

namespace espalier::test {
namespace {

std::optional<MpiWorld> world;

void FailOnRankOne(const KernelCall&) { CHECK(TheWorld().Rank() != 1, "rank 1 has a broken kernel"); }
Kernel FindKernel(std::string_view) { return FailOnRankOne; }

Program SumProgram(const std::string& type, bool with_kernel) {
  ProgramBuilder builder(Mesh({1, 1, 1, 1, world->Size()}));
  const int x = builder.AddValue("x", type + "+sum{tp}"), y = builder.AddValue("y", type);
  builder.Place(x);
  builder.Place(y);
  if (with_kernel) builder.Run({OpKind::kGelu, {}, {x}, {}, Role::kB, 7, 0}, Lane::kCompute);
  builder.Run(GroupOp(OpKind::kAllReduce, {x}, {y}, {Axis::kTp}), Lane::kTp);
  return builder.Take();
}

/// As in the executable, a failure ends the job.
void RunSteps(Program program) {
  HostArena arena(program.arena_bytes);
  MpiCommunication communication(*world, program.mesh, AgreeOnChannels(*world, ChannelsOf(program)));
  CpuExecutor executor(program, program.mesh.CoordinateOf(world->Rank()), arena, &communication, FindKernel,
                       [](const std::string& message) { world->Fail(message); });
  for (int step = 0; step < 3; ++step) executor.RunStep();
}

void CallMpiWrongly() {
  if (world->Rank() == 1) MPI_CALL(MPI_Send(nullptr, 0, MPI_BYTE, 1000, 0, MPI_COMM_WORLD));
  world->Barrier();
}

void Run(const std::string& mode) {
  if (mode == "mpi") CallMpiWrongly();
  if (mode == "kernel") RunSteps(SumProgram("f32[5]", true));
  // Rank 1 has a smaller, or a larger, tensor than the others.
  if (mode == "short") RunSteps(SumProgram(world->Rank() == 1 ? "f32[3]" : "f32[5]", false));
  if (mode == "exception") {
    if (world->Rank() == 1) throw std::runtime_error("thrown on rank 1");
    world->Barrier();
  }
}

}  // namespace

MpiWorld& TheWorld() { return *world; }

}  // namespace espalier::test

int main(int, char** argv) {
  using espalier::test::world;
  try {
    espalier::MpiWorld* borrowed = &world.emplace();
    struct Ending {  // the optional lives until exit: MPI ends while the exception unwinds
      ~Ending() { world.reset(); }
    } ending;
    espalier::test::Run(argv[1]);
    borrowed->Barrier();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "never reached: %s\n", error.what());
    return 0;
  }
  return 0;
}
