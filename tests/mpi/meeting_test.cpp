// The device that waits, on many ranks: no rank sees the end of a transfer before the last member has arrived,
// whichever messages MPI sends eagerly and however little some members send. Only lower bounds are asserted.
#include "espalier/comm/pack.hpp"
#include "espalier/executor/sleep_executor.hpp"
#include "harness.hpp"

namespace espalier::test {
namespace {

constexpr double kTransferUs = 3000;
/// The last ranks take longest.
double KernelUs(int rank) { return 4000.0 * (1 + rank); }

/// A kernel writes values that have memory.
void RunKernel(ProgramBuilder& builder, const std::vector<int>& values, std::vector<double>& costs_us) {
  builder.Run({OpKind::kAdd, {}, values, {}, Role::kF, 1, 0}, Lane::kCompute);
  costs_us.push_back(KernelUs(TheWorld().Rank()));
}

using Clock = std::chrono::steady_clock;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

/// When a step began on every rank, and ended on this one, by the machine's clock.
struct Step {
  std::vector<int64_t> began_us;
  int64_t ended_us = 0;

  /// A lower bound of the time between the kernels of `rank` and the end of the step here.
  double AfterUs(int rank, int kernels) const {
    return static_cast<double>(ended_us - began_us.at(static_cast<size_t>(rank))) - kernels * KernelUs(rank);
  }
};

Step RunTwoSteps(Program program, const std::vector<double>& costs_us) {
  const auto communication =
      MakeCommunication(program.mesh, AgreeOnChannels(TheWorld(), ChannelsOf(program)), MpiCommunicationOptions());
  ReservedArena arena(program.arena_bytes);
  SleepExecutor executor(program, program.mesh.CoordinateOf(TheWorld().Rank()), arena, communication.get(), costs_us,
                         1);
  executor.RunStep();
  Step step;
  const std::string began = std::to_string(NowUs());
  executor.RunStep();
  step.ended_us = NowUs();
  std::vector<int64_t> all;
  for (const std::string& one : TheWorld().Gather(began)) all.push_back(std::stoll(one));
  step.began_us = Unpack<std::vector<int64_t>>(TheWorld().Broadcast(Pack(all)));
  return step;
}

void CheckGroup(OpKind kind, const std::string& from, const std::string& to) {
  SCOPED_TRACE(fmt::format("{} of {}", kind, from));
  const Mesh mesh({1, 1, 1, 1, TheWorld().Size()});
  ProgramBuilder builder(mesh);
  const int input = builder.AddValue("from", from), output = builder.AddValue("to", to);
  builder.Place(input);
  builder.Place(output);
  std::vector<double> costs_us;
  RunKernel(builder, {input, output}, costs_us);  // one value has bytes on every rank, so that the transfer waits
  builder.Run(GroupOp(kind, {input}, {output}, AxisSet{Axis::kTp}), Lane::kTp);
  costs_us.push_back(kTransferUs);
  const Step step = RunTwoSteps(builder.Take(), costs_us);
  for (int rank = 0; rank < TheWorld().Size(); ++rank)
    EXPECT_GE(step.AfterUs(rank, 1), kTransferUs - 1) << "rank " << rank;
}

TEST(Meeting, OfAGroupBeginsWithItsLastMember) {
  CheckGroup(OpKind::kAllReduce, "f32[17,61]+sum{tp}", "f32[17,61]");
  CheckGroup(OpKind::kAllReduce, "f32[]+sum{tp}", "f32[]");    // one member reduces for all
  CheckGroup(OpKind::kAllGather, "f32[5,1{tp}]", "f32[5,1]");  // one member has data to send
  CheckGroup(OpKind::kReduceScatter, "f32[1]+sum{tp}", "f32[1{tp}]");
  CheckGroup(OpKind::kRingShift, "f32[24000{tp}]", "f32[24000{tp}]");  // messages go only to neighbours
}

Op SendOrRecv(OpKind kind, int value, int peer) {
  Op op{kind, {}, {}, {}, Role::kF, 1, 0};
  (kind == OpKind::kSend ? op.inputs : op.outputs) = {value};
  op.attributes.numbers[kind == OpKind::kSend ? "to" : "from"] = peer;
  return op;
}

/// The receivers are late: a sender whose message was sent eagerly still waits for them.
TEST(Meeting, OfASendBeginsWithTheReceiver) {
  const Mesh mesh({TheWorld().Size(), 1, 1, 1, 1});
  ProgramBuilder builder(mesh);
  const int out = builder.AddValue("out", "f32[7]"), in = builder.AddValue("in", "f32[7]");
  builder.Place(out);
  builder.Place(in);
  std::vector<double> costs_us;
  const int stage = builder.stage(), stages = mesh.Degree(Axis::kPp);
  RunKernel(builder, {out}, costs_us);
  RunKernel(builder, {in}, costs_us);  // the recv overwrites it, and therefore waits for it
  if (stage + 1 < stages) {
    builder.Run(SendOrRecv(OpKind::kSend, out, stage + 1), Lane::kPpSend);
    costs_us.push_back(kTransferUs);
  }
  if (stage > 0) {
    builder.Run(SendOrRecv(OpKind::kRecv, in, stage - 1), Lane::kPpRecv);
    costs_us.push_back(kTransferUs);
  }
  const Step step = RunTwoSteps(builder.Take(), costs_us);
  for (int rank = std::max(stage - 1, 0); rank <= std::min(stage + 1, stages - 1); ++rank)
    EXPECT_GE(step.AfterUs(rank, rank < stage ? 1 : 2), kTransferUs - 1) << "rank " << rank;
}

}  // namespace
}  // namespace espalier::test
