// Keys of kernels, and tables that grow.
#include "espalier/costs/cost_table.hpp"

#include <gtest/gtest.h>

#include <set>

#include "costs/kernel_key.hpp"
#include "espalier/program/plan.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

/// The key of an op, written as a line of a graph, on one rank.
KernelKey KeyOfLine(const std::string& values, const std::string& line, bool accumulate = false) {
  const Graph graph = ParseGraph(values + line);
  return KeyOf(LocalOpOf(graph, graph.ops.back(), Mesh{}, {}), accumulate);
}

TEST(KernelKeys, AreTheDimsThatAKernelSees) {
  const std::string x = "value x : f32[2,8,16] input microbatch chunk 0\n",
                    w = "value w : f32[32,16] input microbatch chunk 0\n";
  EXPECT_EQ(KeyOfLine(x + w, "y = matmul(x, w) {spec=\"bsk,nk->bsn\"} @ F layer 1 chunk 0 : f32[2,8,32]\n"),
            (KernelKey{OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", {16, 16, 32}}));
  EXPECT_EQ(KeyOfLine(x, "y = gelu(x) @ F layer 1 chunk 0 : f32[2,8,16]\n"),
            (KernelKey{OpKind::kGelu, "f32->f32", {256}}));
  EXPECT_EQ(KeyOfLine(x, "y = cast(x) {to=\"bf16\"} @ F layer 1 chunk 0 : bf16[2,8,16]\n"),
            (KernelKey{OpKind::kCast, "f32->bf16 to=bf16", {256}}));
  EXPECT_EQ(KeyOfLine(x, "y = bias_grad(x) @ W layer 1 chunk 0 : f32[16]\n", true),
            (KernelKey{OpKind::kBiasGrad, "f32->f32 accumulate", {16, 16}}));
  const std::string v =
      "value k : f32[2,8,8] input microbatch chunk 0\nvalue v : f32[2,8,8] input microbatch chunk 0\n";
  EXPECT_EQ(KeyOfLine(x + v, "y, l = attention(x, k, v) {head_dim=4} @ F layer 1 chunk 0 : f32[2,8,16], f32[2,4,8]\n"),
            (KernelKey{OpKind::kAttention, "f32,f32,f32->f32,f32 head_dim=4", {2, 8, 16, 8, 8}}));
}

TEST(KernelKeys, HeadsOfValuesKeepTheirWidth) {
  const KernelKey forward{OpKind::kAttention, "bf16,bf16,bf16->bf16,f32 head_dim=12 value_dim=8", {2, 9, 48, 9, 24}};
  const RebuiltOp attention = Rebuild(forward).value();
  EXPECT_EQ(attention.inputs, (std::vector<Shape>{{2, 9, 48}, {2, 9, 24}, {2, 9, 16}}));
  EXPECT_EQ(attention.outputs, (std::vector<Shape>{{2, 9, 32}, {2, 4, 9}}));
  const KernelKey keys{OpKind::kLatentKeys, "bf16,bf16->bf16,bf16 nope_dim=6 value_dim=8", {18, 42, 2}};
  const RebuiltOp latent = Rebuild(keys).value();
  EXPECT_EQ(latent.inputs, (std::vector<Shape>{{1, 18, 42}, {1, 18, 2}}));
  EXPECT_EQ(latent.outputs, (std::vector<Shape>{{1, 18, 24}, {1, 18, 24}}));
}

/// Keys of all kernels of all ranks of a deck.
std::set<KernelKey> KeysOf(const std::vector<std::string>& overrides, int ranks) {
  std::set<KernelKey> keys;
  const WorldPlan plan = PlanWorld(SmallDeck(overrides), ranks);
  for (const auto& [rank, program] : plan.programs)
    for (const Instruction& i : program.instructions) {
      const Op& op = program.graph->op(i.op);
      if (IsCommunication(op.kind)) continue;
      const LocalOp local = LocalOpOf(*program.graph, op, program.mesh, program.mesh.CoordinateOf(rank));
      const KernelKey key = KeyOf(local, i.accumulate);
      keys.insert(key);
      const auto rebuilt = Rebuild(key);
      EXPECT_TRUE(rebuilt) << Name(key.kind) << " " << key.variant;
      if (!rebuilt) continue;
      EXPECT_EQ(KeyOf(rebuilt->Local(), rebuilt->accumulate), key);
      const auto flops = Define(key.kind).kernel.work.flops;
      if (flops) {
        EXPECT_DOUBLE_EQ(flops(rebuilt->Local()), flops(local)) << Name(key.kind) << " " << key.variant;
      }
    }
  return keys;
}

// The op that is rebuilt from a key has the work of the op that had the key.
TEST(KernelKeys, RebuildEveryKernelOfEveryLayout) {
  std::set<OpKind> kinds;
  for (const char* precision : {"fp32", "bf16"})
    for (const char* layout : {"111", "222", "411"})
      for (const bool gpt2 : {false, true}) {
        std::vector<std::string> overrides = DegreesOf(layout);
        overrides.push_back(std::string("precision.compute=") + precision);
        if (gpt2) overrides.insert(overrides.end(), {"model.family=gpt2", "model.kv_heads=4"});
        for (const KernelKey& key : KeysOf(overrides, RanksOf(layout))) kinds.insert(key.kind);
      }
  for (const char* context : {"ring", "all_gather", "all_to_all"}) {
    std::vector<std::string> overrides = DegreesOf("111");
    overrides.insert(overrides.end(), {"parallel.cp=2", std::string("parallel.context=") + context});
    for (const KernelKey& key : KeysOf(overrides, 2)) kinds.insert(key.kind);
    overrides.insert(overrides.end(), {"model.sliding_window=5", "data.isolate_documents=true", "model.sinks=true"});
    for (const KernelKey& key : KeysOf(overrides, 2)) {
      if (key.kind == OpKind::kAttention) {
        EXPECT_NE(key.variant.find("i32->"), key.variant.npos) << key.variant;
        EXPECT_NE(key.variant.find("window=5"), key.variant.npos) << key.variant;
      }
    }
  }
  // Joined ops have the keys of the plain ops that they replace: "64 x 48" and "64 x 48" are "64 x 96".
  for (const char* layout : {"111", "222"}) {
    std::vector<std::string> overrides = DegreesOf(layout);
    overrides.emplace_back("fusion.join_matmuls=always");
    for (const KernelKey& key : KeysOf(overrides, RanksOf(layout)))
      EXPECT_EQ(key.variant.find("columns"), key.variant.npos) << key.variant;
  }
  for (const char* optimizer : {"adamw", "muon"}) {
    std::vector<std::string> overrides = DegreesOf("222");
    overrides.insert(overrides.end(), {"precision.moments=bf16", std::string("optimizer.name=") + optimizer});
    for (const KernelKey& key : KeysOf(overrides, 8)) kinds.insert(key.kind);
  }
  // Muon's matmuls of experts have as many matrices as a rank has experts.
  std::set<std::string> of_experts;
  for (const char* layout : {"111", "222"}) {
    std::vector<std::string> overrides = DegreesOf(layout);
    overrides.insert(overrides.end(), {"optimizer.name=muon", "experts.count=8", "experts.per_token=2",
                                       "experts.ffn_dim=23", "experts.buffer=1", "experts.mlp_bias=true"});
    for (const KernelKey& key : KeysOf(overrides, RanksOf(layout)))
      if (key.variant.find("spec=esk") != key.variant.npos || key.variant.find("each=1") != key.variant.npos) {
        EXPECT_EQ(key.sizes.at(0), layout[0] == '1' ? 8 : 2) << Name(key.kind) << " " << key.variant;
        of_experts.insert(fmt::format("{} {}", Name(key.kind), key.variant));
      }
  }
  EXPECT_EQ(of_experts,
            std::set<std::string>({"matmul f32,f32->f32 spec=esk,ekn->esn", "matmul f32,f32->f32 spec=esk,enk->esn",
                                   "matmul f32,f32->f32 spec=esk,esn->ekn", "normalize f32,f32->f32 to=f32 each=1",
                                   "sum_squares f32->f32 each=1"}));
  for (const char* scaling : {"tensor", "row", "mx"})
    for (const bool gpt2 : {false, true}) {
      std::vector<std::string> overrides = DegreesOf("222");
      overrides.insert(overrides.end(), {"precision.compute=bf16", "precision.matmul=fp8", "model.dim=64",
                                         "model.ffn_dim=96", std::string("precision.fp8_scaling=") + scaling});
      if (gpt2) overrides.insert(overrides.end(), {"model.family=gpt2", "model.kv_heads=4"});
      for (const KernelKey& key : KeysOf(overrides, 8)) kinds.insert(key.kind);
    }
  EXPECT_TRUE(kinds.contains(OpKind::kQuantize));
  EXPECT_TRUE(kinds.contains(OpKind::kMuonDirection));
  EXPECT_TRUE(kinds.contains(OpKind::kAttentionMerge));
  EXPECT_TRUE(kinds.contains(OpKind::kAdamw));
  EXPECT_TRUE(kinds.contains(OpKind::kClip));
  EXPECT_TRUE(kinds.contains(OpKind::kGeluGrad));
}

// Passes over the rows of experts: those beyond balanced routing are empty, and equal.
TEST(KernelKeys, PassesWithoutRowsAreEqual) {
  for (const char* buffer : {"1.5", "0.3"}) {
    std::set<std::string> dispatches;
    for (const KernelKey& key :
         KeysOf({"parallel.dp_shard=4", "parallel.ep=4", "experts.count=8", "experts.per_token=2", "experts.ffn_dim=16",
                 std::string("experts.buffer=") + buffer},
                4)) {
      if (key.kind == OpKind::kDispatch) dispatches.insert(key.variant);
    }
    EXPECT_EQ(dispatches.size(), buffer == std::string("1.5") ? 2u : 4u) << testing::PrintToString(dispatches);
  }
}

// Forward and gradient of rows are in fp8, gradients of weights in bf16, added or not.
TEST(KernelKeys, ExpertsInFp8HaveScales) {
  for (const char* scaling : {"tensor", "row", "mx"}) {
    std::vector<std::string> overrides = DegreesOf("211");
    overrides.insert(overrides.end(),
                     {"precision.compute=bf16", "precision.matmul=fp8", "model.dim=64", "model.ffn_dim=96",
                      "experts.count=4", "experts.per_token=2", "experts.ffn_dim=32", "experts.buffer=1",
                      std::string("precision.fp8_scaling=") + scaling});
    std::set<std::string> scaled;
    for (const KernelKey& key : KeysOf(overrides, RanksOf("211")))
      if (key.kind == OpKind::kGroupedMatmul) scaled.insert(key.variant);
    EXPECT_EQ(scaled.size(), 4u) << "forward and gradient of rows in fp8, gradients of weights in bf16, added or not";
    for (const std::string& variant : scaled)
      EXPECT_EQ(variant.find(scaling == std::string("tensor") ? "scales=tensor" : "scales=row") == variant.npos,
                variant.find("->enk") != variant.npos)
          << variant;
  }
}

TEST(KernelKeys, UnknownVariantsHaveNoOp) {
  const std::vector<int64_t> sizes = {1, 2, 3};
  EXPECT_TRUE(Rebuild({OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", sizes}));
  for (const char* variant :
       {"", "f32", "f32,f32->f64 spec=bsk,nk->bsn", "f32,f32->f32", "f32,f32->f32 spec=ab,bc->ac",
        "f32,f32->f32 spec=bsk,nk->bsn color=red", "f32,f32->f32 spec=bsk,nk->bsn cp=", "f32->f32 spec=bsk,nk->bsn"})
    EXPECT_FALSE(Rebuild({OpKind::kMatmul, variant, sizes})) << variant;
  EXPECT_FALSE(Rebuild({OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", {1, 2}}));
  EXPECT_FALSE(Rebuild({OpKind::kMatmul, "f32,f32->f32 spec=bsk,nk->bsn", {1, 2, -3}}));
  const std::vector<int64_t> scaled = {1, 2, 3, 1, 1};
  EXPECT_TRUE(Rebuild({OpKind::kMatmul, "f8e4m3,f8e4m3,f32,f32->bf16 spec=bsk,nk->bsn scales=row", scaled}));
  for (const char* variant : {"f8e4m3,f8e4m3->bf16 spec=bsk,nk->bsn", "f8e4m3,f8e4m3,f32,f32->bf16 spec=bsk,nk->bsn",
                              "f8e4m3,bf16,f32,f32->bf16 spec=bsk,nk->bsn scales=row",
                              "f8e4m3,f8e4m3,f32,f32->bf16 spec=bsk,nk->bsn scales=column"})
    EXPECT_FALSE(Rebuild({OpKind::kMatmul, variant, scaled})) << variant;
  EXPECT_TRUE(Rebuild({OpKind::kQuantize, "bf16->f8e5m2,f32 spec=nk->kn,ky to=f8e5m2", {4, 5, 1}}));
  EXPECT_TRUE(Rebuild({OpKind::kQuantize, "bf16->f8e4m3,f8e8m0 spec=nk->kn,yu to=f8e4m3", {32, 5, 512}}));
  EXPECT_TRUE(
      Rebuild({OpKind::kMatmul, "f8e4m3,f8e4m3,f8e8m0,f8e8m0->bf16 spec=bsk,nk->bsn scales=mx", {1, 2, 32, 512, 512}}));
  for (const char* variant : {"bf16->f8e5m2,f32 spec=nk->kn,ky to=f8e4m3", "bf16->f8e5m2,f32 spec=nk to=f8e5m2",
                              "bf16->f8e5m2 spec=nk->kn,ky to=f8e5m2"})
    EXPECT_FALSE(Rebuild({OpKind::kQuantize, variant, {4, 5, 1}})) << variant;
  EXPECT_FALSE(Rebuild({OpKind::kAllGather, "f32->f32", {1}}));
  const std::vector<int64_t> grouped = {1, 2, 3, 4, 5};
  for (const char* variant : {"bf16,bf16,i32->bf16 spec=ebsk,ekn->ebsn", "bf16,bf16,i32->bf16 spec=bsk,nk->bsn",
                              "f8e4m3,f8e4m3,i32->bf16 spec=ebsk,enk->ebsn"})
    EXPECT_FALSE(Rebuild({OpKind::kGroupedMatmul, variant, grouped})) << variant;
}

TEST(CostTables, MergeWeighsBySamples) {
  const KernelKey a{OpKind::kAdd, "f32,f32->f32", {8}}, b{OpKind::kAdd, "f32,f32->f32", {16}};
  const CollectiveKey gather{OpKind::kAllGather, {2, 1, 2}};
  CostTable table{{{a, {10, 3}}}, {{gather, {{1024, {5, 1}}}}}};
  table.Merge({{{a, {20, 1}}, {b, {7, 2}}}, {{gather, {{1024, {7, 3}}, {2048, {9, 1}}}}}});
  EXPECT_EQ(table.kernels.at(a).us, 12.5);  // (3 x 10 + 20) / 4
  EXPECT_EQ(table.kernels.at(a).samples, 4);
  EXPECT_EQ(table.kernels.at(b).us, 7);
  EXPECT_EQ(table.collectives.at(gather).at(1024).us, 6.5);  // (5 + 3 x 7) / 4
  EXPECT_EQ(table.collectives.at(gather).at(1024).samples, 4);
  EXPECT_EQ(table.collectives.at(gather).at(2048).us, 9);
}

}  // namespace
}  // namespace espalier
