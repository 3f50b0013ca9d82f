// The formula of a step: exact if its premises hold, and otherwise in the order of the simulator.
#include "tune/formula.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tune/space.hpp"
#include "tune/trial.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

/// Uniform chunks of one layer, without communication, embedding, head and update.
double FormulaOf(ScheduleKind kind, int stages, int chunks, int microbatches, RoleCosts costs,
                 bool interleave = false) {
  LayerProfile profile(kFirstKind + 1);
  profile.forward[kFirstKind].us = costs.f;
  profile.backward[kFirstKind].us = costs.b + costs.w;
  profile.w_us[kFirstKind] = costs.w;
  Layout layout;
  layout.pp = stages;
  layout.schedule = kind;
  layout.chunks = chunks;
  layout.interleave = interleave;
  const std::vector<ChunkParts> parts(static_cast<size_t>(stages * chunks), {{0, 0, 0, 1}, kFirstKind, kFirstKind});
  const DataParallelTimes sync{ByPart<PartSync>(kFirstKind + 1), 0};
  return FormulaUs({profile, layout, PipelineReplay(layout, microbatches), microbatches, parts, sync, {}, true});
}

const std::vector<std::pair<ScheduleKind, int>> kAllSchedules = {{ScheduleKind::k1F1B, 1},
                                                                 {ScheduleKind::kGPipe, 1},
                                                                 {ScheduleKind::kInterleaved, 2},
                                                                 {ScheduleKind::kInterleaved, 3},
                                                                 {ScheduleKind::kZeroBubbleH1, 1},
                                                                 {ScheduleKind::kZeroBubbleV, 2},
                                                                 {ScheduleKind::kZeroBubbleInterleaved, 2},
                                                                 {ScheduleKind::kDualPipeV, 2}};

TEST(Formula, IsTheReplayOfUniformSchedules) {
  for (const RoleCosts costs : {RoleCosts{1, 1, 1}, RoleCosts{2, 2.5, 1.5}})
    for (const int p : {2, 4, 8})
      for (const auto& [kind, chunks] : kAllSchedules)
        for (const int m : {4 * p, 11 * p}) {  // the second is extrapolated
          const double replay = Validate(MakeSchedule(TraitsOf(kind), p, chunks, m), costs).makespan;
          EXPECT_NEAR(FormulaOf(kind, p, chunks, m, costs), replay, 1e-9 * replay) << Name(kind) << " " << p;
        }
}

/// The ends of all stages by relaxation: every job is moved back until nothing it needs is later.
std::vector<double> EndsByRelaxation(const Schedule& schedule, const std::vector<ChunkTime>& chunks, double hop) {
  std::map<std::tuple<int, Role, int>, double> ends;
  std::vector<double> stage_ends(static_cast<size_t>(schedule.stages));
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < schedule.jobs.size(); ++stage) {
      double free = 0;
      for (const Job& job : schedule.jobs[stage]) {
        double begin = free, duration = 0;
        for (const JobPart& part : job.parts) {
          const int from = part.role == Role::kF ? part.chunk - 1 : part.chunk + 1;
          const ChunkTime& time = chunks[static_cast<size_t>(part.chunk)];
          duration += part.role == Role::kF ? time.f : part.role == Role::kB ? time.b : time.w;
          if (part.role == Role::kW || from < 0 || from >= schedule.Chunks()) continue;
          const bool same = schedule.stage_of_chunk[static_cast<size_t>(from)] == static_cast<int>(stage);
          begin = std::max(begin, ends[{from, part.role, part.microbatch}] + (same ? 0 : hop));
        }
        free = begin + duration;
        for (const JobPart& part : job.parts) {
          double& end = ends[{part.chunk, part.role, part.microbatch}];
          moved |= end != free;
          end = free;
        }
      }
      stage_ends[stage] = free;
    }
  }
  return stage_ends;
}

TEST(PipelineReplay, TakesUnequalChunksAndMessages) {
  for (const auto& [kind, chunks] : kAllSchedules)
    for (const bool interleave : {false, true}) {
      Layout layout;
      layout.pp = 4;
      layout.schedule = kind;
      layout.chunks = chunks;
      layout.interleave = interleave;
      std::vector<ChunkTime> times;
      for (int c = 0; c < 4 * chunks; ++c) times.push_back({2.0 + 0.3 * (c % 3), 2.5 + 0.2 * (c % 2), 1.5 + 0.1 * c});
      times.back().f += 1;
      for (const int m : {16, 52}) {
        const std::vector<double> ends = PipelineReplay(layout, m).EndsUs(times, 0.25, std::vector<double>(4));
        const std::vector<double> exact = EndsByRelaxation(ScheduleOf(layout, m), times, 0.25);
        for (size_t stage = 0; stage < 4; ++stage)
          EXPECT_NEAR(ends[stage], exact[stage], (m == 16 ? 1e-9 : 0.01) * exact[stage]) << Name(kind) << " " << stage;
      }
    }
}

