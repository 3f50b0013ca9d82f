// Relations between keys: divisibility, limits of sizes, settings without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/expert_parallel.hpp"
#include "espalier/deck/parameter_groups.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/recompute.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Strings = std::vector<std::string>;

TEST(Sizes, H3WhatWouldWrapIsRefusedAsOneRelation) {
  const Strings cases[] = {
      {"model.dim=1073741824", "model.heads=8192"},
      {"model.dim=536870912", "model.heads=8192"},
      {"model.vocab=2147483647", "model.seq_len=2147483646"},
      {"model.dim=16777216", "model.heads=8192", "model.seq_len=2147483646", "batch.micro=6"},
      {"model.dim=1073741824", "model.heads=8192", "model.ffn_dim=1073741824"},
      {"model.seq_len=2147483646", "batch.global=2147483646"},
      {"model.seq_len=2147483647", "model.heads=24"},
  };
  for (const Strings& overrides : cases) {
    const Strings errors = Errors(overrides);
    ASSERT_THAT(errors, testing::Not(IsEmpty())) << testing::PrintToString(overrides);
    EXPECT_THAT(errors[0], HasSubstr("all ranks together; the limit is 2^58 = 2.9e+17 (lower "))
        << testing::PrintToString(overrides);
  }
  EXPECT_THAT(Errors({"model.dim=1073741824", "model.heads=8192"})[0],
              testing::StartsWith("command line: model.dim = 1073741824: "));
  EXPECT_THAT(Errors({"model.dim=1073741824", "model.heads=8192"})[0],
              testing::EndsWith("(lower model.dim = 1073741824, model.vocab = 260, "
                                "model.ffn_dim = 88, model.seq_len = 24, model.layers = 5)"));
}

TEST(Guard, ComparesOnlyBitsThatRepeat) {
  for (const char* key : {"run.deterministic", "run.deterministic_attention"}) {
    const std::string off = std::string(key) + "=false";
    EXPECT_THAT(Errors({"guard.recompute_steps=5", off, "run.device=cuda"}),
                ElementsAre(HasSubstr("guard.recompute_steps = 5: must be 0 with run.deterministic or ")));
    EXPECT_THAT(Errors({"guard.recompute_steps=5", off, "run.device=cpu"}), IsEmpty());
    EXPECT_THAT(Errors({off, "run.device=cuda"}), IsEmpty());
  }
}

TEST(Sizes, A7LayersPassesAndRanksHaveLimitsThatAreNamed) {
  EXPECT_THAT(Errors({"model.layers=999999999"}),
              ElementsAre("command line: model.layers=999999999: out of range (allowed: 1 to 4096)"));
  EXPECT_THAT(
      Errors({"parallel.dp_shard=1", "batch.global=2147483646", "batch.micro=1"}),
      ElementsAre("command line: batch.global = 2147483646: a step takes 2147483646 microbatches through 5 layers: "
                  "1.07e+10 passes, and "
                  "the limit is 262144 (raise batch.micro or the data-parallel degrees, or lower batch.global)"));
  EXPECT_THAT(Errors({"parallel.dp_shard=1", "parallel.cp=32768", "model.seq_len=65536"}),
              ElementsAre(testing::AllOf(HasSubstr("through 5 layers in 32768 hops"),
                                         HasSubstr("or take another parallel.context"))));
  EXPECT_THAT(
      Errors({"model.layers=4096", "parallel.pp=128", "parallel.dp_shard=1"}),
      ElementsAre(
          "command line: parallel.pp = 128: parallel.pp * model.layers = 128 * 4096 = 524288; the limit is 262144"));
  EXPECT_THAT(Errors({"parallel.dp_replicate=65536", "parallel.dp_shard=64", "batch.global=12582912"}), Not(IsEmpty()));
  EXPECT_THAT(Errors({"run.steps=2147483647", "batch.global=2147483646", "model.seq_len=4096"}), Not(IsEmpty()));
}

TEST(Sizes, H3RealModelsPass) {
  // Llama 3.1 405B: 16 M tokens a step, 16,384 ranks.
  const Strings large = {"model.layers=126",    "model.dim=16384",    "model.heads=128",    "model.kv_heads=8",
                         "model.ffn_dim=53248", "model.vocab=128256", "model.seq_len=8192", "batch.global=2048",
                         "batch.micro=1",       "parallel.pp=16",     "parallel.tp=8"};
  EXPECT_EQ(ResolveMesh(Small(large), 16384).Degree(Axis::kDpShard), 128);
  // The same on one pipeline: then all microbatches pass through it.
  EXPECT_EQ(BatchOf(Small(large), ResolveMesh(Small(large), 256)).microbatches, 1024);
}

TEST(Sizes, H3TheRanksDecideHowManyPassesThereAre) {
  const Deck deck = Small({"batch.global=786432", "batch.micro=1"});
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(deck, 1); }), ElementsAre(HasSubstr("786432 microbatches through 5 layers")));
  EXPECT_EQ(BatchOf(deck, ResolveMesh(deck, 64)).microbatches, 12288);
}

