// Cluster files: every wrong line is reported with the allowed values, and a written file reads back to the same bits.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "cluster_testing.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(ClusterFile, ReadsKeysAndRows) {
  const ClusterFiles files;
  const Cluster c = LoadCluster(files.Write("a.toml", kMachine + R"(tiles = [[256, 128, 1], [64, 64, 0.5]]
memory_share = [[1e6, 0.6], [100000000, 0.9]]
[software]
attention = "plain"
[[attention]]
head_dim = 128
causal = [[512, 191]]
full = []
[[kernel]]
op = "matmul"
variant = "f32,f32->f32 spec=bsk,nk->bsn"
sizes = [256, 128, 384]
us = 12.5
samples = 7
[[collective]]
op = "all_gather"
ranks = 2
nodes = 1
ranks_per_node = 2
points = [[1024, 5, 3], [65536, 20.25, 4]]
)"));
  EXPECT_EQ(c.name, "two nodes");
  EXPECT_EQ(c.device, DeviceKind::kCpu);
  EXPECT_EQ(c.ranks_per_node, 2);
  EXPECT_EQ(c.compute.memory_bytes, 1000000000);
  EXPECT_EQ(c.compute.memory_bytes_per_us, 20000);
  EXPECT_EQ(c.compute.tiles, (std::vector<MatmulTile>{{256, 128, 1}, {64, 64, 0.5}}));
  EXPECT_EQ(c.compute.memory_share, (Curve{{1e6, 0.6}, {1e8, 0.9}}));
  EXPECT_EQ(c.attention, AttentionKernels::kPlain);
  EXPECT_EQ(c.compute.attention, (std::vector<AttentionRates>{{128, {{512, 191}}, {}}}));
  const auto& [key, measured] = *c.table.kernels.begin();
  EXPECT_EQ(key, (KernelKey{OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", {256, 128, 384}}));
  EXPECT_EQ(measured.us, 12.5);
  EXPECT_EQ(measured.samples, 7);
  const auto& points = c.table.collectives.at({OpKind::kAllGather, {2, 1, 2}});
  EXPECT_EQ(points.size(), 2);
  EXPECT_EQ(points.at(65536).us, 20.25);
  EXPECT_EQ(points.at(65536).samples, 4);
}

/// A number whose bits many decimal forms lose.
double Odd(int i) { return (i + 1) / 3.0 * 1.1e-3; }

TEST(ClusterFile, WhatIsWrittenReadsBackToTheSameBits) {
  const ClusterFiles files;
  Cluster c = LoadCluster(files.Write("a.toml", kMachine));
  c.name = "quotes \" and \\ and \u00e9";
  c.jitter = Odd(1);
  c.compute.bf16_tflops = 989.4;
  c.compute.memory_bytes_per_us = 3.35e6;
  c.compute.memory_share = {{1e6, Odd(2)}, {9e14 + 2, 0.9}};
  c.compute.tiles = {{256, 128, Odd(3)}};
  c.compute.attention = {{64, {{512, Odd(4)}}, {}}, {128, {}, {{1024, Odd(5)}}}};
  c.network.bytes_per_us = Odd(6);
  c.network.hop_us = 1e-300;
  c.network.share = {{1, 0.5}};
  c.split_messages = true;
  c.attention = AttentionKernels::kPlain;
  c.node_slowdown = 0.1;
  for (int i = 0; i < 5; ++i)
    c.table.kernels[{OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", {i + 1, 2, 3}}] = {Odd(i), i + 1};
  c.table.collectives[{OpKind::kSend, {2, 2, 1}}] = {{0, {Odd(7), 1}}, {int64_t{1} << 40, {Odd(8), 2}}};
  const std::string text = ToText(c);
  const Cluster again = LoadCluster(files.Write("b.toml", text));
  EXPECT_EQ(ToText(again), text);
  EXPECT_EQ(again.name, c.name);
  EXPECT_EQ(again.compute.memory_share, c.compute.memory_share);
  EXPECT_EQ(again.compute.tiles, c.compute.tiles);
  EXPECT_EQ(again.compute.attention, c.compute.attention);
  EXPECT_EQ(again.network.bytes_per_us, c.network.bytes_per_us);
  EXPECT_EQ(again.network.hop_us, 1e-300);
  EXPECT_EQ(again.table.collectives.at({OpKind::kSend, {2, 2, 1}}).at(int64_t{1} << 40).us, Odd(8));
  for (const auto& [key, measured] : c.table.kernels) EXPECT_EQ(again.table.kernels.at(key).us, measured.us);
}

TEST(ClusterFile, AFileOverridesWhatItIncludes) {
  const ClusterFiles files;
  const std::string kernel = "[[kernel]]\nop = \"add\"\nvariant = \"f32,f32->f32\"\nsizes = [64]\nsamples = 1\nus = ";
  files.Write("base.toml", kMachine + kernel + "3\n");
  const Cluster c = LoadCluster(
      files.Write("a.toml", "include = [\"base.toml\"]\n[cluster]\nranks_per_node = 8\n" + kernel + "4.5\n"));
  EXPECT_EQ(c.ranks_per_node, 8);
  EXPECT_EQ(c.compute.name, "some CPU");
  ASSERT_EQ(c.table.kernels.size(), 1);
  EXPECT_EQ(c.table.kernels.begin()->second.us, 4.5);
}

TEST(ClusterFile, EveryErrorHasItsLine) {
  const ClusterFiles files;
  EXPECT_THAT(
      ErrorsOf(files.Write("a.toml", R"([cluster]
name = 5
device = "gpu"
ranks_per_node = 0
[device]
nam = "x"
memory_bytes = 1.5
bf16_tflops = -1
fp32_tflops = 1
memory_bytes_per_us = 1
memory_share = [[2, 0.5], [1, 0.5]]
[nodes]
x = 1
[node]
kernel_us = 1
)")),
      ElementsAre("a.toml:2: cluster.name = 5: must be a string",
                  "a.toml:3: cluster.device = \"gpu\": unknown (did you mean cuda?) (allowed: \"cpu\", \"cuda\")",
                  HasSubstr("a.toml:4: cluster.ranks_per_node = 0: out of range (allowed: 1 to "),
                  "a.toml:6: device.nam = \"x\": unknown key (did you mean device.name?)",
                  "a.toml:7: device.memory_bytes = 1.5: must be an integer (allowed: 1 to 1e+18)",
                  "a.toml:8: device.bf16_tflops = -1: out of range (allowed: 1e-06 to 1000000000)",
                  HasSubstr("a.toml:11: device.memory_share = [ [ 2, 0.5 ], [ 1, 0.5 ] ]: the first number must rise"),
                  HasSubstr("a.toml:12: nodes = {...}: unknown section (sections: cluster, device, node, network, "),
                  "a.toml:15: node.kernel_us = 1: unknown key (did you mean device.kernel_us?)"));
}

TEST(ClusterFile, MissingKeysAreNamedWithTheirMeaning) {
  const ClusterFiles files;
  EXPECT_THAT(
      ErrorsOf(files.Write("a.toml", "[cluster]\nname = \"x\"\n")),
      testing::Contains("a.toml: cluster.device: missing: every cluster file must set it (What the programs are "
                        "compiled for.)"));
  EXPECT_THAT(ErrorsOf("/nowhere/x.toml"), ElementsAre("x.toml: no such file"));
}

TEST(ClusterFile, RowsAreChecked) {
  const ClusterFiles files;
  const std::string kernel =
      "[[kernel]]\nop = \"add\"\nvariant = \"f32,f32->f32\"\nsizes = [64]\nus = 1\nsamples = 1\n";
  EXPECT_THAT(ErrorsOf(files.Write("a.toml", kMachine + R"([[kernel]]
op = "matmull"
variant = "f32,f32->f32 spec=bsk,nk->bsn"
sizes = [1, 2, 3]
us = -1
sample = 1
[[kernel]]
op = "matmul"
variant = "f32,f32->f32 spec=bsk,nk->bsn"
sizes = [1, 2]
us = 1
samples = 1
[[collective]]
op = "all_gather"
ranks = 2
nodes = 4
ranks_per_node = 1
points = [[1, 1, 1]]
)" + kernel + kernel)),
              ElementsAre(HasSubstr("a.toml:12: kernel.op = \"matmull\": unknown (did you mean matmul?)"),
                          "a.toml:15: kernel.us = -1: out of range (allowed: 0 to 1000000000000)",
                          "a.toml:12: kernel.samples: missing: every row must set it",
                          "a.toml:16: kernel.sample = 1: unknown key (did you mean kernel.samples?)",
                          HasSubstr("a.toml:18: matmul \"f32,f32->f32 spec=bsk,nk->bsn\" [1, 2]: no kernel has this"),
                          HasSubstr("a.toml:24: all_gather of 2 ranks on 4 nodes, 1 per node: so many ranks cannot"),
                          "a.toml:36: add \"f32,f32->f32\" [64]: the row is there twice, first at a.toml:30 (remove "
                          "one)"));
  EXPECT_THAT(ErrorsOf(files.Write("b.toml", kMachine + "kernel = 4\n")),
              UnorderedElementsAre("b.toml:11: device.kernel = 4: unknown key (did you mean device.kernel_us?)"));
}

TEST(ClusterFile, ABrokenLineIsReportedOnce) {
  const ClusterFiles files;
  const std::vector<std::string> errors =
      ErrorsOf(files.Write("a.toml", "[cluster]\nname = \ndevice = \"cpu\"\n[device]\nname = 5\n"));
  EXPECT_THAT(errors,
              ElementsAre(HasSubstr("a.toml:2: not valid TOML"), "a.toml:5: device.name = 5: must be a string"));
}

TEST(ClusterFile, ADomainIsOfWholeNodes) {
  const ClusterFiles files;
  files.Write("base.toml", kMachine);
  const auto with = [&](int ranks) {
    return files.Write("a.toml", fmt::format("include = [\"base.toml\"]\n[cluster]\nranks_per_domain = {}\n", ranks));
  };
  EXPECT_EQ(LoadCluster(with(0)).NearRanks(), 2);
  EXPECT_EQ(LoadCluster(with(6)).NearRanks(), 6);
  EXPECT_THAT(ErrorsOf(with(5)), ElementsAre("a.toml: cluster.ranks_per_domain = 5: must be a multiple of "
                                             "cluster.ranks_per_node = 2: a domain is of whole nodes"));
}

}  // namespace
}  // namespace espalier
