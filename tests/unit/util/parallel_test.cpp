// Loops on several threads.
#include "espalier/util/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace espalier {
namespace {

TEST(ParallelFor, RunsEveryIterationOnce) {
  for (int threads : {0, 1, 2, 7})
    for (size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}}) {
      std::vector<int> runs(count, 0);
      ParallelFor(
          count, [&](size_t i) { ++runs[i]; }, threads);
      EXPECT_EQ(runs, std::vector<int>(count, 1)) << threads << " threads";
    }
}

TEST(ParallelFor, ThrowsTheErrorOfTheLowestIteration) {
  for (int threads : {1, 2, 7}) {
    std::atomic<int> runs = 0;
    try {
      ParallelFor(
          100,
          [&](size_t i) {
            ++runs;
            if (i % 30 == 20) throw std::runtime_error(std::to_string(i));
          },
          threads);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "20") << threads << " threads";
    }
    EXPECT_EQ(runs, 100) << "all iterations have ended";
  }
}

}  // namespace
}  // namespace espalier
