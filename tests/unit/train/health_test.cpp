// The health of nodes: rounds of pairs, what the figures of a job make an outlier, and clocks under load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "train/health/clocks.hpp"
#include "train/health/judge.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RoundsOfPairs, BringEachTogetherWithEachOnce) {
  for (const int count : {1, 2, 3, 4, 7, 8, 33}) {
    std::set<std::pair<int, int>> met;
    for (const auto& pairs : Rounds(count, count)) {
      std::set<int> in_round;
      for (const auto& [a, b] : pairs) {
        EXPECT_TRUE(0 <= a && a < b && b < count);
        EXPECT_TRUE(in_round.insert(a).second && in_round.insert(b).second) << "nobody is in two pairs of a round";
        EXPECT_TRUE(met.insert({a, b}).second) << "nobody meets another one twice";
      }
    }
    EXPECT_EQ(std::ssize(met), count * (count - 1) / 2);
  }
  EXPECT_EQ(Rounds(1000, 16).size(), 16U);
}

/// Four nodes with two ranks each; all are alike.
class JobOfFourNodes : public testing::Test {
 protected:
  JobOfFourNodes() {
    for (int rank = 0; rank < 8; ++rank) {
      RankFacts& facts = health_.ranks.emplace_back();
      facts.host = "host" + std::to_string(rank / 2 + 1);
      facts.node = rank / 2 * 2;
      facts.cores = {rank % 2 * 2, rank % 2 * 2 + 1};
      facts.numa_nodes = 1;
      facts.free_bytes = 64'000'000'000;
      facts.clock_mhz = 2400;
      facts.gflops = 80;
      facts.memory_rate = 12'000;
    }
    for (int a = 0; a < 8; ++a)
      for (int b = 0; b < 8; ++b)
        if (a != b && a % 2 == b % 2) health_.between.push_back({a, b, 1000, 20});
    for (int a = 0; a < 8; ++a) health_.within.push_back({a, a ^ 1, 5000, 1});
  }
  GpuFacts& AddGpus() {
    for (int rank = 0; rank < 8; rank += 2)
      health_.ranks[static_cast<size_t>(rank)].gpus = {{.name = "H100",
                                                        .bus_id = "0000:01:00.0",
                                                        .free_bytes = 80'000'000'000,
                                                        .total_bytes = 81'000'000'000,
                                                        .clock_mhz = 1980,
                                                        .most_clock_mhz = 1980}};
    return health_.ranks[4].gpus[0];
  }
  std::vector<std::string> Found(const Cluster* cluster = nullptr) const { return Outliers(health_, cluster, 0.7); }

  Health health_;
};

TEST_F(JobOfFourNodes, HasNoOutliersIfAllAreAlike) {
  AddGpus();
  EXPECT_THAT(Found(), IsEmpty());
  EXPECT_THAT(HealthTable(health_, nullptr), HasSubstr("host4                2     4    1      64 GB"));
}

TEST_F(JobOfFourNodes, NamesTheNodeOfASlowRank) {
  health_.ranks[5].gflops = 20;
  EXPECT_THAT(Found(), ElementsAre("host3: fp32 matmuls on one core reach 20 GFLOP/s, the median is 80"));
  health_.ranks[5].gflops = 80;
  health_.ranks[0].memory_rate = 6000;
  EXPECT_THAT(Found(), ElementsAre("host1: the memory of one core moves 6000 MB/s, the median is 1.2e+04"));
  health_.ranks[0].memory_rate = 12'000;
  health_.ranks[7].clock_mhz = 800;
  EXPECT_THAT(Found(), ElementsAre("host4: the clock of its cores is 800 MHz, the median is 2400"));
  health_.ranks[7].clock_mhz = 2400;
  health_.ranks[3].free_bytes = 1'000'000'000;
  EXPECT_THAT(Found(), ElementsAre("host2: the free memory is 1 GB, the median is 64"));
}

TEST_F(JobOfFourNodes, NamesANodeWithFewerParts) {
  health_.ranks[2].cores = health_.ranks[3].cores = {0};
  EXPECT_THAT(Found(), ElementsAre("host2: cores for its ranks: 1, the median is 4"));
  health_.ranks[2].cores = {0, 1, 2, 3};
  AddGpus();
  health_.ranks[6].gpus.clear();
  EXPECT_THAT(Found(), ElementsAre("host4: GPUs: 0, the median is 1"));
}

TEST_F(JobOfFourNodes, NamesANodeThatSendsSlowlyOnce) {
  for (LinkRate& link : health_.between)
    if (link.from / 2 == 3) link.bytes_per_us = 10;
  EXPECT_THAT(Found(), ElementsAre("host4 sends 10 MB/s on the links of other nodes, the median is 1000 MB/s"));
  for (LinkRate& link : health_.between) std::swap(link.from, link.to);
  EXPECT_THAT(Found(), ElementsAre("host4 receives 10 MB/s on the links of other nodes, the median is 1000 MB/s"));
}

TEST_F(JobOfFourNodes, NamesOneSlowLink) {
  health_.between[0].bytes_per_us = 10;
  EXPECT_THAT(Found(), ElementsAre("rank 0 on host1 sends 10 MB/s to rank 2 on host2, the median is 1000 MB/s"));
  health_.between[0].bytes_per_us = 1000;
  health_.within[3].bytes_per_us = 100;
  EXPECT_THAT(Found(), ElementsAre("rank 3 on host2 sends 100 MB/s to rank 2 on host2, the median is 5000 MB/s"));
}

