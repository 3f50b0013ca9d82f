// The choice of run.device and run.transport, from the ranks' findings.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/comm/memory_demand.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/error.hpp"
#include "test_decks.hpp"
#include "train/reporting/peak.hpp"
#include "train/startup/fit.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr;

/// A rank of `host` that sees `gpus` GPUs.
GpusOfRank Rank(const std::string& host, int node_rank, int gpus) {
  GpusOfRank rank{host, node_rank, {}, gpus == 0 ? "cuda: there is no GPU" : ""};
  for (int i = 0; i < gpus; ++i)
    rank.gpus.push_back({i, "a GPU", "0000:0" + std::to_string(i + 1) + ":00.0", 1000, 90});
  return rank;
}

std::string Outcome(const std::string& device, const std::string& transport, const std::vector<GpusOfRank>& ranks) {
  try {
    const DeviceChoice choice =
        Choose(ParseChoice<RunDevice>(device).value(), ParseChoice<Transport>(transport).value(), ranks);
    return fmt::format("{} {}", DeckName(choice.device), DeckName(choice.transport));
  } catch (const UserError& error) {
    return std::to_string(static_cast<int>(error.status())) + ": " + error.what();
  }
}

TEST(Devices, MatmulsInFp8NeedAGpuThatHasThem) {
  const auto refusal = [](Fp8Scaling scaling, int capability) -> std::string {
    try {
      CheckPrecision({Dtype::kBf16, Dtype::kF32, MatmulPrecision::kFp8, scaling, {}},
                     {0, "a GPU", "0000:01:00.0", 1000, capability});
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kDeck);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(Fp8Scaling::kTensor, 80),
              HasSubstr("compute capability 8.0; fp8 needs 8.9 or later (allowed here: \"compute\")"));
  EXPECT_EQ(refusal(Fp8Scaling::kTensor, 89), "");
  EXPECT_EQ(refusal(Fp8Scaling::kTensor, 120), "");
  EXPECT_EQ(refusal(Fp8Scaling::kRow, 90), "");
  EXPECT_THAT(refusal(Fp8Scaling::kRow, 89), HasSubstr("9.0 only (allowed here: \"tensor\")"));
  EXPECT_THAT(refusal(Fp8Scaling::kRow, 100), HasSubstr("9.0 only (allowed here: \"tensor\" and \"mx\")"));
  EXPECT_THAT(refusal(Fp8Scaling::kMx, 89), HasSubstr("needs 10.0 or later (allowed here: \"tensor\")"));
  EXPECT_THAT(refusal(Fp8Scaling::kMx, 90), HasSubstr("needs 10.0 or later (allowed here: \"tensor\" and \"row\")"));
  for (int capability : {100, 120}) EXPECT_EQ(refusal(Fp8Scaling::kMx, capability), "");
  CheckPrecision({Dtype::kBf16, Dtype::kF32, MatmulPrecision::kCompute, Fp8Scaling::kRow, {}},
                 {0, "a GPU", "0000:01:00.0", 1000, 80});
}

TEST(Devices, CoresOfAnotherSocketAreNamed) {
  const Gpu gpu{0, "a GPU", "0000:81:00.0", 1000, 90};
  for (const char* near : {"", "0-3,16", "5", "7-9"}) EXPECT_EQ(FarCores(gpu, near, {3, 5, 9}), "") << near;
  for (const char* near : {"0-2,6-8", "10", "4"})
    EXPECT_THAT(FarCores(gpu, near, {3, 5, 9}),
                testing::AllOf(HasSubstr("may use cores 3,5,9 of"),
                               HasSubstr(fmt::format("cores {} are near its GPU 0000:81:00.0", near))));
}

TEST(Device, AutoIsCudaWhereEveryRankHasAGpu) {
  const std::vector<GpusOfRank> own = {Rank("a", 0, 2), Rank("a", 1, 2), Rank("b", 0, 1)};
  EXPECT_EQ(Outcome("auto", "auto", own), "cuda nccl");
  EXPECT_EQ(Outcome("auto", "mpi", own), "cuda mpi");
  EXPECT_EQ(Outcome("cpu", "auto", own), "cpu mpi");
  const std::vector<GpusOfRank> one_without = {Rank("a", 0, 1), Rank("b", 0, 0)};
  EXPECT_EQ(Outcome("auto", "auto", one_without), "cpu mpi");
  EXPECT_THAT(Outcome("cuda", "auto", one_without), HasSubstr("1: rank 1 on b: cuda: there is no GPU"));
}