TEST(Relations, SchedulesSayWhichNumbersWouldDo) {
  const std::string at = "command line: ";
  EXPECT_THAT(Errors({"pipeline.schedule=zbv", "pipeline.chunks=3"}),
              ElementsAre(at + "pipeline.chunks = 3: must be 2 for pipeline.schedule = \"zbv\""));
  EXPECT_THAT(Errors({"pipeline.schedule=interleaved", "pipeline.chunks=1"}),
              ElementsAre(at + "pipeline.chunks = 1: must be at least 2 for pipeline.schedule = \"interleaved\""));
  EXPECT_THAT(Errors({"pipeline.schedule=dualpipev", "parallel.pp=2", "batch.global=9"}),
              ElementsAre(at + "batch.global = 9: makes at most 3 microbatches of batch.micro * dp_replicate = 3 "
                               "sequences, but pipeline.schedule = "
                               "\"dualpipev\" with parallel.pp = 2 needs at least 4 (allowed: multiples of batch.micro "
                               "* ranks / (pp * cp * tp) "
                               "= 3 * ranks / 2 from 4 times that)"));
  EXPECT_THAT(
      Errors({"pipeline.schedule=interleaved", "parallel.pp=2", "pipeline.split=[2, 3]"}),
      ElementsAre(at + "pipeline.split = [2, 3]: must have parallel.pp * pipeline.chunks = 2 * 2 = 4 entries, not 2"));
  EXPECT_THAT(
      Errors({"parallel.pp=3", "pipeline.split=[2, 0, 3]"}),
      ElementsAre(at + "pipeline.split = [2, 0, 3]: must have layers in all chunks but the first, which has the "
                       "embedding, and the last, with the head"));
  EXPECT_THAT(Errors({"parallel.pp=3", "pipeline.split=[0, 5, 0]"}), ElementsAre());
  EXPECT_THAT(Errors({"pipeline.schedule=file"}),
              ElementsAre(at + "pipeline.file = \"\": is needed with pipeline.schedule = \"file\": a CSV file, such as "
                               "espalier plan --schedule prints"));
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"})
    EXPECT_THAT(Errors({std::string("pipeline.schedule=") + schedule, "parallel.pp=2", "batch.global=12"}), IsEmpty());
}

TEST(Errors, OddHeadsAreForGpt2) {
  EXPECT_THAT(Errors({"model.heads=16", "model.kv_heads=16", "model.family=gpt2"}), IsEmpty());
  EXPECT_THAT(Errors({"model.heads=16", "model.kv_heads=16"}), SizeIs(1));
  EXPECT_EQ(Errors({"model.dim=45", "model.heads=7", "model.kv_heads=7", "model.family=gpt2"}),
            Strings{"command line: model.heads = 7: must divide model.dim = 45 (allowed: 1, 3, 5, 9, 15, 45)"});
}

TEST(Errors, HeadsMayHaveAWidthOfTheirOwn) {
  EXPECT_THAT(Errors({"model.heads=7", "model.kv_heads=7", "model.head_dim=10"}), IsEmpty());
  EXPECT_THAT(Errors({"model.head_dim=14"}), IsEmpty());
  EXPECT_THAT(Errors({"model.head_dim=7"}), ElementsAre(HasSubstr("must be even, since RoPE rotates pairs (allowed")));
  EXPECT_THAT(Errors({"model.head_dim=0"}), ElementsAre(HasSubstr("out of range (allowed: 1 to 2147483647)")));
  EXPECT_THAT(
      Errors({"model.head_dim=10", "model.qk_norm=full", "model.norm_placement=post", "model.sinks=true",
              "model.kv_heads=6", "model.family=gpt2"}),
      ElementsAre(testing::EndsWith(
          "does not have model.head_dim = 10 (allowed: dim / heads = 8), nor model.norm_placement = \"post\" "
          "(allowed: \"pre\"), nor model.qk_norm = \"full\" (allowed: \"none\"), nor model.sinks = true (allowed: "
          "false); leave it out")));
}

TEST(Errors, LatentAttentionIsWhole) {
  const Strings mla = {"model.attention=mla", "model.kv_heads=6", "model.head_dim=12",
                       "model.rope_dim=4",    "model.kv_rank=9",  "model.v_dim=10"};
  const auto with = [&](Strings more) {
    more.insert(more.begin(), mla.begin(), mla.end());
    return Errors(more);
  };
  EXPECT_THAT(with({}), IsEmpty());
  EXPECT_THAT(with({"model.q_rank=7", "model.o_bias=true", "model.sinks=true"}), IsEmpty());
  EXPECT_THAT(with({"model.kv_rank=0", "model.kv_heads=3", "model.qk_norm=head", "model.qkv_bias=true"}),
              ElementsAre(HasSubstr("model.attention = \"mla\": needs model.kv_rank >= 1 (DeepSeek-V3: 512), and "
                                    "model.kv_heads = model.heads = 6, not 3, and model.qk_norm = \"none\", not "
                                    "\"head\": it normalises the latents, and model.qkv_bias = false")));
  EXPECT_THAT(with({"model.rope_dim=12"}),
              ElementsAre(HasSubstr("must be even and below model.head_dim = 12, of which each key has columns")));
  EXPECT_THAT(with({"model.family=gpt2", "model.head_dim=8", "model.v_dim=8"}),
              ElementsAre(HasSubstr("does not have model.attention = \"mla\" (allowed: \"heads\"); leave it out")));
}