TEST(PipelineReplay, HidesCommunicationInJointJobs) {
  Layout layout;
  layout.pp = 2;
  const std::vector<ChunkTime> times(2, {2, 3, 1, 0.5, 0.5});
  const std::vector<double> alternating = PipelineReplay(layout, 8).EndsUs(times, 0, {0, 0});
  layout.interleave = true;
  const std::vector<double> joint = PipelineReplay(layout, 8).EndsUs(times, 0, {0, 0});
  // The second stage, which decides, warms up with one forward, so seven of its eight are in joint jobs.
  EXPECT_NEAR(alternating[0] - joint[0], 7 * (0.5 + 0.5), 1e-9);
}

TEST(PipelineReplay, ReductionsAreLongerUnderAWAlone) {
  const auto longer = [](ScheduleKind kind, int chunks) {
    Layout layout;
    layout.pp = 2;
    layout.schedule = kind;
    layout.chunks = chunks;
    const auto end = [&](double with_b, double alone) {
      const std::vector<ChunkTime> times(2 * static_cast<size_t>(chunks), {2, 3, 1, 0, 0, with_b, alone});
      return PipelineReplay(layout, 6).EndsUs(times, 0, {0, 0})[0];
    };
    return std::pair(end(0.5, 0) - end(0, 0), end(0, 0.25) - end(0, 0));
  };
  // Seven forwards and backwards follow one another on the way through both stages.
  EXPECT_EQ(longer(ScheduleKind::k1F1B, 1), std::pair(7 * 0.5, 0.0));
  const auto [with_b, alone] = longer(ScheduleKind::kZeroBubbleV, 2);
  EXPECT_EQ(with_b, 0) << "every W is a job of its own";
  EXPECT_TRUE(8 * 0.25 <= alone && alone <= 12 * 0.25) << alone << ": six microbatches, two chunks, some idle time";
}

TEST(PipelineReplay, WaitsForTheFirstWeights) {
  Layout layout;
  layout.pp = 2;
  const std::vector<ChunkTime> times(2, {2, 3, 1});
  EXPECT_NEAR(PipelineReplay(layout, 4).EndsUs(times, 0, {5, 0})[0] - 5,
              PipelineReplay(layout, 4).EndsUs(times, 0, {0, 0})[0], 1e-9);
}

TEST(Profile, HasAPartForEachKindOfLayer) {
  const Costs& costs = CostsOf("h100-8x400g");
  const auto profile = [&](const std::vector<std::string>& overrides) {
    const Deck deck = ShortDeck(overrides);
    return ProfileLayers(deck, LayoutOf(deck), &costs);
  };
  const LayerProfile full = profile({}), window = profile({"model.sliding_window=64"}),
                     both = profile({"model.sliding_window=64", "model.full_attention_layers=3"});
  ASSERT_EQ(both.forward.size(), kFirstKind + 2);
  for (const Part part : {kEmbedding, kHead, kFirstKind}) EXPECT_EQ(both.forward[part].us, full.forward[part].us);
  EXPECT_EQ(both.forward[kFirstKind + 1].us, window.forward[kFirstKind].us);
  EXPECT_LT(both.forward[kFirstKind + 1].us, both.forward[kFirstKind].us);
  EXPECT_EQ(both.memory[kFirstKind].kept, full.memory[kFirstKind].kept);
  EXPECT_EQ(both.prepared, full.prepared);
}

/// All figures of a part.
std::vector<double> FiguresOf(const LayerProfile& profile, Part part) {
  std::vector<double> figures = {profile.w_us[part], profile.work[part], profile.forward_work[part],
                                 profile.kernel_work[part], double(profile.instructions[part])};
  for (const PartTime& time : {profile.forward[part], profile.backward[part]})
    figures.insert(figures.end(), {time.us, time.joint_us, time.measured_us});
  const PartMemory& memory = profile.memory[part];
  for (int64_t bytes : {memory.inputs, memory.kept, memory.kept_for_w, memory.extra}) figures.push_back(double(bytes));
  for (const ParameterShape& shape : memory.parameters) figures.push_back(double(shape.Elements()));
  return figures;
}