TEST_F(JobOfFourNodes, IsComparedWithAClusterFile) {
  Cluster cluster;
  cluster.node.pair_bytes_per_us = 6000;
  cluster.network.bytes_per_us = 1200;
  EXPECT_THAT(Found(&cluster), IsEmpty());
  cluster.network.bytes_per_us = 2000;
  const std::vector<std::string> found = Found(&cluster);
  ASSERT_EQ(found.size(), 8U) << "all nodes, sending and receiving";
  EXPECT_EQ(found[0], "host1 sends 1000 MB/s on the links of other nodes, the cluster file says 2000 MB/s");
}

TEST_F(JobOfFourNodes, NamesWhatAGpuReports) {
  GpuFacts& gpu = AddGpus();
  const std::string where = "host3: GPU 0000:01:00.0: ";
  gpu.ecc_errors = 3;
  EXPECT_THAT(Found(), ElementsAre(where + "3 errors of memory that could not be corrected"));
  gpu.ecc_errors = 0;
  gpu.remap_pending = gpu.remap_failed = true;
  EXPECT_THAT(Found(), ElementsAre(where + "rows of memory wait for a reset to be remapped",
                                   where + "a row of memory could not be remapped"));
  gpu.remap_pending = gpu.remap_failed = false;
  gpu.slowed_by = {"heat", "power brake"};
  EXPECT_THAT(Found(), ElementsAre(where + "slowed down by heat, power brake"));
  gpu.slowed_by.clear();
  gpu.most_clock_mhz = 1000;
  gpu.free_bytes = 10'000'000'000;
  EXPECT_THAT(Found(), ElementsAre(where + "clock of at most 1000 MHz, the median is 1980",
                                   where + "10 GB of memory are free, the median is 80 GB"));
  EXPECT_THAT(HealthTable(health_, nullptr), AllOf(HasSubstr("1980/1000"), HasSubstr("H100")));
  health_.ranks[0].gpu_problem = "nvmlInit_v2 fails with status 9";
  EXPECT_THAT(Found(), testing::Contains("host1: NVML: nvmlInit_v2 fails with status 9"));
}

using Shares = std::vector<std::pair<std::string, double>>;

TEST(Clocks, MeansAreOfTheirTimeAndOfAllRanks) {
  const std::vector<ClockSample> samples = {{0, 1980, 400, 700},
                                            {10, 1900, 500, 700, {"power limit"}},
                                            {20, 1700, 700, 700, {"power limit", "heat"}},
                                            {30, 1600, 680, 700, {"power limit"}}};
  const ClockMeans first = MeansOf(samples, 0, 20), last = MeansOf(samples, 20, 40);
  EXPECT_DOUBLE_EQ(first.mhz, 1940);
  EXPECT_DOUBLE_EQ(first.watts, 450);
  EXPECT_EQ(first.held_by, (Shares{{"power limit", 0.5}}));
  EXPECT_EQ(last.held_by, (Shares{{"heat", 0.5}, {"power limit", 1}}));
  EXPECT_DOUBLE_EQ(MeansOf(samples, 25, 29).mhz, 1700) << "no sample: the one before";
  EXPECT_EQ(MeansOf({}, 0, 40).mhz, 0);
  const ClockMeans all = MeansOf({first, last, first});
  EXPECT_DOUBLE_EQ(all.mhz, (1940 + 1650 + 1940) / 3.0);
  ASSERT_EQ(all.held_by.size(), 2U);
  EXPECT_DOUBLE_EQ(all.held_by[1].second, 2 / 3.0);
  EXPECT_EQ(Describe(last), "1650 MHz, 690 W of 700 W");
  EXPECT_EQ(Describe({2400}), "2400 MHz");
  EXPECT_EQ(Describe({}), "");
}

TEST(Clocks, ACauseIsNamedWhereARateWasLost) {
  const ClockMeans burst{2000, 500, 700}, capped{1800, 699, 700, {{"heat", 0.25}, {"power limit", 0.75}}};
  EXPECT_EQ(CauseOfLoss(0.9, burst, capped), "the clock fell by 10.0 %, held down by power limit for 75 % of the time");
  EXPECT_EQ(CauseOfLoss(0.995, burst, capped), "") << "nothing was lost";
  EXPECT_THAT(CauseOfLoss(0.9, burst, {1800}), HasSubstr("does not say why"));
  EXPECT_THAT(CauseOfLoss(0.9, burst, burst), HasSubstr("the clock did not fall"));
  EXPECT_EQ(CauseOfLoss(0.9, {}, {}), "") << "no clock is known";
}

TEST(Clocks, CoresAreReadFromTheSystem) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "clocks_of_cores";
  fs::remove_all(root);
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  EXPECT_EQ(MeanClock({0, 2}, root), 0) << "an unknown system";
  write("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2100.500\nprocessor\t: 1\ncpu MHz\t\t: 900.000\n");
  EXPECT_DOUBLE_EQ(MeanClock({0, 1}, root), 1500.25);
  EXPECT_EQ(MeanClock({0, 2}, root), 0) << "one that it does not list";
  write("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "3400000\n");
  EXPECT_DOUBLE_EQ(MeanClock({1, 2}, root), (900 + 3400) / 2.0);
  CoreReader reader({1, 2}, root);
  EXPECT_THAT(reader.Read().held_by, IsEmpty());
  write("sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count", "7\n");
  EXPECT_THAT(reader.Read().held_by, ElementsAre("heat"));
  EXPECT_THAT(reader.Read().held_by, IsEmpty()) << "once for each time";
}

}  // namespace
}  // namespace espalier