TEST(Errors, DropoutIsWhereTheFamilyHasIt) {
  EXPECT_THAT(Errors({"dropout.attention=0.3"}), IsEmpty());
  EXPECT_THAT(Errors({"dropout.embedding=0.1", "dropout.residual=0.1", "dropout.attention=0.1", "model.family=gpt2",
                      "model.kv_heads=6"}),
              IsEmpty());
  EXPECT_THAT(Errors({"dropout.embedding=0.1", "dropout.residual=0.2"}),
              ElementsAre(AllOf(HasSubstr("dropout.embedding = 0.1: is only for model.family = \"gpt2\""),
                                HasSubstr("allowed: 0; or dropout.attention")),
                          HasSubstr("dropout.residual = 0.2: ")));
  EXPECT_THAT(Errors({"dropout.attention=1"}), ElementsAre(HasSubstr("out of range (allowed: 0 to 0.9999999)")));
  EXPECT_THAT(Errors({"dropout.attention=-0.1"}), ElementsAre(HasSubstr("out of range")));
}

TEST(Errors, FurtherTokensAreOfLlamaAndInTheSequence) {
  EXPECT_THAT(Errors({"model.mtp_layers=2", "model.seq_len=3"}), IsEmpty());
  EXPECT_THAT(Errors({"model.mtp_layers=3", "model.seq_len=3"}),
              ElementsAre("command line: model.mtp_layers = 3: must be below model.seq_len = 3: layer k predicts the "
                          "token k + 1 places ahead"));
  EXPECT_THAT(Errors({"model.mtp_layers=1", "model.family=gpt2", "model.kv_heads=6"}),
              ElementsAre("command line: model.mtp_layers = 1: must be 0 for model.family = \"gpt2\""));
  EXPECT_THAT(
      Errors({"model.mtp_layers=4", "model.layers=4093", "parallel.pp=64", "parallel.dp_shard=1"}),
      ElementsAre("command line: parallel.pp = 64: parallel.pp * (model.layers + model.mtp_layers) = 64 * 4097 = "
                  "262208; the limit is 262144"));
}

TEST(Errors, Fp8RoundsBf16) {
  EXPECT_THAT(Errors({"precision.matmul=fp8", "precision.compute=bf16"}), IsEmpty());
  EXPECT_EQ(
      Errors({"precision.matmul=fp8", "precision.compute=fp32"}),
      Strings{"command line: precision.matmul = \"fp8\": needs precision.compute = \"bf16\" (allowed: \"compute\", "
              "or \"fp8\" with bf16)"});
  EXPECT_THAT(Errors({"precision.matmul=fp4"}), SizeIs(1));
}

TEST(Errors, RopeScalingStretches) {
  EXPECT_THAT(Errors({"model.rope_scaling=linear", "model.rope_factor=0.5"}),
              ElementsAre(HasSubstr("must be at least 1 for model.rope_scaling = \"linear\"")));
  EXPECT_THAT(Errors({"model.rope_factor=0.5"}), IsEmpty());
  for (const char* scaling : {"model.rope_scaling=llama3", "model.rope_scaling=yarn"})
    EXPECT_THAT(Errors({scaling, "model.rope_factor=2"}),
                ElementsAre(HasSubstr("must be the sequence length before scaling")));
  EXPECT_THAT(Errors({"model.rope_scaling=llama3", "model.rope_factor=2", "model.rope_high_freq_factor=1",
                      "model.rope_original_seq_len=9"}),
              ElementsAre(HasSubstr("must be above model.rope_low_freq_factor = 1")));
  EXPECT_THAT(Errors({"model.rope_scaling=yarn", "model.rope_factor=2", "model.rope_beta_fast=1", "model.rope_theta=1",
                      "model.rope_original_seq_len=9"}),
              ElementsAre(HasSubstr("must be above model.rope_beta_slow = 1"), HasSubstr("must be above 1 for")));
}

TEST(Errors, SuggestionsForTheBatchAreAcceptedOnAnyRanks) {
  // "multiples of batch.micro * ranks / (pp * cp * tp) = 3 * ranks / 2"
  EXPECT_THAT(Errors({"batch.global=10", "parallel.tp=2"}),
              ElementsAre(HasSubstr("(allowed: multiples of batch.micro * ranks / (pp * cp * tp) = 3 * ranks / 2)")));
  for (int ranks : {2, 6, 10})
    EXPECT_EQ(ResolveMesh(Small({fmt::format("batch.global={}", 3 * ranks / 2 * 5), "parallel.tp=2"}), ranks).Ranks(),
              ranks);
}

