// The lower bound on memory never exceeds the peak of the compiled programs, and is close to it for large models.
#include "tune/memory_bound.hpp"

#include <gtest/gtest.h>

#include "espalier/model/model.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "test_decks.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

struct Bounds {
  int64_t least = 0, peak = 0;
};

Bounds BoundsOf(const Deck& deck) {
  const Layout layout = LayoutOf(deck);
  const Compilation c = Compile(deck, layout.Ranks(), Purpose::kTrain);
  Bounds bounds;
  for (int stage = 0; stage < layout.pp; ++stage) {
    Coordinate coordinate{};
    coordinate[Axis::kPp] = stage;
    bounds.peak = std::max(bounds.peak, MakeProgram(c, coordinate).arena_bytes);
  }
  Layout one = layout;
  one.micro = 1;
  const LayerProfile profile = ProfileLayers(deck, one, nullptr);
  const Split split = SplitLayers(deck, c.schedule.Chunks());
  bounds.least =
      LeastBytes({profile, StatesOf(profile, layout), FlightsOf(c.schedule),
                  PartsOf(deck.model, split.LayersOfChunks()), layout.micro, c.batch.microbatches, layout.prefetch});
  return bounds;
}

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int Of(std::initializer_list<int> values) { return values.begin()[random_() % values.size()]; }

  Layout Random() {
    Layout l;
    l.pp = Of({1, 1, 2, 3, 4});
    l.tp = Of({1, 2, 4});
    l.cp = Of({1, 1, 2});
    l.dp_shard = Of({1, 2, 3, 4});
    l.dp_replicate = Of({1, 1, 2});
    l.context = static_cast<ContextMode>(Of({0, 1, 2}));
    l.schedule = static_cast<ScheduleKind>(Of({0, 1, 2, 3, 4, 5}));
    l.chunks = l.schedule == ScheduleKind::kInterleaved ? Of({2, 3}) : TraitsOf(l.schedule).min_chunks;
    l.micro = Of({1, 2});
    l.recompute = static_cast<RecomputeMode>(Of({0, 1, 2}));
    l.zero = Of({1, 2, 3});
    l.reduce = static_cast<ReduceFrequency>(Of({0, 1, 2}));
    l.regather = static_cast<Regather>(Of({0, 1, 2}));
    l.prefetch = Of({0, 1, 2});
    l.interleave = Of({0, 1}) != 0;
    l.ep = Of({1, 2, 4});
    return l;
  }

 private:
  std::mt19937 random_;
};

/// Small decks of either family, with sizes that tp and dp_shard may not divide.
Deck RandomDeck(Draw& draw) {
  std::vector<std::string> overrides = {fmt::format("model.layers={}", draw.Of({4, 7, 12})),
                                        fmt::format("model.dim={}", draw.Of({48, 64, 96})),
                                        fmt::format("model.ffn_dim={}", draw.Of({88, 130, 256})),
                                        fmt::format("model.vocab={}", draw.Of({260, 1000})),
                                        fmt::format("model.seq_len={}", draw.Of({24, 32})),
                                        fmt::format("batch.global={}", draw.Of({24, 24, 12})),
                                        fmt::format("precision.compute={}", draw.Of({0, 1}) ? "bf16" : "fp32"),
                                        fmt::format("parallel.reduce_dtype={}", draw.Of({0, 0, 1}) ? "bf16" : "fp32"),
                                        fmt::format("parallel.regather_group={}", draw.Of({0, 2, 3})),
                                        fmt::format("run.device={}", draw.Of({0, 1}) ? "cuda" : "cpu")};
  if (draw.Of({0, 1, 1}) == 0)
    overrides.insert(overrides.end(), {"model.family=gpt2", "model.kv_heads=4"});
  else if (draw.Of({0, 0, 1}) == 1)
    overrides.insert(overrides.end(), {"model.sliding_window=10", "model.full_attention_layers=2"});
  if (draw.Of({0, 0, 1}) == 1) overrides.push_back("model.tie_embeddings=true");
  if (draw.Of({0, 0, 1}) == 1) overrides.push_back("precision.moments=bf16");
  if (std::ranges::count(overrides, "model.family=gpt2") == 0 && draw.Of({0, 0, 1}) == 1)
    overrides.push_back(fmt::format("model.mtp_layers={}", draw.Of({1, 2})));
  if (std::ranges::count(overrides, "model.family=gpt2") == 0 && draw.Of({0, 1}) == 1)
    overrides.insert(overrides.end(), {"experts.count=8", "experts.per_token=2", "experts.ffn_dim=40",
                                       fmt::format("experts.first_layer={}", draw.Of({0, 2}))});
  return SmallDeck(overrides);
}

