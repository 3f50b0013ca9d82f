// Adapters near GPUs, found in a made-up /sys.
#include "train/startup/adapters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two sockets. On the first a GPU and mlx5_0 behind one switch, and storage0 at a port of its own; on the second a
/// GPU alone at a port, and two adapters behind a switch. One adapter is virtual.
class Adapters : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "adapters_test_sys";
    fs::remove_all(root_);
    Device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0", "0", "bus/pci/devices/0000:1b:00.0");
    Device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1c:00.0", "0", "class/infiniband/mlx5_0/device");
    Device("pci0000:15/0000:15:02.0/0000:1d:00.0", "0", "class/infiniband/storage0/device");
    Device("pci0000:80/0000:80:01.0/0000:81:00.0", "1", "bus/pci/devices/0000:81:00.0");
    Device("pci0000:90/0000:90:01.0/0000:91:00.0/0000:92:00.0", "1", "class/infiniband/mlx5_1/device");
    Device("pci0000:90/0000:90:01.0/0000:91:00.0/0000:93:00.0", "1", "class/infiniband/mlx5_2/device");
    fs::create_directories(root_ / "class/infiniband/rxe0");
  }
  void TearDown() override { fs::remove_all(root_); }

  RankOnNetwork Find(const std::string& gpu, const char* list = nullptr, const char* variable = "NCCL_IB_HCA") {
    RankOnNetwork rank = FindAdapters(gpu, variable, list, root_.string());
    rank.host = "a";
    return rank;
  }

 private:
  void Device(const std::string& folder, const std::string& numa_node, const std::string& link) {
    const fs::path device = root_ / "devices" / folder, from = root_ / link;
    fs::create_directories(device);
    std::ofstream(device / "numa_node") << numa_node << "\n";
    fs::create_directories(from.parent_path());
    fs::create_directory_symlink(device, from);
  }

  fs::path root_;
};

TEST_F(Adapters, AreNearBehindASwitchThenOnTheNodeOfTheGpu) {
  const RankOnNetwork first = Find("0000:1B:00.0"), second = Find("0000:81:00.0");
  EXPECT_THAT(first.nearest.names, ElementsAre("mlx5_0"));
  EXPECT_EQ(first.nearest.way, PciWay::kSwitch);
  EXPECT_THAT(second.nearest.names, ElementsAre("mlx5_1", "mlx5_2"));
  EXPECT_EQ(second.nearest.way, PciWay::kNode);
  EXPECT_THAT(Find("0000:aa:00.0").nearest.names, IsEmpty());
  EXPECT_THAT(DescribeAdapters({first, second}),
              ElementsAre("a: 0000:1B:00.0 near mlx5_0 (PCIe switch), 0000:81:00.0 near mlx5_1, mlx5_2 (same NUMA "
                          "node)"));
  EXPECT_THAT(WrongAdapters({first, second}), IsEmpty());
}

TEST_F(Adapters, HostsThatAreAlikeHaveOneLine) {
  RankOnNetwork here = Find("0000:1b:00.0"), there = here, other = Find("0000:81:00.0");
  there.host = "b";
  other.host = "c";
  EXPECT_THAT(DescribeAdapters({here, there, other}),
              ElementsAre("a and 1 more: 0000:1b:00.0 near mlx5_0 (PCIe switch)",
                          "c: 0000:81:00.0 near mlx5_1, mlx5_2 (same NUMA node)"));
}

TEST_F(Adapters, ListsHaveTheSyntaxOfTheirLibrary) {
  for (const char* list : {"mlx5", "mlx5_1", "=mlx5_1", "mlx5_0,mlx5_1:1", "^mlx5_0", "^=mlx5_10", "^storage0,mlx5_2"})
    EXPECT_TRUE(AllowsAdapter(list, "mlx5_1", false)) << list;
  for (const char* list : {"mlx5_0", "=mlx5", "^mlx5", "^=mlx5_1:1", "mlx5_10", "=all"})
    EXPECT_FALSE(AllowsAdapter(list, "mlx5_1", false)) << list;
  for (const char* list : {"all", "mlx5_1:1", "mlx5_0:1,mlx5_1:1", "^mlx5_0:1"})
    EXPECT_TRUE(AllowsAdapter(list, "mlx5_1", true)) << list;
  for (const char* list : {"mlx5", "mlx5_0:1", "^mlx5_1:1"}) EXPECT_FALSE(AllowsAdapter(list, "mlx5_1", true)) << list;
}

TEST_F(Adapters, AListThatLeavesOutTheNearestOneIsReported) {
  const RankOnNetwork first = Find("0000:1b:00.0", "mlx5_2,storage0"), second = Find("0000:81:00.0", "mlx5_2,storage0");
  EXPECT_THAT(first.used.names, ElementsAre("storage0"));
  EXPECT_THAT(
      WrongAdapters({second, first}),
      ElementsAre("1 of 2 ranks: rank 1 on a: NCCL_IB_HCA=mlx5_2,storage0 leaves GPU 0000:1b:00.0 with storage0 "
                  "(same NUMA node); the nearest is mlx5_0 (PCIe switch)"));
}

TEST_F(Adapters, AListThatAllowsNoneIsReported) {
  EXPECT_THAT(WrongAdapters({Find("0000:1b:00.0", "mlx5", "UCX_NET_DEVICES")}),
              ElementsAre("1 of 1 ranks: rank 0 on a: UCX_NET_DEVICES=mlx5 allows no adapter of this node; the nearest "
                          "to GPU 0000:1b:00.0 is mlx5_0 (PCIe switch)"));
}

TEST_F(Adapters, AListThatMakesRanksShareIsReported) {
  EXPECT_THAT(WrongAdapters({Find("0000:81:00.0", "=mlx5_1"), Find("0000:1b:00.0", "=mlx5_1")}),
              ElementsAre("1 of 2 ranks: rank 1 on a: NCCL_IB_HCA==mlx5_1 leaves GPU 0000:1b:00.0 with mlx5_1 (another "
                          "NUMA node); the nearest is mlx5_0 (PCIe switch)",
                          "NCCL_IB_HCA==mlx5_1 on a: 2 ranks share mlx5_1; without it at most 1 share one"));
}

}  // namespace
}  // namespace espalier