TEST(Errors, ZeroTwoHasNoWholeGradients) {
  const std::vector<std::string> two = {"parallel.zero=2", "parallel.reduce=step"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), two.begin(), two.end());
    return Errors(more);
  };
  EXPECT_THAT(with({}),
              ElementsAre("command line: parallel.reduce = \"step\": keeps gradients whole until the last microbatch, "
                          "but parallel.zero = 2 shards them (allowed: parallel.reduce = \"auto\" or \"microbatch\"; "
                          "or parallel.zero = 1, which keeps them whole, or 3, which then shards parameters only)"));
  EXPECT_THAT(with({"parallel.dp_shard=1"}), IsEmpty()) << "nothing is sharded";
  EXPECT_THAT(with({"parallel.dp_shard=1", "parallel.cp=2", "model.seq_len=24"}), SizeIs(1));
  for (const char* reduce : {"auto", "microbatch"})
    EXPECT_THAT(Errors({"parallel.zero=2", fmt::format("parallel.reduce={}", reduce)}), IsEmpty());
  for (const char* zero : {"1", "3"})
    EXPECT_THAT(Errors({"parallel.reduce=step", fmt::format("parallel.zero={}", zero)}), IsEmpty());
}

TEST(Errors, RanksShareExperts) {
  const auto with = [](Strings keys) { return Errors(std::move(keys)); };
  const Strings experts = {"experts.count=12", "experts.per_token=2", "experts.ffn_dim=5"};
  const auto of = [&](Strings keys) {
    keys.insert(keys.begin(), experts.begin(), experts.end());
    return with(keys);
  };
  const std::string at = "command line: parallel.ep = ";
  EXPECT_THAT(with({"parallel.ep=2"}),
              ElementsAre(at + "2: shards experts, but experts.count = 0: all layers are dense (leave it out)"));
  EXPECT_THAT(of({"parallel.ep=5"}),
              ElementsAre(at + "5: must divide experts.count = 12 (allowed: 1, 2, 3, 4, 6, 12)"));
  EXPECT_THAT(of({"parallel.ep=4"}), IsEmpty()) << "dp_shard is open";
  EXPECT_THAT(of({"parallel.ep=4", "parallel.dp_shard=2", "batch.global=36"}),
              ElementsAre(at + "4: must be a factor of dp_shard * cp * tp = 2 * 1 * 1: tp, if it divides ep, times cp, "
                               "if it divides the rest, times a divisor of dp_shard (allowed: 1, 2)"));
  EXPECT_THAT(of({"parallel.ep=4", "parallel.dp_shard=2", "parallel.tp=2", "batch.global=36"}), IsEmpty());
  EXPECT_THAT(of({"parallel.ep=2", "parallel.dp_shard=4", "batch.global=36", "parallel.regather_group=2"}),
              ElementsAre("command line: parallel.regather_group = 2: is not possible where parallel.ep = 2 shares "
                          "experts over ranks of dp_shard (allowed: 0)"));
  EXPECT_THAT(
      of({"parallel.ep=2", "parallel.tp=2", "parallel.dp_shard=4", "batch.global=36", "parallel.regather_group=2"}),
      IsEmpty());
}

TEST(Deck, EpTakesTheNearestRanksFirst) {
  const auto axes = [](int ep, int dp_shard, int cp, int tp) {
    Deck::Parallel p{};
    p.ep = ep, p.dp_shard = dp_shard, p.cp = cp, p.tp = tp;
    const ExpertParallel e = ExpertParallelOf(p);
    return std::tuple(e.dp_shard, cp > 1 && e.cp, tp > 1 && e.tp);
  };
  EXPECT_EQ(axes(1, 4, 2, 2), std::tuple(1, false, false));
  EXPECT_EQ(axes(2, 4, 2, 2), std::tuple(1, false, true));
  EXPECT_EQ(axes(4, 4, 2, 2), std::tuple(1, true, true));
  EXPECT_EQ(axes(8, 4, 2, 2), std::tuple(2, true, true));
  EXPECT_EQ(axes(2, 4, 2, 3), std::tuple(1, true, false));
  EXPECT_EQ(axes(2, 4, 4, 1), std::tuple(2, false, false)) << "a part of cp is none";
}

TEST(Errors, RegatherGroupsShareOutDpShard) {
  const std::string at = "command line: parallel.regather_group = ";
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"parallel.zero=3", "batch.global=72"});
    return Errors(more);
  };
  EXPECT_THAT(with({"parallel.dp_shard=6", "parallel.regather_group=4"}),
              ElementsAre(at + "4: must divide parallel.dp_shard = 6 (allowed: 0, 2, 3, 6)"));
  EXPECT_THAT(with({"parallel.dp_shard=6", "parallel.regather_group=1"}),
              ElementsAre(HasSubstr(at + "1: is a group of one rank, which would keep whole parameters")));
  EXPECT_THAT(with({"parallel.regather_group=4"}), IsEmpty()) << "dp_shard is open";
  const Deck open = Small({"parallel.regather_group=4", "batch.global=72"});
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(open, 6); }), ElementsAre(HasSubstr("must divide parallel.dp_shard = 6")));
  EXPECT_THAT(with({"parallel.dp_shard=6", "parallel.regather_group=4", "recompute.regather=never"}), IsEmpty());
}