TEST(MemoryBound, IsAtMostThePeakOfRandomDecks) {
  Draw draw(20261122);
  int compiled = 0;
  for (int i = 0; i < 2500 && compiled < 150; ++i) {
    Deck deck = RandomDeck(draw);
    Layout layout = draw.Random();
    if (deck.model.experts.count == 0) layout.ep = 1;
    SetLayout(deck, layout);
    if (!IsValid(deck, layout.Ranks())) continue;
    const Bounds bounds = BoundsOf(deck);
    EXPECT_LE(bounds.least, bounds.peak) << ToString(layout) << ", zero " << layout.zero;
    EXPECT_GT(bounds.least, 0);
    ++compiled;
  }
  EXPECT_EQ(compiled, 150);
}

TEST(MemoryBound, IsAtMostThePeakOfLongSequences) {
  Draw draw(7);
  int compiled = 0;
  for (int i = 0; i < 500 && compiled < 30; ++i) {
    Deck deck = ShortDeck({"model.layers=6"});
    Layout layout = draw.Random();
    layout.ep = 1;
    SetLayout(deck, layout);
    if (!IsValid(deck, layout.Ranks())) continue;
    const Bounds bounds = BoundsOf(deck);
    EXPECT_LE(bounds.least, bounds.peak) << ToString(layout) << ", zero " << layout.zero;
    ++compiled;
  }
  EXPECT_EQ(compiled, 30);
}

TEST(MemoryBound, IsWithinTenPercentOfThePeakOfLargeModels) {
  const char *kOnce = "parallel.reduce=step", *kKept = "recompute.mode=none";
  const std::vector<std::pair<const char*, std::vector<std::string>>> layouts = {
      {"8b", {"parallel.dp_shard=64", kOnce}},
      {"8b", {"parallel.dp_shard=64"}},
      {"8b", {"parallel.dp_shard=8", "parallel.tp=8", kOnce}},
      {"8b", {"parallel.dp_shard=8", "parallel.tp=8", "precision.moments=bf16", kOnce}},
      {"8b", {"parallel.dp_shard=32", "parallel.pp=2", kOnce}},
      {"8b", {"parallel.dp_shard=16", "parallel.tp=2", "parallel.pp=4", "recompute.mode=selective", kOnce}},
      {"8b", {"parallel.dp_shard=16", "parallel.cp=2", "parallel.pp=2", "batch.micro=2", kOnce}},
      {"8b", {"parallel.dp_shard=32", "parallel.pp=2", "pipeline.schedule=interleaved", "pipeline.chunks=4", kOnce}},
      {"8b", {"parallel.dp_shard=32", "parallel.pp=2", "pipeline.schedule=zbv", kOnce}},
      {"70b", {"parallel.dp_shard=128"}},
      {"70b", {"parallel.dp_shard=16", "parallel.pp=8", "parallel.tp=8", kKept}},
      {"70b",
       {"parallel.dp_shard=16", "parallel.pp=8", "parallel.tp=8", kKept, "pipeline.schedule=interleaved",
        "pipeline.chunks=2"}},
  };
  std::vector<double> shares;
  for (const auto& [name, overrides] : layouts) {
    const Bounds bounds = BoundsOf(LlamaDeck(name, overrides));
    shares.push_back(static_cast<double>(bounds.least) / static_cast<double>(bounds.peak));
    EXPECT_LE(shares.back(), 1) << name << testing::PrintToString(overrides);
    EXPECT_GT(shares.back(), 0.75) << name << testing::PrintToString(overrides);
  }
  std::ranges::sort(shares);
  EXPECT_GT(shares[shares.size() / 2], 0.9) << testing::PrintToString(shares);
}

TEST(InFlight, AJointJobBeginsWithItsBackward) {
  for (const int m : {5, 9}) {
    const std::vector<StageFlights> flights = FlightsOf(OneFOneB(4, m, SteadyState::kJoint));
    for (int stage = 0; stage < 4; ++stage)
      EXPECT_EQ(flights[static_cast<size_t>(stage)].moments[0].before_b[0], std::min(m, 2 * (4 - stage) - 1));
  }
}

TEST(InFlight, AreTheCountsOfTheSchedules) {
  for (const int m : {3, 8}) {
    const std::vector<StageFlights> one_f_one_b = FlightsOf(OneFOneB(4, m)), gpipe = FlightsOf(GPipe(4, m));
    for (int stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(one_f_one_b[static_cast<size_t>(stage)].moments[0].before_b[0], std::min(m, 4 - stage));
      EXPECT_EQ(gpipe[static_cast<size_t>(stage)].moments[0].before_b[0], m);
    }
    // Every stage keeps up to p microbatches: before B or before W.
    for (const StageFlights& flights : FlightsOf(ZeroBubbleH1(4, m)))
      EXPECT_LE(flights.moments[0].before_b[0] + flights.moments[0].before_w[0], 4);
  }
}

}  // namespace
}  // namespace espalier
