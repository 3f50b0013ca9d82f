// Formulas of kernels and transfers with the cluster files of inputs/clusters, against published measurements.
#include "costs/formulas/formulas.hpp"

#include <gtest/gtest.h>

#include <random>

#include "espalier/costs/costs.hpp"
#include "espalier/util/error.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

Cluster Shipped(const std::string& name) { return LoadCluster(InTree("inputs/clusters/") + name + ".toml"); }
const std::vector<std::string> kShipped = {"a100-8x200g", "a100-4x100g", "h100-8x400g", "h200-8x400g", "b200-8x400g"};

double Tflops(const DeviceModel& device, const MatmulShape& s) {
  return 2e-6 * double(s.batch) * double(s.m) * double(s.n) * double(s.k) / MatmulUs(device, s);
}

/// Attention of `tokens` tokens in sequences of `length`, with heads that are 2048 wide together, as timed in the
/// FlashAttention papers.
struct Attention {
  Op op;
  std::vector<Shape> inputs, outputs;
  Attention(OpKind kind, int64_t tokens, int64_t length, int64_t head_dim) {
    op.kind = kind;
    op.attributes.numbers = {{"head_dim", double(head_dim)}, {"causal", 1}};
    const Shape x = {tokens / length, length, 2048}, lse = {tokens / length, 2048 / head_dim, length};
    inputs = kind == OpKind::kAttention ? std::vector{x, x, x} : std::vector{x, x, x, x, lse, x};
    outputs = kind == OpKind::kAttention ? std::vector{x, lse} : std::vector{x, x, x};
  }
  LocalOp Local() const {
    return {op,
            inputs,
            outputs,
            Dtype::kBf16,
            std::vector(inputs.size(), Dtype::kBf16),
            std::vector(outputs.size(), Dtype::kBf16)};
  }
};