TEST(Errors, RulesOfRecomputeNameOpsAndLayers) {
  const auto rule = [](const std::string& text) {
    return Errors({"model.layers=6", "pipeline.split=[]", fmt::format("recompute.layers=[\"{}\"]", text)});
  };
  for (const char* good :
       {"full: first 1", "norm+mlp: every 2", "selective+core_attention: 0-3,5", "none:5", "qkv : 0 - 5"})
    EXPECT_THAT(rule(good), IsEmpty()) << good;
  EXPECT_THAT(rule("full"), ElementsAre(HasSubstr("in \"full\" there is no colon (allowed: \"WHAT: LAYERS\"")));
  EXPECT_THAT(rule("full+selective: 0"), ElementsAre(HasSubstr("WHAT names two modes")));
  EXPECT_THAT(rule("auto: 0"), ElementsAre(HasSubstr("\"auto\" is no mode and no op")));
  EXPECT_THAT(rule("mpl: 0"), ElementsAre(HasSubstr("\"mpl\" is no mode and no op")));
  EXPECT_THAT(rule("full: first"), ElementsAre(HasSubstr("\"first\" is no layer and no range of layers")));
  EXPECT_THAT(rule("full: first 0"), ElementsAre(HasSubstr("\"first 0\" has no number of layers")));
  EXPECT_THAT(rule("full: 3-2"), ElementsAre(HasSubstr("\"3-2\" is no layer and no range of layers")));
  EXPECT_THAT(rule("full: 2-6"), ElementsAre(HasSubstr("in \"full: 2-6\" there is no layer 6 (allowed: 0 to 5)")));
  EXPECT_THAT(Errors({"recompute.ops=[\"norms\"]"}), ElementsAre(HasSubstr("did you mean norm?")));
  EXPECT_THAT(Errors({"recompute.mode=auto", "recompute.ops=[\"norm\"]"}),
              ElementsAre(HasSubstr("recompute.mode = \"auto\": chooses ops and layers by itself (leave out "
                                    "recompute.ops, or take another mode)")));
}

TEST(RecomputePlan, TheFirstRuleThatNamesALayerHolds) {
  const Deck deck = Small({"model.layers=8", "pipeline.split=[]", "recompute.mode=selective", "recompute.ops=[\"mlp\"]",
                           "recompute.layers=[\"none: 6\", \"full: first 2\", \"norm+core_attention: every 3\"]"});
  const RecomputePlan plan(deck.recompute);
  // Layers 4 to 7 are the second of two stages, so their places are 0 to 3.
  std::vector<std::string> texts;
  for (int layer = 0; layer < 8; ++layer) texts.push_back(ToString(plan.Of(layer, layer % 4)));
  EXPECT_THAT(texts, ElementsAre("full", "full", "norm+core_attention", "selective+mlp", "full", "full", "none",
                                 "selective+mlp"));
  EXPECT_EQ(ToString(plan.Others()), "selective+mlp");
  EXPECT_FALSE(plan.Empty());
  EXPECT_TRUE(RecomputePlan(Small({"recompute.layers=[\"none: 0\"]"}).recompute).Empty());
}

TEST(Deck, RegatherGroupsAreAnAxisWhereTheyGather) {
  const auto groups = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"batch.global=72", "parallel.dp_shard=6"});
    const Deck deck = Small(overrides);
    return ResolveMesh(deck, 6).Degree(Axis::kRegather);
  };
  EXPECT_EQ(groups({"parallel.regather_group=2"}), 2);
  EXPECT_EQ(groups({}), 1);
  EXPECT_EQ(groups({"parallel.regather_group=6"}), 1) << "all ranks";
  EXPECT_EQ(groups({"parallel.regather_group=2", "parallel.zero=2"}), 1);
  EXPECT_EQ(groups({"parallel.regather_group=2", "recompute.regather=never"}), 1);
}

TEST(Deck, ReduceAndGatherFollowFromZeroAndTheMesh) {
  const auto reduce = [](const std::vector<std::string>& overrides, int ranks) {
    const Deck deck = Small(overrides);
    return ReduceOf(deck, ResolveMesh(deck, ranks));
  };
  EXPECT_EQ(reduce({}, 2), ReduceFrequency::kMicrobatch);
  EXPECT_EQ(reduce({}, 1), ReduceFrequency::kStep) << "nothing is sharded";
  EXPECT_EQ(reduce({"parallel.dp_replicate=2"}, 2), ReduceFrequency::kStep) << "nothing is sharded";
  EXPECT_EQ(reduce({"parallel.zero=2"}, 2), ReduceFrequency::kMicrobatch);
  EXPECT_EQ(reduce({"parallel.zero=1"}, 2), ReduceFrequency::kStep);
  EXPECT_EQ(reduce({"parallel.reduce=step"}, 2), ReduceFrequency::kStep);
  const auto gathers = [](const std::vector<std::string>& overrides, int ranks) {
    const Deck deck = Small(overrides);
    return GathersAgain(deck, ResolveMesh(deck, ranks));
  };
  EXPECT_TRUE(gathers({}, 2));
  EXPECT_FALSE(gathers({}, 1));
  EXPECT_FALSE(gathers({"recompute.regather=never"}, 2));
  EXPECT_FALSE(gathers({"parallel.zero=2", "recompute.regather=always"}, 2));
  EXPECT_TRUE(gathers({"parallel.zero=3", "parallel.pp=2"}, 4));
  EXPECT_FALSE(gathers({"parallel.pp=2"}, 4)) << "by default a pipeline has zero = 1";
}

