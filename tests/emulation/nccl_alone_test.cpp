// One rank of many, alone: communicators of one rank, on which every kind of instruction runs, issued and in a graph.
// Values then have no meaning: the test checks that the calls are accepted. Built twice: over the emulation, and over
// CUDA and NCCL (tests/gpu), where it needs one GPU and exits 77 without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "comm/nccl/nccl_call.hpp"
#include "espalier/comm/stream_communication.hpp"
#include "espalier/program/compile.hpp"
#include "executor/cuda/arenas.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The communication of a program, resolved as in an executor.
std::vector<CommInstruction> Resolve(const Program& program, const Coordinate& coordinate, const Arena& arena) {
  const auto tensors = [&](const OperandList& operands) {
    std::vector<Tensor> all;
    for (const Operand& o : operands) {
      const Type& type = program.graph->values[static_cast<size_t>(o.value)].type;
      const Box box = LocalBox(type, program.mesh, coordinate);
      Tensor& tensor = all.emplace_back(Tensor{arena.At(o.offset, o.bytes), type.dtype, ExtentsOf(box), {}});
      for (const Range& range : box) tensor.start.push_back(range.begin);
    }
    return all;
  };
  std::vector<CommInstruction> instructions;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.lane == Lane::kCompute) continue;
    std::byte* workspace =
        instruction.workspace.bytes > 0 ? arena.At(instruction.workspace.offset, instruction.workspace.bytes) : nullptr;
    instructions.push_back({instruction, tensors(instruction.inputs), tensors(instruction.outputs), workspace,
                            Describe(program, static_cast<int>(i)), static_cast<int>(i)});
  }
  return instructions;
}

/// A stream for each lane, from an event of the first stream to another.
class Lanes {
 public:
  cudaStream_t First() const { return streams_.Compute(); }
  cudaStream_t Of(Lane lane) const { return streams_.Of(lane); }

  void Fork() {
    CUDA_CALL(cudaEventRecord(fork_.Get(), First()));
    for (size_t lane = 1; lane < kLaneCount; ++lane)
      CUDA_CALL(cudaStreamWaitEvent(Of(static_cast<Lane>(lane)), fork_.Get(), 0));
  }
  void Join() {
    for (size_t lane = 1; lane < kLaneCount; ++lane) {
      CUDA_CALL(cudaEventRecord(join_.Get(), Of(static_cast<Lane>(lane))));
      CUDA_CALL(cudaStreamWaitEvent(First(), join_.Get(), 0));
    }
  }

 private:
  cuda::Streams streams_;
  cuda::Event fork_{cuda::Timing::kOff}, join_{cuda::Timing::kOff};
};

/// All communication of one rank's step, alone, on all lanes.
class Step {
 public:
  Step(const Compilation& c, int rank)
      : coordinate_(c.mesh.CoordinateOf(rank)),
        program_(MakeProgram(c, coordinate_)),
        arena_(program_.arena_bytes, lanes_.First()) {
    communication_ = MakeNcclCommunication(world_, program_.mesh, ChannelsOf(program_), {.alone = true});
    std::vector<CommInstruction> instructions = Resolve(program_, coordinate_, arena_);
    for (const CommInstruction& i : instructions) order_.push_back(i.instruction.lane);
    prepared_ = communication_->Prepare(program_, coordinate_, std::move(instructions));
  }

  size_t count() const { return order_.size(); }
  StreamCommunication& communication() { return *communication_; }

  void Issue() {
    lanes_.Fork();
    for (size_t k = 0; k < order_.size(); ++k) communication_->Issue(*prepared_, k, lanes_.Of(order_[k]));
    lanes_.Join();
  }
  void Await() { CUDA_CALL(cudaStreamSynchronize(lanes_.First())); }

  /// Captures a step and runs it `times` times.
  void Replay(int times) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CALL(cudaStreamBeginCapture(lanes_.First(), cudaStreamCaptureModeThreadLocal));
    Issue();
    CUDA_CALL(cudaStreamEndCapture(lanes_.First(), &graph));
    CUDA_CALL(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < times; ++i) CUDA_CALL(cudaGraphLaunch(executable, lanes_.First()));
    Await();
    CUDA_CALL(cudaGraphExecDestroy(executable));
    CUDA_CALL(cudaGraphDestroy(graph));
  }

 private:
  Coordinate coordinate_;
  Program program_;
  Lanes lanes_;
  cuda::DeviceArena arena_;
  SelfWorld world_;
  std::unique_ptr<StreamCommunication> communication_;
  std::unique_ptr<PreparedComm> prepared_;
  std::vector<Lane> order_;
};

struct Layout {
  int ranks;
  std::vector<std::string> deck;
};
const std::vector<Layout> kLayouts = {
    {8, {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=2", "model.tie_embeddings=true"}},
    {4, {"parallel.cp=2", "parallel.tp=2", "parallel.context=ring", "precision.compute=bf16"}},
    {6, {"parallel.cp=2", "parallel.dp_shard=3", "parallel.context=all_to_all", "batch.global=12"}},
};

class Alone : public ::testing::TestWithParam<const char*> {};

TEST_P(Alone, RunsEveryInstructionOfALayoutEagerlyAndInAGraph) {
  setenv("ESPALIER_NCCL_NATIVE", GetParam(), 1);
  for (Layout layout : kLayouts) {
    layout.deck.push_back("run.device=cuda");
    Step step(Compile(SmallDeck(layout.deck), layout.ranks, Purpose::kTrain), layout.ranks - 1);
    ASSERT_GT(step.count(), 0u);
    step.Issue();
    step.Await();
    step.Replay(2);
    step.communication().CheckErrors();
    step.communication().Abort();
  }
}

TEST(NcclCall, SaysWhatFailedAndWhatToLookAt) {
  EXPECT_THAT([] { cuda::FailNccl("file.cpp", 3, "ncclSend(x)", ncclRemoteError); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("file.cpp:3: ncclSend(x) failed"), HasSubstr("NCCL_DEBUG=WARN"))));
}

INSTANTIATE_TEST_SUITE_P(Native, Alone, ::testing::Values("0", "1"));

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int gpus = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU: %s\n", cudaGetErrorString(code));
    return 77;
  }
  return RUN_ALL_TESTS();
}
