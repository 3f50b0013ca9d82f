// Blends: exact counts at every position, the same turns from anywhere.
#include "data/blend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "data_testing.hpp"
#include "espalier/data/batch_loader.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Blend, WeightsBecomeWholeNumbers) {
  EXPECT_THAT(WholeWeights({0.7, 0.2, 0.1}), ElementsAre(7, 2, 1));
  EXPECT_THAT(WholeWeights({1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(WholeWeights({2.5e-3, 1}), ElementsAre(1, 400));
  EXPECT_THAT(WholeWeights({1e300, 3e300}), ElementsAre(1, 3));
  EXPECT_THAT(WholeWeights({1234567890, 987654321}), ElementsAre(137174210, 109739369));
  const std::vector<int64_t> many = WholeWeights({0.30000000000000004, 0.7});  // too many digits for exact numbers
  EXPECT_NEAR(static_cast<double>(many[0]) / static_cast<double>(many[1]), 3.0 / 7, 1e-15);
  const std::vector<int64_t> tiny = WholeWeights({1e-30, 1});
  EXPECT_EQ(tiny[0], 1);
  EXPECT_GT(tiny[1], int64_t{1} << 51);
}

/// After every number of samples, every source is within one sample of its share, and its positions rise by one.
void ExpectFair(const std::vector<int64_t>& weights, int64_t samples) {
  Turns turns(weights);
  int64_t total = 0;
  for (const int64_t weight : weights) total += weight;
  std::vector<int64_t> taken(weights.size());
  for (int64_t n = 0; n < samples; ++n) {
    const Turns::Turn turn = turns.At(n);
    ASSERT_EQ(turn.position, taken.at(turn.source)) << n;
    ++taken[turn.source];
    for (size_t i = 0; i < weights.size(); ++i) {
      const __int128 lag = static_cast<__int128>(n + 1) * weights[i] - static_cast<__int128>(taken[i]) * total;
      ASSERT_TRUE(lag < total && lag > -total) << "source " << i << " after " << n + 1;
    }
  }
}

TEST(Blend, EverySourceIsWithinOneSampleOfItsShareAtEveryPosition) {
  ExpectFair({1}, 10);
  ExpectFair({7, 2, 1}, 1000);
  ExpectFair({1, 1, 1, 1, 1, 1, 1}, 100);
  ExpectFair({1, 1, 1, 97}, 1000);
  ExpectFair({7500000000000001, 17500000000000000}, 30000);
  ExpectFair({1, (int64_t{1} << 53) - 1}, 1000);
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> weights;
    const auto sources = 2 + random() % 9;
    for (size_t i = 0; i < sources; ++i)
      weights.push_back(1 + static_cast<int64_t>(random() % (trial % 2 ? 20 : 100000)));
    ExpectFair(weights, 2000);
  }
}

TEST(Blend, TurnsDoNotDependOnWhatWasAskedBefore) {
  for (const std::vector<int64_t>& weights : std::vector<std::vector<int64_t>>{{7, 2, 1}, {12345, 54321, 777}}) {
    std::vector<Turns::Turn> all;
    Turns rising(weights);
    for (int64_t n = 0; n < 3000; ++n) all.push_back(rising.At(n));
    std::mt19937_64 random(3);
    Turns jumping(weights);
    for (int i = 0; i < 500; ++i) {
      const auto n = random() % all.size();
      const Turns::Turn turn = jumping.At(static_cast<int64_t>(n));
      ASSERT_EQ(turn.source, all[n].source) << n;
      ASSERT_EQ(turn.position, all[n].position) << n;
    }
  }
  // A billion positions later, a round of few turns costs nothing.
  Turns far({7, 2, 1});
  int64_t first = 0;
  for (int64_t n = 2'000'000'000; n < 2'000'000'010; ++n) first += far.At(n).source == 0;
  EXPECT_EQ(first, 7);
  EXPECT_EQ(Turns({7, 2, 1}).At(2'000'000'000).position / 100'000'000, 14);
}

class BlendTest : public DataTest {
 protected:
  std::unique_ptr<TokenSource> Open(const std::vector<double>& weights) {
    DataSettings settings{DataFormat::kText, {Path("a"), Path("b*"), Path("c")}, 4, 256};
    settings.weights = weights;
    return OpenTokenSource(settings);
  }
  void SetUp() override {
    DataTest::SetUp();
    Write("a", std::string(4 * 11 + 1, 'a'));
    Write("b1", std::string(50, 'b'));
    Write("b2", std::string(50, 'b'));
    Write("c", std::string(4 * 3 + 1, 'c'));
  }
};

TEST_F(BlendTest, SourcesRepeatByThemselvesAndHaveOrdersOfTheirOwn) {
  const auto blend = Open({0.5, 0.3, 0.2});
  EXPECT_EQ(blend->files().size(), 4u);
  EXPECT_EQ(blend->samples(), 11 + 25 + 3);
  const std::vector<BlendPart> parts = blend->parts();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].samples, 25);
  EXPECT_NEAR(parts[2].share, 0.2, 1e-15);
  std::map<int32_t, int> counts;
  Sample sample;
  for (int64_t n = 0; n < 1000; ++n) {
    blend->ReadAt(n, {7, Order::kShuffled}, sample);
    ++counts[sample.tokens[2] == 0 ? 'b' : sample.tokens[2]];
  }
  EXPECT_THAT(counts, ElementsAre(testing::Pair('a', 500), testing::Pair('b', 300), testing::Pair('c', 200)));
}

TEST_F(BlendTest, ABlendOfOneSourceKeepsItsSamples) {
  std::string text;
  for (int i = 0; i < 41; ++i) text += static_cast<char>(' ' + i);
  Write("one", text);
  DataSettings settings{DataFormat::kText, {Path("one")}, 4, 256};
  settings.weights = {3};
  const auto blend = OpenTokenSource(settings);
  std::vector<int32_t> seen;
  Sample sample;
  for (int64_t n = 0; n < 10; ++n) {
    blend->ReadAt(n, {7, Order::kShuffled}, sample);
    seen.push_back(sample.tokens[0]);
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAre(32, 36, 40, 44, 48, 52, 56, 60, 64, 68)) << "an epoch has each once";
  EXPECT_FALSE(std::ranges::is_sorted(seen));
}

TEST_F(BlendTest, EveryLayoutSeesTheSameStream) {
  const auto ids_of = [&](int64_t microbatches, int64_t rows, int64_t ranks, int64_t step) {
    std::vector<std::vector<int32_t>> found(static_cast<size_t>(microbatches));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto blend = Open({0.37, 0.21, 0.42});
      Batch batch;
      const int64_t mine = rows / ranks;
      LoadBatch(*blend, {9}, {microbatches, rows, {rank * mine, (rank + 1) * mine}, AllPositions(4)}, step, batch);
      for (size_t j = 0; j < found.size(); ++j)
        found[j].insert(found[j].end(), batch.microbatches[j].ids.begin(), batch.microbatches[j].ids.end());
    }
    std::vector<int32_t> ids;
    for (const auto& microbatch : found) ids.insert(ids.end(), microbatch.begin(), microbatch.end());
    return ids;
  };
  for (const int64_t step : {0, 5, 11}) {
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(2, 6, 3, step));
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(1, 12, 4, step));
  }
}

TEST_F(BlendTest, TheFingerprintTellsSourcesAndWeights) {
  const uint64_t print = Open({0.5, 0.3, 0.2})->Fingerprint();
  EXPECT_EQ(Open({5, 3, 2})->Fingerprint(), print);
  EXPECT_NE(Open({5, 2, 3})->Fingerprint(), print);
  Write("c", std::string(4 * 3 + 1, 'd'));
  EXPECT_NE(Open({5, 3, 2})->Fingerprint(), print);
}

TEST_F(BlendTest, EverySourceThatCannotBeReadIsNamed) {
  fs::remove(Path("a"));
  Write("c", "few");
  const std::string message = Message([&] { Open({5, 3, 2}); });
  EXPECT_THAT(message, HasSubstr("a: cannot read"));
  EXPECT_THAT(message, HasSubstr("c: 3 tokens in all"));
}

}  // namespace
}  // namespace espalier