TEST(Effects, C9SettingsWithoutEffectAreNamedIfSomebodySetThem) {
  EXPECT_THAT(Idle({}), IsEmpty());
  EXPECT_THAT(Idle({"guard.max_skips=10", "parallel.context=ring", "lr.min_ratio=0.1", "lr.decay=constant"}), IsEmpty())
      << "defaults";
  EXPECT_THAT(Idle({"recompute.regather=always", "parallel.zero=2"}),
              ElementsAre("command line: recompute.regather = \"always\" has no effect: with parallel.zero = 2 every "
                          "rank has whole parameters"));
  EXPECT_THAT(Idle({"recompute.budget=1000", "recompute.mode=selective"}),
              ElementsAre("command line: recompute.budget = 1000 has no effect: recompute.mode = \"selective\" and "
                          "[offload] choose nothing"));
  EXPECT_THAT(Idle({"recompute.budget=1000", "offload.parameters=auto"}), IsEmpty());
  EXPECT_THAT(Idle({"recompute.budget=1000", "recompute.mode=auto"}), IsEmpty());
  EXPECT_THAT(Idle({"recompute.ops=[\"mlp\"]", "recompute.mode=full"}), SizeIs(1));
  EXPECT_THAT(Idle({"parallel.regather_group=6", "parallel.dp_shard=6", "batch.global=18"}),
              ElementsAre("command line: parallel.regather_group = 6 has no effect: all ranks of parallel.dp_shard are "
                          "one group"));
  EXPECT_THAT(Idle({"parallel.regather_group=2", "parallel.dp_shard=6", "batch.global=18"}), IsEmpty());
  EXPECT_THAT(Idle({"overlap.gradients=false", "parallel.dp_shard=1"}),
              ElementsAre("command line: overlap.gradients = false has no effect: no gradient is reduced over ranks"));
  EXPECT_THAT(Idle({"fusion.join_matmuls=always"}), IsEmpty());
  EXPECT_THAT(Idle({"fusion.join_matmuls=always", "model.family=gpt2", "model.kv_heads=6"}),
              ElementsAre("command line: fusion.join_matmuls = \"always\" has no effect: the weights of model.family = "
                          "\"gpt2\" are stored [in, out]"));
  EXPECT_THAT(Idle({"overlap.gradients=false"}), IsEmpty()) << "dp_shard may come to more than 1";
  EXPECT_THAT(Idle({"recompute.regather=always"}), IsEmpty()) << "dp_shard may come to more than 1";
  EXPECT_THAT(Idle({"lr.decay=constant", "lr.min_ratio=0.2", "lr.decay_steps=3"}), SizeIs(2));
  EXPECT_THAT(Idle({"lr.warmup_steps=100"}), ElementsAre("command line: lr.warmup_steps = 100 is long: all run.steps = "
                                                         "20 steps are warm-up, so the rate never decays"));
  EXPECT_THAT(Idle({"lr.stable_steps=16", "lr.warmup_steps=4"}),
              ElementsAre("command line: lr.stable_steps = 16 is long: all run.steps = 20 steps are warm-up or stable, "
                          "so the rate never decays"));
  EXPECT_THAT(Idle({"lr.stable_steps=15", "lr.warmup_steps=4", "lr.decay=one_minus_sqrt"}), IsEmpty());
  EXPECT_THAT(Idle({"lr.decay=inverse_sqrt", "lr.stable_steps=3", "lr.min_ratio=0.2", "lr.decay_steps=3"}),
              ElementsAre("command line: lr.decay_steps = 3 has no effect: lr.decay = \"inverse_sqrt\" has no end"));
  EXPECT_THAT(Idle({"lr.decay=constant", "lr.stable_steps=30"}),
              ElementsAre("command line: lr.stable_steps = 30 has no effect: lr.decay = \"constant\" does not decay"));
  EXPECT_THAT(Idle({"guard.on_spike=warn", "guard.spike_window=9"}), SizeIs(2));
  EXPECT_THAT(Idle({"guard.spike_z=6", "guard.spike_window=9", "guard.max_skips=3"}), IsEmpty())
      << "skip is the default";
  EXPECT_THAT(Idle({"guard.spike_z=6", "guard.on_spike=stop", "guard.spike_window=9", "guard.max_skips=3"}),
              ElementsAre(HasSubstr("neither guard.on_nonfinite nor guard.on_spike is \"skip\"")));
  EXPECT_THAT(Idle({"guard.spike_z=6"}),
              ElementsAre("command line: guard.spike_z = 6.0 has no effect: "
                          "guard.spike_window = 128 steps are never full in run.steps = 20"));
  EXPECT_THAT(Idle({"guard.max_rollbacks=2", "guard.on_corruption=stop"}),
              ElementsAre("command line: guard.max_rollbacks = 2 has no effect: neither guard.on_nonfinite nor "
                          "guard.on_spike nor guard.on_corruption is \"rollback\""));
  EXPECT_THAT(Idle({"guard.max_rollbacks=2"}), IsEmpty()) << "on_corruption rolls back by default";
  for (const char* text : {"guard.max_skips=3", "parallel.context=all_gather", "parallel.sequence_parallel=false",
                           "data.validation=['v']", "data.validate_sequences=24"})
    EXPECT_THAT(Idle({text}), ElementsAre(HasSubstr("has no effect"))) << text;
  for (const char* text : {"model.sliding_window=8000", "model.full_attention_layers=1"})
    EXPECT_THAT(Idle({text}), ElementsAre(HasSubstr("has no effect"))) << text;
  EXPECT_THAT(Idle({"model.sliding_window=3", "model.full_attention_layers=1"}), IsEmpty());
  EXPECT_THAT(
      Idle({"model.full_attention_every=2"}),
      ElementsAre("command line: model.full_attention_every = 2 has no effect: model.sliding_window is 0, so all "
                  "layers see all tokens"));
  EXPECT_THAT(Idle({"model.sliding_window=3", "model.full_attention_every=2"}), IsEmpty());
  EXPECT_THAT(Idle({"model.sliding_window=3", "model.full_attention_every=1"}),
              ElementsAre("command line: model.sliding_window = 3 has no effect: model.full_attention_every = 1 lets "
                          "all layers see all tokens"));
  EXPECT_THAT(Idle({"experts.mlp_bias=true", "experts.router_bias=true", "experts.swiglu_limit=7"}), SizeIs(3));
  EXPECT_THAT(Idle({"model.rope_truncate=false"}),
              ElementsAre(HasSubstr("model.rope_scaling = \"none\" does not use it")));
  EXPECT_THAT(Idle({"model.sliding_window=3", "model.full_attention_layers=100"}),
              ElementsAre(HasSubstr("model.sliding_window = 3 has no effect: all model.layers = ")));
  EXPECT_THAT(Idle({"run.deterministic=false", "run.gemm_plans=p", "run.device=cpu"}), SizeIs(2));
  EXPECT_THAT(Idle({"run.deterministic=false", "run.gemm_plans=p", "run.device=cuda"}), IsEmpty());
  EXPECT_THAT(Idle({"run.deterministic_attention=false", "run.device=cuda"}), IsEmpty());
  EXPECT_THAT(Idle({"run.deterministic_attention=false", "run.device=cpu"}), SizeIs(1));
  EXPECT_THAT(Idle({"run.deterministic_attention=false", "run.deterministic=false", "run.device=cuda"}),
              ElementsAre(HasSubstr("run.deterministic = false lets attention add in any order")));
  EXPECT_THAT(Idle({"run.deterministic_attention=false", "run.attention_backward=large_parts", "run.device=cuda"}),
              ElementsAre(HasSubstr("run.deterministic_attention = false stores no scores")));
  EXPECT_THAT(Idle({"model.rope_theta=7", "model.family=gpt2", "model.kv_heads=6"}), SizeIs(1));
  // An effective deck sets every key: keys at their defaults are not reported.
  EXPECT_THAT(SettingsWithoutEffect(ParseDeck(EffectiveDeck(Small()), "again")), IsEmpty());
}

