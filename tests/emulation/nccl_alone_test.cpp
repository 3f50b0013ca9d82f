// One rank of many, alone: communicators of one rank, on which every kind of instruction runs. Values are then those of nobody, but for
// what a rank gives itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/nccl/nccl_call.hpp"
#include "espalier/comm/stream_communication.hpp"
#include "espalier/executor/arena.hpp"
#include "espalier/program/compile.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The communication of a program, resolved as an executor does.
std::vector<CommInstruction> Resolve(const Program& program, const Coordinate& coordinate, const Arena& arena) {
  const auto tensors = [&](const std::vector<Operand>& operands) {
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
    std::byte* workspace = instruction.workspace.bytes > 0 ? arena.At(instruction.workspace.offset, instruction.workspace.bytes) : nullptr;
    instructions.push_back({&instruction, tensors(instruction.inputs), tensors(instruction.outputs), workspace,
                            Describe(program, static_cast<int>(i)), static_cast<int>(i)});
  }
  return instructions;
}

class Alone : public ::testing::TestWithParam<const char*> {};

TEST_P(Alone, RunsEveryInstructionOfALayoutOnOneRank) {
  setenv("ESPALIER_NCCL_NATIVE", GetParam(), 1);
  for (const std::vector<std::string>& deck : std::vector<std::vector<std::string>>{
           {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=2", "model.tie_embeddings=true", "run.device=cuda"},
           {"parallel.cp=2", "parallel.tp=2", "parallel.context=ring", "precision.compute=bf16", "run.device=cuda"},
           {"parallel.cp=2", "parallel.dp_shard=3", "parallel.context=all_to_all", "batch.global=12", "run.device=cuda"}}) {
    const int ranks = deck[0] == "parallel.pp=2" ? 8 : deck[1] == "parallel.tp=2" ? 4 : 6;
    const Compilation c = Compile(SmallDeck(deck), ranks, Purpose::kTrain);
    const Coordinate last = c.mesh.CoordinateOf(ranks - 1);
    const Program program = MakeProgram(c, last);
    HostArena arena(program.arena_bytes);
    SelfWorld world;
    const auto communication = MakeNcclCommunication(world, program.mesh, ChannelsOf(program), true);
    std::vector<CommInstruction> instructions = Resolve(program, last, arena);
    const size_t count = instructions.size();
    ASSERT_GT(count, 0u);
    const auto prepared = communication->Prepare(program, last, std::move(instructions));
    for (int step = 0; step < 2; ++step)
      for (size_t k = 0; k < count; ++k) communication->Issue(*prepared, k, nullptr);
    communication->CheckErrors();
    communication->Abort();
  }
}

TEST(NcclCall, SaysWhatFailedAndWhatToLookAt) {
  EXPECT_THAT([] { cuda::FailNccl("file.cpp", 3, "ncclSend(x)", ncclRemoteError); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("file.cpp:3: ncclSend(x) failed"), HasSubstr("NCCL_DEBUG=WARN"))));
}

INSTANTIATE_TEST_SUITE_P(Native, Alone, ::testing::Values("0", "1"));

}  // namespace
}  // namespace espalier