TEST(ClusterFiles, OfInputsLoadAndPrintBack) {
  for (const std::string& name : kShipped) {
    const Cluster cluster = Shipped(name);
    EXPECT_EQ(cluster.ranks_per_node, 8) << name;
    EXPECT_EQ(cluster.device, DeviceKind::kCuda) << name;
    EXPECT_FALSE(cluster.compute.attention.empty()) << name;
    EXPECT_GT(cluster.node.bytes_per_us, cluster.network.bytes_per_us) << name;
  }
  EXPECT_EQ(Shipped("template").ranks_per_node, 4);
  EXPECT_EQ(Shipped("rtx4090-pcie4").host.out_bytes_per_us, 25'000);
  EXPECT_EQ(Shipped("gb200-nvl72").ranks_per_node, 4);
  EXPECT_EQ(Shipped("gb200-nvl72").NearRanks(), 72);
  EXPECT_EQ(Shipped("h200-8x400g").compute.bf16_tflops, Shipped("h100-8x400g").compute.bf16_tflops);
}

// Muon's matmuls of experts: each matrix has tiles of its own.
TEST(MatmulFormula, CountsMatricesOneByOne) {
  const Cluster cluster = Shipped("h100-8x400g");
  const auto local = [](const char* spec, Shape a, Shape b, Shape c) {
    Op op{OpKind::kMatmul, {}, {}, {{}, {{"spec", spec}}}};
    return LocalOp{op, {a, b}, {c}, Dtype::kBf16, {Dtype::kBf16, Dtype::kBf16}, {Dtype::kBf16}};
  };
  for (const auto& [spec, a, b, c] :
       {std::tuple{"esk,enk->esn", Shape{16, 768, 2048}, Shape{16, 768, 2048}, Shape{16, 768, 768}},
        {"esk,ekn->esn", Shape{16, 768, 768}, Shape{16, 768, 2048}, Shape{16, 768, 2048}},
        {"esk,esn->ekn", Shape{16, 2048, 768}, Shape{16, 2048, 768}, Shape{16, 768, 768}}}) {
    const LocalOp each = local(spec, a, b, c);
    const MatmulShape shape = MatmulShapeOf(each, false);
    EXPECT_EQ(shape.batch, 16) << spec;
    EXPECT_EQ(std::tuple(shape.m, shape.n), std::tuple(c[1], c[2])) << spec;
    EXPECT_EQ(2.0 * 16 * double(shape.m * shape.n * shape.k), Define(OpKind::kMatmul).kernel.work.flops(each)) << spec;
    EXPECT_EQ(MatmulShapeOf(local(spec, {0, a[1], a[2]}, {0, b[1], b[2]}, {0, c[1], c[2]}), false).m, 0) << spec;
  }
}

/// The forward product of 8 experts with 1,024 rows each.
LocalOp ProductOfExperts(Dtype dtype) {
  Op op;
  op.kind = OpKind::kGroupedMatmul;
  op.attributes.texts["spec"] = "ebsk,enk->ebsn";
  LocalOp local{op,
                {{8, 1, 1024, 2048}, {8, 4096, 2048}, {8, 1, 1024}},
                {{8, 1, 1024, 4096}},
                dtype,
                {dtype, dtype, Dtype::kI32},
                {Dtype::kBf16}};
  if (!IsFp8(dtype)) return local;
  local.op.attributes.texts["scales"] = "tensor";
  local.inputs.insert(local.inputs.end(), {{8, 1, 1024}, {8}});
  local.input_dtypes.insert(local.input_dtypes.end(), {Dtype::kF32, Dtype::kF32});
  return local;
}

// Our kernel multiplies fp8 at the rate of bf16 (kernels/cuda/grouped_matmul.cu).
TEST(GroupedMatmulFormula, TakesTheTimeOfBf16InFp8) {
  const Cluster cluster = Shipped("h100-8x400g");
  const double bf16 = KernelUs(cluster, ProductOfExperts(Dtype::kBf16), false);
  EXPECT_EQ(KernelUs(cluster, ProductOfExperts(Dtype::kF8E4M3), false), bf16);
  const MatmulShape dense{.batch = 8, .m = 1024, .n = 4096, .k = 2048};
  EXPECT_NEAR(bf16, MatmulKernelUs(cluster, dense) / 0.36, 0.02 * bf16);
}

TEST(GroupedMatmulFormula, ExpertsWithUnequalRowsShareTheWaves) {
  const Cluster cluster = Shipped("h100-8x400g");
  const LocalOp op = ProductOfExperts(Dtype::kBf16);
  const auto us = [&](const std::vector<double>& loads) { return KernelUs(cluster, op, false, loads); };
  const double equal = us({});
  EXPECT_NEAR(us(std::vector<double>(8, 1)), equal, 1e-9 * equal);
  // The rows are as many, and a few more tiles are not full.
  const double uneven = us({2, 1.6, 1.2, 1.001, 0.8, 0.7, 0.5, 0.199});
  EXPECT_GT(uneven, equal);
  EXPECT_LT(uneven, 1.15 * equal);
  EXPECT_NEAR(us({8, 0, 0, 0, 0, 0, 0, 0}), equal, 0.02 * equal);
  // One row more than a tile for each of seven experts takes seven tiles of rows more.
  EXPECT_GT(us({7, 1.0 / 7, 1.0 / 7, 1.0 / 7, 1.0 / 7, 1.0 / 7, 1.0 / 7, 1.0 / 7}), equal);
}

// The fastest shapes reach the best measured rate of any shape: 271, 794, 794 and 1,745 TFLOP/s (MAMF,
// stas00/ml-engineering).
TEST(MatmulFormula, ReachesTheBestMeasuredRate) {
  for (const auto& [name, measured] :
       {std::pair{"a100-8x200g", 271.0}, {"h100-8x400g", 794.0}, {"h200-8x400g", 794.0}, {"b200-8x400g", 1745.0}}) {
    const Cluster cluster = Shipped(name);
    double best = 0;
    for (int64_t m = 1024; m <= 16384; m += 1024)
      for (int64_t n = 1024; n <= 16384; n += 1024)
        for (int64_t k : {2048, 4096, 8192, 13312})
          best = std::max(best, Tflops(cluster.compute, {.m = m, .n = n, .k = k}));
    EXPECT_NEAR(best / measured, 1, 0.05) << name;
  }
}

TEST(MatmulFormula, Fp8HasItsOwnRate) {
  const DeviceModel device = Shipped("h100-8x400g").compute;
  const MatmulShape bf16{.m = 16384, .n = 8192, .k = 8192};
  MatmulShape fp8 = bf16;
  fp8.dtype = Dtype::kF8E4M3;
  EXPECT_NEAR(MatmulUs(device, bf16) / MatmulUs(device, fp8), 1979.0 / 989.0, 0.02);
  DeviceModel without = device;
  without.fp8_tflops = 0;
  EXPECT_EQ(MatmulUs(without, fp8), MatmulUs(without, bf16));
}

// Blocks of 32 have a byte each: 1/32 of the operands of a product that memory bounds.
TEST(MatmulFormula, ReadsScalesOfBlocks) {
  const DeviceModel device = Shipped("b200-8x400g").compute;
  MatmulShape thin{.m = 64, .n = 16384, .k = 16384, .dtype = Dtype::kF8E4M3, .result_bytes = 0};
  const double without = MatmulUs(device, thin);
  thin.scale_bytes = double(thin.k / 32 * (thin.m + thin.n));
  EXPECT_NEAR(MatmulUs(device, thin) / without, 1 + 1.0 / 32, 1e-3);
}

// One scale for all rows needs a separate pass; with a scale per row, rows are still in the caches when they are
// rounded.
TEST(MemoryFormula, QuantizingReadsTwiceUnlessRowsHaveScales) {
  const auto bytes = [](const char* spec) {
    Op op;
    op.kind = OpKind::kQuantize;
    op.attributes.texts = {{"spec", spec}, {"to", "f8e4m3"}};
    return Define(op.kind).kernel.work.bytes(
        {op, {{2, 3, 5}}, {{2, 3, 5}, {1}}, Dtype::kBf16, {Dtype::kBf16}, {Dtype::kF8E4M3, Dtype::kF32}}, false);
  };
  EXPECT_EQ(bytes("bsk->bsk,y"), 2 * 60 + 30 + 4);
  EXPECT_EQ(bytes("bsk->kbs,ky"), 2 * 60 + 30 + 4);
  EXPECT_EQ(bytes("bsk->bsk,bsy"), 60 + 30 + 4);
  EXPECT_EQ(bytes("bsk->kbs,yu"), 60 + 30 + 4);
}

// 108 units: 9 x 12 tiles of 256 x 128 are one wave. One more row of tiles needs another.
TEST(MatmulFormula, CountsWavesOfTiles) {
  DeviceModel device = Shipped("a100-8x200g").compute;
  device.tiles = {{256, 128, 1.0}};
  const double full = MatmulUs(device, {.m = 9 * 256, .n = 12 * 128, .k = 4096});
  EXPECT_NEAR(full, 2.0 * 256 * 128 * (4096 + 128) / (312e6 * 0.92 / 108), 1e-6);
  EXPECT_GT(MatmulUs(device, {.m = 9 * 256 + 8, .n = 12 * 128, .k = 4096}) / full, 1.8) << "split, it takes a bit less";
}

TEST(MatmulFormula, SplitsLongContractionsOfFewTiles) {
  const DeviceModel device = Shipped("h100-8x400g").compute;
  const double few = Tflops(device, {.m = 256, .n = 512, .k = 65536});
  EXPECT_GT(few, 2 * 989 * 0.82 * 4 / 132) << "four tiles would fill four units";
}

TEST(MatmulFormula, IsBoundByBytesWhereThereIsLittleToMultiply) {
  const DeviceModel device = Shipped("h100-8x400g").compute;
  const double bytes = 2.0 * 16 * (65536 + 4096) + 2.0 * 65536 * 4096;
  EXPECT_NEAR(MatmulUs(device, {.m = 65536, .n = 4096, .k = 16}), MemoryUs(device, bytes), 1e-9);
}

// cuDNN on an H100, forward, causal: TFLOP/s by length, 16,384 tokens (Shah et al. 2024, figure 5).
TEST(AttentionFormula, IsThePublishedCurve) {
  const DeviceModel device = Shipped("h100-8x400g").compute;
  for (const auto& [length, tflops] :
       {std::pair{512, 315.0}, {1024, 410.0}, {2048, 484.0}, {4096, 518.0}, {8192, 529.0}, {16384, 539.0}}) {
    const Attention forward(OpKind::kAttention, 16384, length, 128), grad(OpKind::kAttentionGrad, 16384, length, 128);
    const double us = FusedAttentionUs(device, forward.Local());
    EXPECT_NEAR(us, 2.0 * 16384 * double(length) * 2048 / (tflops * 1e6), 1e-6 * us) << length;
    EXPECT_NEAR(FusedAttentionUs(device, grad.Local()) / us, 2.5 / 0.8, 1e-9) << length;
  }
}

TEST(AttentionFormula, NarrowHeadsAreSlowerAndFewBlocksLeaveUnitsIdle) {
  const DeviceModel device = Shipped("h100-8x400g").compute;
  const auto us = [&](int64_t tokens, int64_t head_dim) {
    return FusedAttentionUs(device, Attention(OpKind::kAttention, tokens, 2048, head_dim).Local());
  };
  EXPECT_GT(us(16384, 32), us(16384, 64));
  EXPECT_GT(us(16384, 64), us(16384, 128));
  EXPECT_EQ(us(16384, 256), us(16384, 128));
  EXPECT_NEAR(us(2048, 512) / us(16384, 512), 1.0 / 8 * 132 / 64, 1e-9) << "4 heads x 16 blocks on 132 units";
}

TEST(AttentionFormula, OrderedSumsOfBackwardHaveTheirOwnRate) {
  Cluster cluster = Shipped("h100-8x400g");
  const auto us = [&](const char* way) {
    LocalOp op = Attention(OpKind::kAttentionGrad, 16384, 4096, 128).Local();
    op.op.attributes.texts["backward"] = way;
    return FusedAttentionUs(cluster.compute, op);
  };
  EXPECT_EQ(us("parts"), us("unordered")) << "the file has no rate of its own";
  cluster.compute.ordered_backward_share = 0.4;
  EXPECT_NEAR(us("parts") / us("unordered"), 0.8 / 0.4, 1e-9);
}

// Scores of 2 x 16 heads x 2048 x 2048 in bf16 are 268 MB: four passes forward with dropout and its mask (2 + 2.5), and
// the matmuls that read and write them.
TEST(AttentionFormula, PlainAttentionPassesScoresThroughMemory) {
  Cluster cluster = Shipped("a100-8x200g");
  cluster.attention = AttentionKernels::kPlain;
  const Attention forward(OpKind::kAttention, 4096, 2048, 128), grad(OpKind::kAttentionGrad, 4096, 2048, 128);
  const double pass_us = 2.0 * 32 * 2048 * 2048 / (2.039e6 * 0.92);
  const double without = PlainAttentionUs(cluster, forward.Local());
  EXPECT_GT(without, 4 * pass_us);
  cluster.attention_dropout = true;
  EXPECT_NEAR(PlainAttentionUs(cluster, forward.Local()) - without, 2.5 * pass_us + cluster.compute.kernel_us, 1e-6);
  EXPECT_GT(PlainAttentionUs(cluster, grad.Local()), 1.5 * without);
  EXPECT_GT(KernelUs(cluster, forward.Local(), false), 2 * FusedAttentionUs(cluster.compute, forward.Local()));
}

TEST(MemoryFormula, ReachesTheShareOfItsSize) {
  const DeviceModel device = Shipped("a100-8x200g").compute;
  EXPECT_NEAR(MemoryUs(device, 1e6), 1e6 / (2.039e6 * 0.6), 1e-9);
  EXPECT_NEAR(MemoryUs(device, 1e7), 1e7 / (2.039e6 * 0.75), 1e-9);
  EXPECT_NEAR(MemoryUs(device, 1e9), 1e9 / (2.039e6 * 0.92), 1e-9);
}

TEST(KernelFormula, AKernelTakesTheHostsLaunchAtLeast) {
  Cluster cluster = Shipped("h100-8x400g");
  const Op op{.kind = OpKind::kAdd};
  const std::vector<Dtype> two(2, Dtype::kBf16);
  const std::vector<Shape> inputs(2, Shape{1, 128, 64}), outputs(1, Shape{1, 128, 64});
  const LocalOp add{op, inputs, outputs, Dtype::kBf16, two, {Dtype::kBf16}};
  const double alone = KernelUs(cluster, add, false);
  EXPECT_NEAR(alone, MemoryUs(cluster.compute, 3 * 2 * 128 * 64) + 2.5, 1e-9);
  cluster.efficiency = 0.5;
  EXPECT_NEAR(KernelUs(cluster, add, false), 2 * alone, 1e-9);
  cluster.compute.launch_us = 20;
  EXPECT_EQ(KernelUs(cluster, add, false), 20);
}

// All-reduce of eight H100 (NVIDIA dgxc-benchmarking), bytes and microseconds.
TEST(MatmulFormula, ADeviceSustainsAShareOfItsRate) {
  Cluster cluster = Shipped("h100-8x400g");
  const MatmulShape shape{.m = 8192, .n = 8192, .k = 8192};
  const double burst = MatmulUs(cluster.compute, shape);
  cluster.compute.sustained_share = 0.8;
  EXPECT_NEAR(MatmulUs(cluster.compute, shape), burst / 0.8, 1e-6);
  EXPECT_EQ(MemoryUs(cluster.compute, 1e8), MemoryUs(Shipped("h100-8x400g").compute, 1e8)) << "clocks of memory stay";
}

TEST(TransferFormula, RanksShareAdaptersAndNodesMeetInSwitches) {
  Cluster cluster = Shipped("h100-8x400g");
  cluster.network.share.clear(), cluster.node.share.clear();
  cluster.network.base_us = cluster.network.hop_us = cluster.network.message_us = cluster.network.tree_share = 0;
  const GroupPlace few{4, 4, 1}, many{64, 64, 1};
  const auto us = [&](const GroupPlace& place) { return CollectiveUs(cluster, OpKind::kAllGather, 1e9, place); };
  const double alone = us(few), message = MessageUs(cluster, 1e9, false), near = MessageUs(cluster, 1e9, true);
  EXPECT_NEAR(us(many), alone, 1e-6);
  cluster.network.ranks_per_adapter = 2;
  EXPECT_NEAR(us(few), 2 * alone, 1e-6);
  EXPECT_NEAR(MessageUs(cluster, 1e9, false), 2 * message, 1e-6);
  EXPECT_EQ(MessageUs(cluster, 1e9, true), near);
  cluster.network.nodes_share = {{4, 1.0}, {64, 0.5}};
  EXPECT_NEAR(us(few), 2 * alone, 1e-6);
  EXPECT_NEAR(us(many), 4 * alone, 1e-6);
}

TEST(TransferFormula, IsTheMeasuredAllReduceOfOneNode) {
  const Cluster cluster = Shipped("h100-8x400g");
  const double kib = 1024, mib = 1024 * kib;
  for (const auto& [bytes, measured] : {std::pair{8.0, 13.0},
                                        {32 * kib, 19.0},
                                        {256 * kib, 20.0},
                                        {512 * kib, 20.5},
                                        {mib, 27.0},
                                        {2 * mib, 42.0},
                                        {4 * mib, 54.0},
                                        {8 * mib, 83.0},
                                        {16 * mib, 124.0},
                                        {32 * mib, 199.0},
                                        {64 * mib, 325.0},
                                        {128 * mib, 586.0},
                                        {256 * mib, 1112.0},
                                        {512 * mib, 2151.0},
                                        {1024 * mib, 4029.0},
                                        {8192 * mib, 31307.0}}) {
    const double us = CollectiveUs(cluster, OpKind::kAllReduce, 1.75 * bytes, {8, 1, 8});
    EXPECT_NEAR(us / measured, 1, 0.05) << bytes << " bytes: " << us << " us";
  }
}

// Eight A100: 93 us at 1 MiB, 229 GB/s of bus bandwidth at 1 GiB (vTrain). Eight nodes: 192 GB/s (NVIDIA).
TEST(TransferFormula, IsTheMeasuredAllReduceOfA100) {
  const Cluster cluster = Shipped("a100-8x200g");
  EXPECT_NEAR(CollectiveUs(cluster, OpKind::kAllReduce, 1.75 * 1048576, {8, 1, 8}), 93, 5);
  const double gib = 1024.0 * 1048576;
  EXPECT_NEAR(1.75 * gib / CollectiveUs(cluster, OpKind::kAllReduce, 1.75 * gib, {8, 1, 8}) / 229e3, 1, 0.02);
  const double wire = 2.0 * 63 / 64 * 8 * gib;
  EXPECT_NEAR(wire / CollectiveUs(cluster, OpKind::kAllReduce, wire, {64, 8, 8}) / 192e3, 1, 0.02);
}

TEST(TransferFormula, AGroupUsesThePortsOfItsRanks) {
  const Cluster cluster = Shipped("h100-8x400g");
  const auto us = [&](GroupPlace place) { return CollectiveUs(cluster, OpKind::kAllGather, 1e10, place); };
  EXPECT_NEAR(us({4, 4, 1}) / 1e10 * 48e3, 1, 0.01);
  EXPECT_NEAR(us({8, 4, 2}) / 1e10 * 96e3, 1, 0.01);
  EXPECT_NEAR(us({32, 4, 8}) / 1e10 * 362e3, 1, 0.02) << "eight ports are faster than the links of the node";
  EXPECT_EQ(us({1, 1, 1}), 0);
}

TEST(TransferFormula, SendsToEachRankOrOnlyToTheNext) {
  const Cluster cluster = Shipped("h100-8x400g");
  // 8 of 15 peers are on the other node.
  EXPECT_NEAR(CollectiveUs(cluster, OpKind::kAllToAll, 1.5e10, {16, 2, 8}), 8e9 / 48e3, 0.001 * 8e9 / 48e3);
  EXPECT_EQ(CollectiveUs(cluster, OpKind::kRingShift, 1e6, {4, 2, 2}), MessageUs(cluster, 1e6, false));
  EXPECT_EQ(CollectiveUs(cluster, OpKind::kRingShift, 1e6, {4, 1, 4}), MessageUs(cluster, 1e6, true));
  EXPECT_NEAR(MessageUs(cluster, 48e6, false), 12 + 1000, 1e-9);
}

TEST(TransferFormula, ALinkThatIsUsedNeedsARate) {
  Cluster cluster = Shipped("h100-8x400g");
  cluster.network.bytes_per_us = 0;
  EXPECT_GT(CollectiveUs(cluster, OpKind::kAllGather, 1e6, {8, 1, 8}), 0);
  EXPECT_THROW(CollectiveUs(cluster, OpKind::kAllGather, 1e6, {16, 2, 8}), UserError);
}

// A tree has fewer hops: small all-reduces over many nodes take it.
TEST(TransferFormula, AllReducesOfManyNodesFollowATree) {
  Cluster cluster = Shipped("h100-8x400g");
  const double tree = CollectiveUs(cluster, OpKind::kAllReduce, 1e4, {1024, 128, 8});
  cluster.network.tree_share = 0;
  EXPECT_GT(CollectiveUs(cluster, OpKind::kAllReduce, 1e4, {1024, 128, 8}), 5 * tree);
}

// More work or slower devices never take less time. Rows of operands stay multiples of 16 bytes, since misaligned rows
// are slower than longer ones, also on devices.
// Rates per rank of four: a link of 10 for two, or memory of 40 for all, both ways.
TEST(CopyFormula, TheLinkOrTheMemoryOfTheHostIsTheLimit) {
  Cluster cluster;
  cluster.host = {
      .out_bytes_per_us = 10, .in_bytes_per_us = 30, .ranks_per_link = 2, .dram_bytes_per_us = 40, .copy_us = 3};
  const auto out = Costs(cluster).HostCopy(OpKind::kCopyOut, 100, 4);
  EXPECT_EQ(out.alone_us, 3 + 100 / 5.0);
  EXPECT_EQ(out.beside_us, 3 + 100 / 5.0);
  const auto in = Costs(cluster).HostCopy(OpKind::kCopyIn, 100, 4);
  EXPECT_EQ(in.alone_us, 3 + 100 / 10.0);
  EXPECT_EQ(in.beside_us, 3 + 100 / 5.0);
  EXPECT_EQ(Costs(cluster).HostCopy(OpKind::kCopyIn, 100, 1).alone_us, 3 + 100 / 30.0) << "one rank has the link alone";
  cluster.host = {};
  EXPECT_THROW(Costs(cluster).HostCopy(OpKind::kCopyIn, 100, 1), UserError);
  cluster.compute.host_bytes_per_us = 20;
  EXPECT_EQ(Costs(cluster).HostCopy(OpKind::kCopyIn, 100, 1).beside_us, 100 / 20.0);
}

TEST(Formulas, RiseWithWorkAndFallWithRates) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t most) { return int64_t(1 + random() % static_cast<uint64_t>(most)); };
  std::vector<Cluster> clusters;
  for (const std::string& name : kShipped) clusters.push_back(Shipped(name));
  for (int i = 0; i < 2000; ++i) {
    const Cluster& cluster = clusters[random() % clusters.size()];
    MatmulShape s{.batch = draw(4), .m = draw(5000), .n = 8 * draw(800), .k = 8 * draw(800)};
    const double us = MatmulUs(cluster.compute, s);
    for (int64_t MatmulShape::*dim : {&MatmulShape::batch, &MatmulShape::m, &MatmulShape::n, &MatmulShape::k}) {
      MatmulShape more = s;
      more.*dim += 8 * draw(20);
      EXPECT_GE(MatmulUs(cluster.compute, more), us * (1 - 1e-12)) << s.m << " " << s.n << " " << s.k;
    }
    DeviceModel faster = cluster.compute;
    (random() % 2 ? faster.bf16_tflops : faster.memory_bytes_per_us) *= 1.3;
    EXPECT_LE(MatmulUs(faster, s), us * (1 + 1e-12));
    if (i % 20) continue;
    const GroupPlace place{int(draw(8)) * 8, 8, int(draw(8))};
    for (OpKind kind : {OpKind::kAllGather, OpKind::kAllReduce, OpKind::kAllToAll}) {
      const double bytes = double(draw(int64_t{1} << 32)), transfer = CollectiveUs(cluster, kind, bytes, place);
      EXPECT_GE(CollectiveUs(cluster, kind, bytes * 1.01, place), transfer * (1 - 1e-12)) << bytes;
      Cluster better = cluster;
      (random() % 2 ? better.node : better.network).bytes_per_us *= 1.5;
      EXPECT_LE(CollectiveUs(better, kind, bytes, place), transfer * (1 + 1e-12));
    }
    const double bytes = double(draw(int64_t{1} << 30));
    EXPECT_GE(MemoryUs(cluster.compute, bytes * 1.01), MemoryUs(cluster.compute, bytes));
  }
}

}  // namespace
}  // namespace espalier