TEST(DataRelations, SourcesHaveWeightsAndDocumentsEnds) {
  EXPECT_THAT(
      Errors({"data.paths=['a','b','c']", "data.weights=[1, 2]", "data.validation_weights=[1]"}),
      ElementsAre("command line: data.weights = [1.0, 2.0]: must have a weight for each entry of data.paths: 3, "
                  "not 2 (or none: [])",
                  "command line: data.validation_weights = [1.0]: must have a weight for each entry of "
                  "data.validation: 0, not 1 (or none: [])"));
  EXPECT_THAT(Errors({"data.paths=['a','b']", "data.weights=[0.5, 2]"}), IsEmpty());
  EXPECT_THAT(Errors({"data.end_token=260"}),
              ElementsAre("command line: data.end_token = 260: must be a token: allowed are -1 (none) and 0 to 259 "
                          "(model.vocab - 1)"));
  EXPECT_THAT(Errors({"data.isolate_documents=true", "data.format=hdf5"}),
              ElementsAre("command line: data.isolate_documents = true: needs data.end_token with data.format = "
                          "\"hdf5\", which does not say where documents end"));
  for (const char* format : {"data.format=text", "data.format=megatron", "data.format=jsonl", "data.format=auto"})
    EXPECT_THAT(Errors({"data.isolate_documents=true", format}), IsEmpty()) << format;
  EXPECT_THAT(Errors({"data.isolate_documents=true", "data.format=flat16", "data.end_token=0"}), IsEmpty());
}

