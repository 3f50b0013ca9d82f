// A smaller model predicts how far the peak of a layout is above its lower bound.
#include "tune/memory_surplus.hpp"

#include <gtest/gtest.h>

#include "source_tree.hpp"
#include "tune/space.hpp"
#include "tune/trial.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

int64_t ExpectedBytes(const Deck& deck, int ranks) {
  const FixedKeys fixed({}, deck);
  const Costs costs = CostsOf("h100-8x400g");
  const SearchContext context{deck, ranks, costs, costs, int64_t{1} << 40, fixed};
  const Layout layout = LayoutOf(deck);
  Shared shared;
  Scorer scorer(context, {layout.tp, layout.cp, layout.context, layout.ep}, shared);
  Scored scored = scorer.Score(layout, {});
  scorer.ExpectPeak(scored);
  EXPECT_GT(scored.expected_bytes, scored.least_bytes);
  return scored.expected_bytes;
}

TEST(MemorySurplus, PredictsPeaks) {
  const std::vector<std::string> plain = {
      "run.device=cuda", "parallel.pp=1",     "parallel.dp_replicate=1",    "parallel.tp=1",
      "parallel.cp=1",   "parallel.zero=3",   "parallel.reduce=microbatch", "pipeline.schedule=1f1b",
      "batch.micro=1",   "pipeline.chunks=1", "parallel.context=all_gather"};
  const std::vector<std::tuple<const char*, int, std::vector<std::string>>> layouts = {
      {"llama/70b", 256, {"parallel.dp_shard=128", "parallel.cp=2", "recompute.mode=selective"}},
      {"llama/70b", 256, {"parallel.dp_shard=128", "parallel.tp=2", "recompute.mode=full", "overlap.interleave=true"}},
      {"gpt-oss/120b", 128, {"parallel.dp_shard=128", "parallel.ep=4", "batch.micro=2", "recompute.mode=selective"}},
      {"gpt-oss/120b", 128, {"parallel.dp_shard=32", "parallel.tp=2", "parallel.cp=2", "parallel.ep=4"}},
      {"glm/glm-4.5-air", 256, {"parallel.dp_shard=256", "parallel.ep=4", "overlap.interleave=true"}},
      {"gpt-oss/120b",
       128,
       {"parallel.dp_shard=16", "parallel.pp=8", "parallel.ep=4", "pipeline.schedule=zbv", "pipeline.chunks=2",
        "parallel.zero=1", "parallel.reduce=step", "recompute.mode=selective"}},
  };
  for (const auto& [name, ranks, overrides] : layouts) {
    std::vector<std::string> keys = plain;
    keys.insert(keys.end(), overrides.begin(), overrides.end());
    const Deck deck = LoadDeck(InTree("inputs/") + name + ".toml", keys).deck;
    const auto peak = static_cast<double>(PeakBytes(deck, ranks));
    EXPECT_NEAR(static_cast<double>(ExpectedBytes(deck, ranks)) / peak, 1, 0.12)
        << name << testing::PrintToString(overrides);
  }
}

}  // namespace
}  // namespace espalier
