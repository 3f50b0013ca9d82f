// Whole training steps, compiled for GPUs, over emulated NCCL and over MPI: the same bits. Over NCCL one thread issues
// all communication in program order, and each call waits for its peers, so an order that could deadlock does so here.
#include <algorithm>
#include <cmath>

#include "espalier/executor/cpu_executor.hpp"
#include "harness.hpp"
#include "test_decks.hpp"

namespace espalier::test {
namespace {

/// Fills values with numbers as in training.
void FillSmall(const NamedTensor& named) {
  Fill(named.tensor, *named.type, static_cast<int>(named.name.size()), 0, 0);
  const int64_t count = Volume(named.tensor.shape);
  for (int64_t i = 0; i < count; ++i) {
    if (named.tensor.dtype == Dtype::kF32)
      named.tensor.As<float>()[i] = std::abs(named.tensor.As<float>()[i]) * 1e-6f + 1e-3f;
    if (named.tensor.dtype == Dtype::kBf16)
      named.tensor.As<Bf16>()[i] = ToBf16(ToFloat(named.tensor.As<Bf16>()[i]) * 1e-6f);
    if (named.tensor.dtype == Dtype::kI32) named.tensor.As<int32_t>()[i] = static_cast<int32_t>(i % 24);
  }
}

int64_t CountNotFinite(const Tensor& tensor) {
  if (tensor.dtype != Dtype::kF32) return 0;
  return std::count_if(tensor.As<float>(), tensor.As<float>() + Volume(tensor.shape),
                       [](float x) { return !std::isfinite(x); });
}

/// All persistent values of this rank after two steps.
std::string Train(const Program& program, Communication& communication) {
  HostArena arena(program.arena_bytes);
  CpuExecutor executor(program, program.mesh.CoordinateOf(TheWorld().Rank()), arena, &communication, FindCpuKernel);
  for (ValueKind kind : {ValueKind::kState, ValueKind::kCache})
    for (const NamedTensor& kept : executor.All(kind)) FillSmall(kept);
  for (int step = 0; step < 2; ++step) {
    for (const NamedTensor& input : executor.All(ValueKind::kInput)) FillSmall(input);
    executor.RunStep();
  }
  std::string bytes;
  for (ValueKind kind : {ValueKind::kState, ValueKind::kCache, ValueKind::kAccumulator})
    for (const NamedTensor& named : executor.All(kind)) {
      EXPECT_EQ(CountNotFinite(named.tensor), 0) << named.name;
      bytes.append(named.tensor.As<char>(),
                   static_cast<size_t>(Volume(named.tensor.shape) * SizeOf(named.tensor.dtype)));
    }
  return bytes;
}

void Check(std::vector<std::string> deck) {
  deck.push_back("run.device=cuda");
  SCOPED_TRACE(testing::PrintToString(deck));
  const Compilation c = Compile(SmallDeck(deck), TheWorld().Size(), Purpose::kTrain);
  const Program program = MakeProgram(c, c.mesh.CoordinateOf(TheWorld().Rank()));
  const std::vector<Channel> channels = AgreeOnChannels(TheWorld(), ChannelsOf(program));
  MpiCommunication mpi(TheWorld(), program.mesh, channels);
  const auto nccl = MakeCommunication(program.mesh, channels, {});
  EXPECT_EQ(Train(program, mpi), Train(program, *nccl)) << "on rank " << TheWorld().Rank();
}

struct Pipeline {
  const char* schedule;
  int chunks;
};
constexpr Pipeline kPipelines[] = {{"1f1b", 1},  {"gpipe", 1}, {"interleaved", 2},
                                   {"zb-h1", 1}, {"zbv", 2},   {"dualpipev", 2}};

std::vector<std::string> PipelineDeck(const Pipeline& pipeline, int stages) {
  return {fmt::format("parallel.pp={}", stages), std::string("pipeline.schedule=") + pipeline.schedule,
          fmt::format("pipeline.chunks={}", pipeline.chunks), fmt::format("model.layers={}", stages * pipeline.chunks),
          fmt::format("batch.global={}", 4 * stages)};
}

TEST(Steps, EverySchedule) {
  for (const Pipeline& pipeline : kPipelines) {
    std::vector<std::string> deck = PipelineDeck(pipeline, TheWorld().Size());
    deck.push_back("model.tie_embeddings=true");
    Check(std::move(deck));
  }
}

TEST(Steps, EveryScheduleWithOtherAxes) {
  if (TheWorld().Size() % 2 != 0 || TheWorld().Size() < 4) GTEST_SKIP() << "takes an even number of ranks from 4";
  for (const Pipeline& pipeline : kPipelines)
    for (const char* axis : {"tp", "dp_shard", "dp_replicate", "cp"}) {
      std::vector<std::string> deck = PipelineDeck(pipeline, 2);
      deck.push_back(fmt::format("parallel.{}={}", axis, TheWorld().Size() / 2));
      deck.push_back("precision.compute=bf16");
      Check(std::move(deck));
    }
}

TEST(Steps, EveryWayOfContextAndReduction) {
  const int n = TheWorld().Size();
  if (n == 3) GTEST_SKIP() << "takes 2 or 4 ranks";
  for (const char* way : {"ring", "all_gather", "all_to_all"})
    Check({fmt::format("parallel.cp={}", n), std::string("parallel.context=") + way, "model.heads=8",
           "model.kv_heads=8"});
  for (const char* zero : {"1", "2", "3"})
    Check({fmt::format("parallel.dp_shard={}", n), std::string("parallel.zero=") + zero, "parallel.reduce=microbatch",
           "recompute.mode=full"});
}

}  // namespace
}  // namespace espalier::test