TEST(DataRelations, KeysOfOtherFormatsHaveNoEffect) {
  EXPECT_THAT(Idle({"data.hdf5_dataset=x", "data.end_token=3"}),
              ElementsAre("command line: data.hdf5_dataset = \"x\" has no effect: data.format is \"text\"",
                          "command line: data.end_token = 3 has no effect: data.isolate_documents = false joins "
                          "documents"));
  EXPECT_THAT(Idle({"data.hdf5_dataset=x", "data.format=auto"}), IsEmpty());
  EXPECT_THAT(Idle({"data.hdf5_dataset=x", "data.format=hdf5"}), IsEmpty());
}

TEST(Groups, MalformedEntriesAreNamedWithTheForm) {
  const std::string form = " (allowed: \"PATTERN lr=X decay=Y\", of which lr or decay may be missing)";
  const std::pair<const char*, const char*> cases[] = {
      {"*norm.weight", "\"*norm.weight\" sets nothing"},
      {"lr=3", "\"lr=3\" has no pattern"},
      {" ", "\" \" is empty"},
      {"x lr=a", "\"x lr=a\" is malformed: \"lr=a\" must have a number from 0 to 1e+06"},
      {"x lr=-1", "\"x lr=-1\" is malformed: \"lr=-1\" must have a number from 0 to 1e+06"},
      {"x decay=nan", "\"x decay=nan\" is malformed: \"decay=nan\" must have a number from 0 to 1e+06"},
      {"x lr=1 lr=2", "\"x lr=1 lr=2\" lr is given twice"},
      {"x rate=1", "\"x rate=1\" is malformed: \"rate=1\" is no setting"},
  };
  for (const auto& [entry, fault] : cases)
    EXPECT_THAT(
        Errors({fmt::format("optimizer.groups=['* decay=1', '{}']", entry)}),
        ElementsAre(fmt::format("command line: optimizer.groups = [\"* decay=1\", \"{}\"]: {}{}", entry, fault, form)));
  EXPECT_THAT(Errors({"optimizer.groups=['x', 'lr=1 decay=2']"}),
              ElementsAre(AllOf(HasSubstr("\"x\" sets nothing; \"lr=1 decay=2\" has no pattern"), HasSubstr(form))));
}

TEST(Groups, TheFirstPatternThatMatchesCounts) {
  const Deck deck =
      Small({"optimizer.groups=['model.layers.?.*norm* lr=0.5', '*.weight decay=0.25 lr=2e-1', '* lr=0']"});
  const ParameterGroup norm = SettingsOf(deck, "model.layers.3.input_layernorm.weight");
  EXPECT_EQ(norm.lr, 0.5);
  EXPECT_EQ(norm.decay, std::nullopt);
  const ParameterGroup deep = SettingsOf(deck, "model.layers.12.input_layernorm.weight");
  EXPECT_EQ(deep.lr, 0.2) << "? is one character";
  EXPECT_EQ(deep.decay, 0.25);
  EXPECT_EQ(SettingsOf(deck, "transformer.h.0.attn.c_attn.weight[q]").decay, 0.25) << "a part has the whole's name";
  EXPECT_EQ(SettingsOf(deck, "transformer.h.0.attn.c_attn.bias").lr, 0);
  EXPECT_EQ(GroupOf(Small({}), "x"), -1);
  EXPECT_EQ(SettingsOf(Small({}), "x").lr, 1);
}

TEST(Groups, PatternsMatchWholeNames) {
  EXPECT_TRUE(MatchesParameter("a*c", "a.b.c"));
  EXPECT_TRUE(MatchesParameter("**", ""));
  EXPECT_TRUE(MatchesParameter("a?c", "a.c"));
  EXPECT_FALSE(MatchesParameter("a", "a.b"));
  EXPECT_FALSE(MatchesParameter("a?", "a"));
  EXPECT_FALSE(MatchesParameter("[ab]", "a")) << "brackets are characters";
  EXPECT_TRUE(MatchesParameter("w[q]", "w[q]"));
  EXPECT_EQ(EditsToMatch("*nrom.weight", "model.norm.weight"), 2);
}

TEST(Errors, RelationsNameThePlaceThatWasSet) {
  EXPECT_THAT(Errors({"parallel.dp_shard=3"}),
              ElementsAre("small:14: batch.global = 12: must be a multiple of batch.micro * dp_replicate * dp_shard = "
                          "3 * 1 * 3 = 9 (allowed: 9, 18, 27, ...; set batch.global=18)"));
  EXPECT_THAT(
      Errors({"model.dim=50"}),
      ElementsAre("small:8: model.heads = 6: must divide model.dim = 50 (allowed: 1, 5, 25; or set model.head_dim)"));
  EXPECT_THAT(
      Errors({"data.validation=[\"v\"]", "data.validate_every_steps=5", "data.validate_sequences=13"}),
      ElementsAre("command line: data.validate_sequences = 13: must be a multiple of batch.global = 12 (allowed: "
                  "12, 24, 36, ...)"));
}

}  // namespace
}  // namespace espalier