TEST(Peak, MissionCGpusAreKnownByTheirName) {
  const auto tera = [](const char* name, Dtype compute) { return GpuPeak(name, compute).flops / 1e12; };
  EXPECT_DOUBLE_EQ(tera("NVIDIA H200", Dtype::kBf16), 989.4);
  EXPECT_DOUBLE_EQ(tera("NVIDIA H200 NVL", Dtype::kBf16), 835.5);
  EXPECT_DOUBLE_EQ(tera("NVIDIA H100 80GB HBM3", Dtype::kF32), 67);
  EXPECT_DOUBLE_EQ(tera("NVIDIA H100 PCIe", Dtype::kBf16), 756);
  EXPECT_DOUBLE_EQ(tera("NVIDIA GH200 480GB", Dtype::kBf16), 989.4);
  EXPECT_DOUBLE_EQ(tera("NVIDIA A100-SXM4-40GB", Dtype::kBf16), 312);
  EXPECT_DOUBLE_EQ(tera("NVIDIA A10", Dtype::kF32), 31.2);
  for (const char* other : {"NVIDIA A10G", "NVIDIA RTX A4000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""})
    EXPECT_EQ(tera(other, Dtype::kBf16), 0) << other;
  EXPECT_EQ(GpuPeak("NVIDIA A10G", Dtype::kBf16).source, "no peak is known of \"NVIDIA A10G\"");
}

TEST(Peak, MissionCAProcessorIsMeasured) {
  SetCpuThreads(1);
  for (const Dtype compute : {Dtype::kF32, Dtype::kBf16}) {
    const PeakRate peak = MeasureCpuPeak(compute, 1);
    EXPECT_GT(peak.flops, 0);
    EXPECT_THAT(peak.source,
                HasSubstr(std::string("512 x 512 GEMMs in ") + std::string(Name(compute)) + " by 1 thread reach "));
  }
}

TEST(Peak, MissionCASharedGpuCountsOnce) {
  const PeakRate one{2e12, "one"}, other{3e12, "other"};
  const PeakRate sum = SumOfPeaks({{"a 1", one}, {"a 1", one}, {"b 1", other}});
  EXPECT_DOUBLE_EQ(sum.flops, 5e12);
  EXPECT_EQ(sum.source, "one; of the first of 2 devices");
  EXPECT_EQ(SumOfPeaks({{"a", one}, {"a", one}}).source, "one");
  EXPECT_EQ(SumOfPeaks({{"a", one}, {"b", {0, "not known"}}}).flops, 0);
  EXPECT_EQ(SumOfPeaks({{"a", one}, {"b", {0, "not known"}}}).source, "not known");
}

TEST(Device, RanksShareGpusOverMpiAlone) {
  const std::vector<GpusOfRank> shared = {Rank("a", 0, 2), Rank("a", 1, 2), Rank("a", 2, 2)};
  EXPECT_EQ(Outcome("auto", "auto", shared), "cpu mpi");
  EXPECT_EQ(Outcome("auto", "mpi", shared), "cpu mpi");
  EXPECT_EQ(Outcome("cuda", "auto", shared), "cuda mpi");
  EXPECT_EQ(Outcome("cuda", "mpi", shared), "cuda mpi");
  for (const char* device : {"auto", "cuda"})
    EXPECT_THAT(
        Outcome(device, "nccl", shared),
        HasSubstr(
            "2: run.transport: ranks 0 and 2 would share 0000:01:00.0 (a GPU) on a: nccl needs a GPU for every rank"));
}

TEST(Device, ALauncherThatShowsEveryRankItsOwnGpuIsFollowed) {
  GpusOfRank first = Rank("a", 0, 1), second = Rank("a", 1, 1);
  second.gpus[0].bus_id = "0000:02:00.0";
  EXPECT_EQ(GpuOf(second).index, 0);
  EXPECT_EQ(Outcome("cuda", "auto", {first, second}), "cuda nccl");
}

TEST(Device, NcclIsForGpus) {
  EXPECT_THAT(Outcome("cpu", "nccl", {Rank("a", 0, 1)}), HasSubstr("2: run.transport = \"nccl\" is for GPUs"));
  EXPECT_THAT(Outcome("auto", "nccl", {Rank("a", 0, 0)}), HasSubstr("cuda: there is no GPU"));
}

/// Cores first to last of a node with 16.
CoresOfRank Cores(const std::string& node, int first, int last, int asked = 0) {
  CoresOfRank rank{node, {}, 16, asked};
  for (int core = first; core <= last; ++core) rank.cores.push_back(core);
  return rank;
}

int ThreadsOf(int64_t run_threads, const std::vector<CoresOfRank>& ranks) {
  return ChooseThreads(run_threads, ranks).count;
}

TEST(Threads, HOwnCoresAreNotDividedAgain) {
  EXPECT_EQ(ThreadsOf(0, {Cores("a", 0, 7), Cores("a", 8, 15)}), 8) << "srun --cpus-per-task=8";
  EXPECT_EQ(ThreadsOf(0, {Cores("a", 0, 15), Cores("a", 0, 15), Cores("a", 0, 15)}), 5) << "mpirun --bind-to none";
  EXPECT_EQ(ThreadsOf(0, {Cores("a", 0, 15), Cores("b", 0, 15)}), 16) << "two nodes";
  EXPECT_EQ(ThreadsOf(0, {Cores("a", 0, 7), Cores("a", 4, 15)}), 6) << "4 + 4/2 and 8 + 4/2: the least";
  EXPECT_EQ(ThreadsOf(0, std::vector<CoresOfRank>(40, Cores("a", 0, 15))), 1);
}

TEST(Threads, C12TheEnvironmentIsRespectedAndSaid) {
  EXPECT_EQ(ThreadsOf(0, {Cores("a", 0, 15, 3)}), 3);
  EXPECT_EQ(ThreadsOf(5, {Cores("a", 0, 15, 3)}), 5);
  EXPECT_THAT(ChooseThreads(0, std::vector{Cores("a", 0, 15, 3)}).notice, HasSubstr("OMP_NUM_THREADS"));
  EXPECT_THAT(ChooseThreads(0, std::vector{Cores("a", 3, 3), Cores("a", 4, 4)}).notice,
              HasSubstr("1 of the node's 16 cores"));
  EXPECT_THAT(ChooseThreads(9, std::vector{Cores("a", 0, 15), Cores("a", 0, 15)}).notice,
              HasSubstr("2 ranks of a node with 9 threads each share 16"));
  EXPECT_EQ(ChooseThreads(8, std::vector{Cores("a", 0, 15), Cores("a", 0, 15)}).notice, "");
}

MemoryDemand Demand(const std::string& host, int64_t bytes, const std::vector<MemoryLimit>& limits) {
  return {host, bytes, limits};
}

TEST(Memory, A4RanksThatShareALimitAreAddedUp) {
  const MemoryLimit node{"node a", "free memory", 1000}, group{"group 7", "control group /job", 700},
      own{"", "ulimit -v", 450};
  EXPECT_EQ(FindShortage(std::vector{Demand("a", 300, {node, group}), Demand("a", 400, {node, group})}).ranks, 0);
  const MemoryShortage shared =
      FindShortage(std::vector{Demand("a", 300, {node, group}), Demand("a", 401, {node, group})});
  EXPECT_EQ(std::tuple(shared.rank, shared.bytes, shared.ranks, shared.together, shared.available, shared.limit),
            std::tuple(1, 401, 2, 701, 700, "control group /job"));
  const MemoryShortage alone = FindShortage(
      std::vector{Demand("a", 440, {node, own}), Demand("b", 460, {{"node b", "free memory", 9000}, own})});
  EXPECT_EQ(std::tuple(alone.rank, alone.ranks, alone.host, alone.limit), std::tuple(1, 1, "b", "ulimit -v"));
  EXPECT_THAT(
      shared.Text("its arena"),
      HasSubstr("rank 1 on a needs 0.000401 MB for its arena; 2 ranks together need 0.000701 MB, and 0.0007 MB"));
}

TEST(Memory, A4TheNearestSettingsThatFit) {
  const Deck deck = SmallDeck({"batch.global=16", "batch.micro=8", "parallel.dp_shard=1"});
  const int64_t bytes = ArenaBytes(deck, 1, 0)[Space::kDevice];
  EXPECT_TRUE(SettingsThatFit(deck, 1, 0, 1000).empty());
  const std::vector<std::string> settings = SettingsThatFit(deck, 1, 0, bytes - 1);
  ASSERT_FALSE(settings.empty());
  EXPECT_THAT(settings[0], HasSubstr("batch.micro = 4 ("));
}

}  // namespace
}  // namespace espalier
