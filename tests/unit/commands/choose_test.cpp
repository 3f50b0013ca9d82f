// Token sampling of `espalier sample`: computed by hand for four tokens.
#include "commands/sample/choose.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace espalier {
namespace {

/// Logits of the probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
std::vector<float> Logits() {
  std::vector<float> logits;
  for (double p : {0.1, 0.4, 0.2, 0.3}) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// The tokens drawn by 0.00, 0.01, ...: the number of each among a hundred.
std::vector<int> Shares(const Sampling& sampling) {
  std::vector<int> shares(4);
  for (int i = 0; i < 100; ++i) ++shares[static_cast<size_t>(Choose(Logits(), sampling, (i + 0.5) / 100))];
  return shares;
}

TEST(Choose, TheLikeliestWithoutTemperature) {
  EXPECT_EQ(Choose(Logits(), {}, 0.99), 1);
  EXPECT_EQ(Choose(std::vector<float>{0, 5, 5}, {}, 0.99), 1);  // the first of equal logits
}

TEST(Choose, AsOftenAsProbable) { EXPECT_EQ(Shares({.temperature = 1}), (std::vector{10, 40, 20, 30})); }

TEST(Choose, TopKKeepsTheLikeliest) {
  EXPECT_EQ(Shares({.temperature = 1, .top_k = 2}), (std::vector{0, 57, 0, 43}));  // 4 to 3
  EXPECT_EQ(Shares({.temperature = 1, .top_k = 1}), (std::vector{0, 100, 0, 0}));
  EXPECT_EQ(Shares({.temperature = 1, .top_k = 9}), (std::vector{10, 40, 20, 30}));
}

TEST(Choose, TopPKeepsThoseThatReachIt) {
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.3}), (std::vector{0, 100, 0, 0}));
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.65}), (std::vector{0, 57, 0, 43}));
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.85}), (std::vector{0, 44, 22, 34}));  // 4, 2 and 3 of 9
  EXPECT_EQ(Shares({.temperature = 1, .top_k = 2, .top_p = 0.5}), (std::vector{0, 100, 0, 0}));
}

TEST(Choose, TemperatureSharpens) {
  EXPECT_EQ(Shares({.temperature = 0.01}), (std::vector{0, 100, 0, 0}));
  EXPECT_EQ(Shares({.temperature = 1e6}), (std::vector{25, 25, 25, 25}));
}

}  // namespace
}  // namespace espalier