TEST(Profile, OneProfilerServesAllModesWithAndWithoutTimes) {
  const Costs& costs = CostsOf("h100-8x400g");
  const Deck deck = ShortDeck({"experts.count=8", "experts.per_token=2", "experts.ffn_dim=1024",
                               "experts.first_layer=3", "parallel.ep=2", "parallel.cp=2"});
  SharedProfiles shared;
  LayerProfiler profiler(deck, LayoutOf(deck), shared);
  for (const RecomputeMode mode : {RecomputeMode::kFull, RecomputeMode::kNone, RecomputeMode::kSelective})
    for (const Costs* times : {static_cast<const Costs*>(nullptr), &costs}) {
      Layout layout = LayoutOf(deck);
      layout.recompute = mode;
      const LayerProfile own = ProfileLayers(deck, layout, times), same = profiler.Profile(mode, times);
      for (Part part = 0; part < own.memory.size(); ++part) EXPECT_EQ(FiguresOf(own, part), FiguresOf(same, part));
      EXPECT_EQ(own.prepared, same.prepared);
      EXPECT_EQ(own.step_us_per_element, same.step_us_per_element);
      EXPECT_EQ(own.stream_bytes, same.stream_bytes);
      EXPECT_EQ(own.forward[kFirstKind].us > 0, times != nullptr);
    }
}

TEST(Profile, LayersWithoutExpertsAreSharedByAllEp) {
  const Costs& costs = CostsOf("h100-8x400g");
  const Deck deck = ShortDeck(
      {"experts.count=8", "experts.per_token=2", "experts.ffn_dim=1024", "experts.first_layer=3", "parallel.tp=2"});
  SharedProfiles shared;
  std::vector<LayerProfile> profiles;
  for (const int ep : {1, 2, 8}) {
    Layout layout = LayoutOf(deck);
    layout.ep = ep;
    profiles.push_back(LayerProfiler(deck, layout, shared).Profile(layout.recompute, &costs));
    const LayerProfile own = ProfileLayers(deck, layout, &costs);
    for (const Part part : {kFirstKind, kFirstKind + 1})
      EXPECT_EQ(FiguresOf(own, part), FiguresOf(profiles.back(), part)) << ep;
    EXPECT_EQ(FiguresOf(profiles.back(), kFirstKind), FiguresOf(profiles[0], kFirstKind)) << ep;
  }
  EXPECT_NE(profiles[0].forward[kFirstKind + 1].us, profiles[2].forward[kFirstKind + 1].us) << "experts";
}

TEST(Profile, MessagesSlowTheKernelsBesideThemDown) {
  const auto forward_us = [&](const std::vector<std::string>& overrides, double slowdown) {
    Cluster cluster = CostsOf("h100-8x400g").cluster();
    cluster.node_slowdown = slowdown;
    const Costs costs(cluster);
    const Deck deck = ShortDeck(overrides);
    return ProfileLayers(deck, LayoutOf(deck), &costs).forward[kFirstKind];
  };
  const std::vector<std::string> strips = {"parallel.tp=2", "batch.micro=2", "overlap.tensor_strips=2"};
  const PartTime free = forward_us(strips, 0), slow = forward_us(strips, 0.2), slower = forward_us(strips, 0.4);
  EXPECT_LT(free.us, slow.us);
  EXPECT_LT(slow.us, slower.us);
  EXPECT_LT(slower.us, free.us / (1 - 0.4)) << "not all of its kernels run beside messages";
  EXPECT_LT(slow.joint_us, free.joint_us) << "what a joint job hides slows it down";
  EXPECT_EQ(forward_us({}, 0.4).us, forward_us({}, 0).us) << "no messages";
}

