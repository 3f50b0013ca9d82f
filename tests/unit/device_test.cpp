// What run.device and run.transport come to, from what the ranks found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/run/choose_device.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr;

/// A rank of `host` that sees so many GPUs.
GpusOfRank Rank(const std::string& host, int node_rank, int gpus) {
  GpusOfRank rank{host, node_rank, {}, gpus == 0 ? "cuda: there is no GPU" : ""};
  for (int i = 0; i < gpus; ++i) rank.gpus.push_back({i, "a GPU", "0000:0" + std::to_string(i + 1) + ":00.0", 1000});
  return rank;
}

std::string Outcome(const std::string& device, const std::string& transport, const std::vector<GpusOfRank>& ranks) {
  try {
    const DeviceChoice choice = Choose(device, transport, ranks);
    return choice.device + " " + choice.transport;
  } catch (const UserError& error) {
    return std::to_string(static_cast<int>(error.status())) + ": " + error.what();
  }
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

TEST(Device, RanksShareGpusOverMpiAlone) {
  const std::vector<GpusOfRank> shared = {Rank("a", 0, 2), Rank("a", 1, 2), Rank("a", 2, 2)};
  EXPECT_EQ(Outcome("auto", "auto", shared), "cpu mpi");
  EXPECT_EQ(Outcome("auto", "mpi", shared), "cpu mpi");
  EXPECT_EQ(Outcome("cuda", "auto", shared), "cuda mpi");
  EXPECT_EQ(Outcome("cuda", "mpi", shared), "cuda mpi");
  for (const char* device : {"auto", "cuda"})
    EXPECT_THAT(Outcome(device, "nccl", shared), HasSubstr("2: run.transport: ranks 0 and 2 would share 0000:01:00.0 (a GPU) on a: nccl needs a GPU for every rank"));
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

}  // namespace
}  // namespace espalier
