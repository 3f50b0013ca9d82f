// The executor on streams over the emulation: one rank of many, which sends its messages to itself. Values mean nothing
// then, but they are the same in every order that waits allow. Planted: programs without one of their waits.
#include "executor/cuda/stream_executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "executor/cuda/arenas.hpp"
#include "test_decks.hpp"

namespace espalier::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void SetSwitch(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
void SetStreams(const std::string& value) { SetSwitch("ESPALIER_EMULATED_STREAMS", value); }

/// Numbers as in training.
std::vector<std::byte> SmallNumbers(const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(Volume(tensor.shape) * SizeOf(tensor.dtype)));
  for (int64_t i = 0; i < Volume(tensor.shape); ++i) {
    const float x = static_cast<float>(i * 7919 % 1009 + 1) * 2e-5f;
    if (tensor.dtype == Dtype::kF32) reinterpret_cast<float*>(bytes.data())[i] = x;
    if (tensor.dtype == Dtype::kBf16) reinterpret_cast<Bf16*>(bytes.data())[i] = ToBf16(x);
    if (tensor.dtype == Dtype::kI32) reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(i * 31 % 24);
  }
  return bytes;
}

class Rank {
 public:
  Rank(Program program, const Coordinate& coordinate)
      : program_(std::move(program)),
        arena_(program_.arena_bytes, streams_.Compute()),
        communication_(MakeNcclCommunication(world_, program_.mesh, ChannelsOf(program_), {.alone = true})),
        executor_(program_, coordinate, arena_, streams_, communication_.get(), [](const std::string&) {}) {
    for (const ValueKind kind : {ValueKind::kState, ValueKind::kCache})
      for (const NamedTensor& kept : executor_.All(kind)) {
        const std::vector<std::byte> numbers = SmallNumbers(kept.tensor);
        std::memcpy(kept.tensor.data, numbers.data(), numbers.size());
      }
  }

  void Step() {
    for (const NamedTensor& input : executor_.All(ValueKind::kInput)) {
      const std::vector<std::byte> numbers = SmallNumbers(input.tensor);
      executor_.SetInput(input.name, input.microbatch, numbers.data(), std::ssize(numbers));
    }
    executor_.RunStep();
  }

  /// All that is kept after two steps: one that is issued, and one that is replayed.
  std::string Train() {
    for (int i = 0; i < 2; ++i) Step();
    std::string bytes;
    for (const ValueKind kind : {ValueKind::kState, ValueKind::kCache, ValueKind::kAccumulator})
      for (const NamedTensor& kept : executor_.All(kind))
        bytes.append(kept.tensor.As<char>(),
                     static_cast<size_t>(Volume(kept.tensor.shape) * SizeOf(kept.tensor.dtype)));
    return bytes;
  }

 private:
  Program program_;
  Streams streams_;
  DeviceArena arena_;
  SelfWorld world_;
  std::unique_ptr<StreamCommunication> communication_;
  StreamExecutor executor_;
};

struct Compiled {
  explicit Compiled(std::vector<std::string> deck, int ranks)
      : compilation(Compile(Gpu(std::move(deck)), ranks, Purpose::kTrain)) {}
  static Deck Gpu(std::vector<std::string> deck) {
    deck.insert(deck.end(), {"run.device=cuda", "batch.global=4", "model.dim=16", "model.ffn_dim=24"});
    return SmallDeck(deck);
  }
  Coordinate Place() const { return compilation.mesh.CoordinateOf(0); }
  Program Of() const { return MakeProgram(compilation, Place()); }
  std::string Train(Program program) const { return Rank(std::move(program), Place()).Train(); }

  Compilation compilation;
};

class StreamOrders : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("ESPALIER_EMULATED_STREAMS");
    unsetenv("ESPALIER_EMULATED_NCCL_ERROR");
  }
};

TEST_F(StreamOrders, DoNotChangeABit) {
  for (const auto& [ranks, deck] : std::vector<std::pair<int, std::vector<std::string>>>{
           {4, {"model.layers=2", "parallel.pp=2", "parallel.tp=2"}},
           {4, {"model.layers=1", "parallel.cp=2", "parallel.dp_shard=2", "parallel.context=ring"}},
           {2,
            {"model.layers=1", "parallel.dp_shard=2", "experts.count=4", "experts.per_token=2", "experts.ffn_dim=24",
             "parallel.ep=2"}}}) {
    SCOPED_TRACE(::testing::PrintToString(deck));
    const Compiled compiled(deck, ranks);
    SetStreams("");
    const std::string wanted = compiled.Train(compiled.Of());
    for (int seed = 0; seed < 3; ++seed) {
      SetStreams("not-ready:2,random:" + std::to_string(seed));
      EXPECT_EQ(compiled.Train(compiled.Of()) == wanted, true) << "seed " << seed;
    }
  }
}

/// Kernels that wait for messages, and messages that wait for kernels.
std::vector<size_t> Waiting(const Program& program) {
  std::vector<size_t> waiting;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (!program.instructions[i].waits.empty()) waiting.push_back(i);
  return waiting;
}

TEST_F(StreamOrders, FindAWaitThatIsLeftOut) {
  constexpr int kPlanted = 10, kSeeds = 5;
  const Compiled compiled({"model.layers=1", "parallel.tp=2", "parallel.dp_shard=2"}, 4);
  const Program whole = compiled.Of();
  const std::vector<size_t> waiting = Waiting(whole);
  const std::string wanted = compiled.Train(whole);
  int found = 0, found_in_order = 0;
  for (int bug = 0; bug < kPlanted; ++bug) {
    Program program = whole;
    std::vector<Instruction> list(whole.instructions.begin(), whole.instructions.end());
    list[waiting[waiting.size() * static_cast<size_t>(bug) / kPlanted]].waits = {};
    program.instructions = Instructions(list);
    SetStreams("");
    found_in_order += compiled.Train(program) != wanted;
    bool seen = false;
    for (int seed = 0; seed < kSeeds && !seen; ++seed) {
      SetStreams("random:" + std::to_string(seed));
      seen = compiled.Train(program) != wanted;
    }
    found += seen;
  }
  std::printf("%d of %d planted bugs found\n", found, kPlanted);
  EXPECT_EQ(found_in_order, 0) << "work that runs when it is issued hides them";
  EXPECT_GT(found, 0);
}

TEST_F(StreamOrders, AnErrorOfNcclEndsAStepThatIsReplayed) {
  const Compiled compiled({"model.layers=1", "parallel.tp=2"}, 2);
  Rank rank(compiled.Of(), compiled.Place());
  rank.Step();
  rank.Step();  // from now on as a graph
  SetSwitch("ESPALIER_EMULATED_NCCL_ERROR", "0:1");
  EXPECT_THAT([&] { rank.Step(); }, ThrowsMessage<InvariantError>(HasSubstr("an operation under way failed")));
}

}  // namespace
}  // namespace espalier::cuda