TEST(Parts, AreCountedByChunk) {
  const std::vector<ChunkParts> chunks =
      PartsOf(ShortDeck({"model.sliding_window=64", "model.full_attention_layers=3"}).model, {2, 2, 12});
  EXPECT_EQ(chunks[0].count, (ByPart<int64_t>{1, 0, 0, 2, 0}));
  EXPECT_EQ(chunks[1].count, (ByPart<int64_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(chunks[2].count, (ByPart<int64_t>{0, 1, 0, 0, 12}));
  EXPECT_EQ(chunks[1].first, kFirstKind);
  EXPECT_EQ(chunks[1].last, kFirstKind + 1);
  const std::vector<ChunkParts> further = PartsOf(ShortDeck({"model.mtp_layers=2"}).model, {4, 12});
  EXPECT_EQ(further[1].count, (ByPart<int64_t>{0, 1, 2, 12}));
  EXPECT_EQ(further[1].Layers(), 12);
  EXPECT_EQ(further[1].last, kFurther);
}

struct Scores {
  std::vector<Scored> fitting;  ///< ascending by formula
  std::vector<double> formula_us, simulated_us;
};

/// Scores all layouts that fit, and simulates every `stride`-th of them.
Scores ScoreAndSimulate(const Deck& deck, int ranks, const Costs& costs, const std::vector<std::string>& keys,
                        size_t most) {
  const FixedKeys fixed(keys, deck);
  const Cluster::Device& device = costs.cluster().compute;
  const SearchContext context{deck, ranks, costs, costs, device.memory_bytes - device.reserved_bytes, fixed};
  Shared shared;
  Scores scores;
  SpaceCounts counts;
  for (const Group& group : GroupsOf(context).groups) {
    Scorer scorer(context, group, shared);
    std::vector<Scored> fitting;
    scorer.ScoreAll(fitting, counts);
    for (Scored& scored : fitting) {
      scorer.Time(scored);
      EXPECT_LE(scored.least_us, scored.us * (1 + 1e-9)) << ToString(scored.layout);
    }
    scores.fitting.insert(scores.fitting.end(), fitting.begin(), fitting.end());
  }
  std::ranges::sort(scores.fitting, [](const Scored& a, const Scored& b) {
    return std::tie(a.us, a.layout) < std::tie(b.us, b.layout);
  });
  const size_t stride = std::max<size_t>(1, scores.fitting.size() / most);
  for (size_t i = 0; i < scores.fitting.size(); i += stride) {
    const Trial trial = Try(WithLayout(deck, scores.fitting[i].layout, {}), ranks, costs, context.memory_bytes);
    if (!trial.fits) continue;
    scores.formula_us.push_back(scores.fitting[i].us);
    scores.simulated_us.push_back(trial.step_us);
  }
  return scores;
}

TEST(Formula, OrdersLayoutsAsTheSimulatorDoes) {
  for (const auto& [cluster, ranks] : {std::pair("h100-8x400g", 16), std::pair("a100-8x200g", 32)}) {
    const Scores scores = ScoreAndSimulate(ShortDeck(), ranks, CostsOf(cluster), {}, 150);
    ASSERT_GT(scores.formula_us.size(), 30u);
    const double correlation = RankCorrelation(scores.formula_us, scores.simulated_us);
    std::printf("%s, %d ranks: rank correlation %.3f of %zu layouts\n", cluster, ranks, correlation,
                scores.formula_us.size());
    EXPECT_GE(correlation, 0.9) << cluster;
  }
}

// A W that is a job of its own has little to hide reductions under, and the next job's gathers queue after them.
TEST(Formula, FollowsReductionsUnderADeferredW) {
  const std::vector<std::string> keys = {"parallel.tp=1",
                                         "parallel.cp=1",
                                         "parallel.pp=2",
                                         "parallel.dp_replicate=1",
                                         "parallel.dp_shard=8",
                                         "parallel.zero=3",
                                         "batch.micro=1",
                                         "parallel.reduce=microbatch",
                                         "recompute.mode=none",
                                         "overlap.prefetch=1",
                                         "model.dim=4096",
                                         "model.ffn_dim=14336",
                                         "model.heads=32",
                                         "batch.global=64",
                                         "model.layers=32",
                                         "pipeline.schedule=zb-interleaved",
                                         "recompute.regather=always"};
  std::vector<std::string> fixed;
  for (const std::string& key : keys)
    if (!key.starts_with("model") && !key.starts_with("batch.global")) fixed.push_back(key.substr(0, key.find('=')));
  const Scores scores = ScoreAndSimulate(ShortDeck(keys), 16, CostsOf("h100-8x400g"), fixed, 100);
  ASSERT_GT(scores.formula_us.size(), 4u) << "numbers of chunks";
  for (size_t i = 0; i < scores.formula_us.size(); ++i)
    EXPECT_NEAR(scores.formula_us[i] / scores.simulated_us[i], 1, 0.02) << i;
}

TEST(Groups, LeaveOutExpertsAcrossNodes) {
  const Deck deck = ShortDeck({"experts.count=16", "experts.per_token=2", "experts.ffn_dim=1024"});
  const FixedKeys fixed({}, deck);
  const Costs costs = CostsOf("h100-8x400g");
  const Groups found = GroupsOf({deck, 64, costs, costs, int64_t{1} << 40, fixed});
  const auto has = [&](int tp, int cp, int ep) {
    return std::ranges::any_of(found.groups, [&](const Group& g) { return g.tp == tp && g.cp == cp && g.ep == ep; });
  };
  EXPECT_TRUE(found.ep_crosses_nodes);
  EXPECT_TRUE(has(1, 1, 8));
  EXPECT_TRUE(has(2, 1, 8));  // tp and four of dp_shard
  EXPECT_TRUE(has(2, 4, 8));  // tp and cp
  EXPECT_TRUE(has(1, 4, 2));  // pairs of dp_shard, four ranks apart
  EXPECT_FALSE(has(1, 1, 16));
  EXPECT_FALSE(has(2, 4, 4));  // tp and pairs of dp_shard, eight ranks apart
}

// Ranks that share out the state of an expert are further apart than others, and have fewer ports of a node.
TEST(Formula, FollowsTheMessagesOfExperts) {
  for (const std::vector<std::string>& degrees :
       {std::vector<std::string>{"parallel.tp=1", "parallel.cp=1", "parallel.ep=4", "parallel.dp_shard=64"},
        std::vector<std::string>{"parallel.tp=2", "parallel.cp=2", "parallel.ep=4", "parallel.dp_shard=16"},
        std::vector<std::string>{"parallel.tp=2", "parallel.cp=1", "parallel.ep=8", "parallel.dp_shard=32"}}) {
    std::vector<std::string> keys = {"parallel.pp=1",
                                     "parallel.dp_replicate=1",
                                     "parallel.zero=3",
                                     "parallel.reduce=microbatch",
                                     "recompute.mode=full",
                                     "parallel.context=all_gather",
                                     "overlap.prefetch=1",
                                     "recompute.regather=always",
                                     "overlap.interleave=false",
                                     "model.dim=2880",
                                     "model.heads=64",
                                     "model.kv_heads=8",
                                     "model.head_dim=64",
                                     "model.layers=12",
                                     "model.seq_len=4096",
                                     "batch.global=1024",
                                     "experts.count=128",
                                     "experts.per_token=4",
                                     "experts.ffn_dim=2880"};
    keys.insert(keys.end(), degrees.begin(), degrees.end());
    std::vector<std::string> fixed;
    for (const std::string& key : keys)
      if (!key.starts_with("model") && !key.starts_with("experts") && !key.starts_with("batch.global"))
        fixed.push_back(key.substr(0, key.find('=')));
    const Scores scores = ScoreAndSimulate(ShortDeck(keys), 64, CostsOf("h100-8x400g"), fixed, 100);
    ASSERT_GT(scores.formula_us.size(), 1u) << "microbatches";
    for (size_t i = 0; i < scores.formula_us.size(); ++i)
      EXPECT_NEAR(scores.formula_us[i] / scores.simulated_us[i], 1, 0.05) << i << testing::PrintToString(degrees);
  }
}

TEST(Formula, HasTheSimulatedBestAmongItsFirstFifty) {
  const std::vector<std::pair<Deck, int>> decks = {{ShortDeck({"batch.global=32", "parallel.dp_shard=8"}), 8},
                                                   {ShortDeck({"model.layers=8", "model.seq_len=8192"}), 16},
                                                   {ShortDeck({"model.vocab=128256", "batch.global=16"}), 16}};
  // Few enough layouts that every one can be simulated.
  const std::vector<std::string> fixed = {"parallel.dp_replicate", "parallel.reduce", "parallel.zero",
                                          "recompute.regather",    "batch.micro",     "parallel.context",
                                          "recompute.mode"};
  for (const auto& [deck, ranks] : decks) {
    const Scores scores = ScoreAndSimulate(deck, ranks, CostsOf("h100-8x400g"), fixed, 1000);
    ASSERT_GT(scores.simulated_us.size(), 20u);
    const auto best = std::ranges::min_element(scores.simulated_us) - scores.simulated_us.begin();
    std::printf("%d ranks: the simulated best of %zu is number %td by formula\n", ranks, scores.simulated_us.size(),
                best + 1);
    EXPECT_LT(best, 50);
  }
}

}  // namespace
}  // namespace espalier
