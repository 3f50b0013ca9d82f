// Best fit against a plain list of holes.
#include "program/heap.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace espalier {
namespace {

constexpr int64_t kUnit = kAlignment;

/// A flag for each unit of memory; every query is answered by a scan.
class PlainHeap {
 public:
  int64_t Take(int64_t units) {
    size_t best = free_.size(), least = free_.size() + 1;
    for (size_t begin = 0; begin < free_.size();) {
      size_t end = begin;
      while (end < free_.size() && free_[end]) ++end;
      if (end - begin >= static_cast<size_t>(units) && end - begin < least) best = begin, least = end - begin;
      begin = end + 1;
    }
    if (best == free_.size()) {
      while (best > 0 && free_[best - 1]) --best;
      free_.resize(best + static_cast<size_t>(units));
    }
    Set(best, units, false);
    return static_cast<int64_t>(best);
  }
  void Give(int64_t at, int64_t units) { Set(static_cast<size_t>(at), units, true); }
  int64_t peak() const { return std::ssize(free_); }

 private:
  void Set(size_t at, int64_t units, bool free) {
    std::fill_n(free_.begin() + static_cast<ptrdiff_t>(at), units, free);
  }

  std::vector<bool> free_;
};

TEST(Heap, TakesTheSmallestHoleThatFitsAndTheLowestOfEqualOnes) {
  Heap heap(0);
  std::vector<int64_t> at;
  for (int64_t units : {2, 1, 3, 1, 2, 1}) at.push_back(heap.Take(units * kUnit));
  EXPECT_EQ(at, (std::vector<int64_t>{0, 2 * kUnit, 3 * kUnit, 6 * kUnit, 7 * kUnit, 9 * kUnit}));
  for (size_t i : {0, 2, 4}) heap.Give(at[i], (i == 2 ? 3 : 2) * kUnit);
  EXPECT_EQ(heap.Take(2 * kUnit), at[0]) << "of two holes of this size the lower one";
  EXPECT_EQ(heap.Take(2 * kUnit), at[4]) << "the other one, not a part of a larger hole";
  EXPECT_EQ(heap.Take(2 * kUnit), at[2]);
  EXPECT_EQ(heap.Take(2 * kUnit), 10 * kUnit) << "one unit is left over: past the top";
  EXPECT_EQ(heap.peak(), 12 * kUnit);
}

TEST(Heap, HolesThatTouchBecomeOne) {
  Heap heap(0);
  for (int i = 0; i < 4; ++i) heap.Take(kUnit);
  heap.Give(0, kUnit);
  heap.Give(2 * kUnit, kUnit);
  heap.Give(kUnit, kUnit);
  EXPECT_EQ(heap.Take(3 * kUnit), 0);
}

TEST(Heap, GivesWhatAScanOfAllMemoryGives) {
  std::mt19937 random(1);
  Heap heap(0);
  PlainHeap plain;
  struct Taken {
    int64_t offset, units;
  };
  std::vector<Taken> taken;
  for (int i = 0; i < 20000; ++i) {
    if (taken.empty() || random() % 100 < 52) {
      const auto units = static_cast<int64_t>(1 + random() % 9);
      const int64_t offset = heap.Take(units * kUnit);
      ASSERT_EQ(offset, plain.Take(units) * kUnit) << i;
      taken.push_back({offset, units});
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      heap.Give(taken.back().offset, taken.back().units * kUnit);
      plain.Give(taken.back().offset / kUnit, taken.back().units);
      taken.pop_back();
    }
    ASSERT_EQ(heap.peak(), plain.peak() * kUnit) << i;
  }
}

}  // namespace
}  // namespace espalier
