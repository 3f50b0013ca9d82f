// Places for requests of memory: none overlap, and the peak is near the largest sum of concurrent requests.
#include "program/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "espalier/util/alignment.hpp"

namespace espalier {
namespace {

constexpr int64_t kUnit = kAlignment;
using Requests = std::vector<MemoryRequest>;

/// By a table of instructions and units of memory: no unit has two requests at a time.
void ExpectApart(const Requests& requests, const Packing& packing, int64_t base) {
  int end = 0;
  for (const MemoryRequest& r : requests) end = std::max(end, r.end);
  const auto units = static_cast<size_t>((packing.peak - base) / kUnit);
  std::vector<std::vector<bool>> used(static_cast<size_t>(end) + 1, std::vector<bool>(units));
  ASSERT_EQ(packing.offsets.size(), requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const int64_t offset = packing.offsets[r];
    ASSERT_GE(offset, base) << r;
    ASSERT_LE(offset + requests[r].bytes, packing.peak) << r;
    ASSERT_EQ((offset - base) % kUnit, 0) << r;
    if (requests[r].behind) {
      EXPECT_EQ(offset, packing.offsets[r - 1] + requests[r - 1].bytes) << r;
    }
    for (int i = requests[r].begin; i <= requests[r].end; ++i)
      for (int64_t u = (offset - base) / kUnit; u < (offset - base + requests[r].bytes) / kUnit; ++u) {
        ASSERT_FALSE(used[static_cast<size_t>(i)][static_cast<size_t>(u)]) << "request " << r << ", unit " << u;
        used[static_cast<size_t>(i)][static_cast<size_t>(u)] = true;
      }
  }
}

int64_t LargestSum(const Requests& requests) {
  int64_t largest = 0;
  for (const MemoryRequest& at : requests) {
    int64_t sum = 0;
    for (const MemoryRequest& r : requests) sum += r.begin <= at.begin && at.begin <= r.end ? r.bytes : 0;
    largest = std::max(largest, sum);
  }
  return largest;
}

TEST(Packing, NothingTakesNothing) {
  const Packing packing = Pack({}, {5}, 3 * kUnit);
  EXPECT_TRUE(packing.offsets.empty());
  EXPECT_EQ(packing.peak, 3 * kUnit);
}

TEST(Packing, WhatIsNeededAtOtherTimesSharesMemory) {
  const Packing packing = Pack({{7 * kUnit, 0, 3}, {7 * kUnit, 4, 4}, {7 * kUnit, 5, 9}}, {10}, 5 * kUnit);
  EXPECT_EQ(packing.offsets, std::vector<int64_t>(3, 5 * kUnit));
  EXPECT_EQ(packing.peak, 12 * kUnit);
}

TEST(Packing, NeitherOverlapsInMemoryAndTimeNorIsAnyOrderImpossible) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const int instructions = 20 + static_cast<int>(random() % 100);
    Requests requests;
    for (int i = 0; i < instructions; ++i)
      for (unsigned n = random() % 4; n > 0; --n) {
        const int life = random() % 8 == 0 ? static_cast<int>(random() % 90) : static_cast<int>(random() % 5);
        const int64_t bytes = kUnit * (random() % 16 == 0 ? 40 + random() % 50 : 1 + random() % 11);
        const bool behind = !requests.empty() && requests.back().begin == i && random() % 3 == 0;
        requests.push_back({bytes, i, std::min(i + life, instructions - 1), behind});
      }
    std::vector<int> job_ends;
    for (int i = 0; i < instructions; i += 3 + static_cast<int>(random() % 9)) job_ends.push_back(i);
    job_ends.push_back(instructions);
    const int64_t base = kUnit * (random() % 3);
    const Packing packing = Pack(requests, job_ends, base);
    ExpectApart(requests, packing, base);
    EXPECT_GE(packing.peak - base, LargestSum(requests)) << round;
    EXPECT_LE(packing.peak - base, 2 * LargestSum(requests)) << round;
    EXPECT_EQ(Pack(requests, job_ends, base).offsets, packing.offsets) << round;
  }
}

/// Forward of `layers` keeps values of two sizes and makes others that it needs only itself; backward frees what
/// forward kept, from the last layer to the first.
Requests LayersOf(int layers, int microbatches, std::vector<int>& job_ends) {
  const int job = 3 * layers;
  Requests requests;
  for (int m = 0; m < microbatches; ++m) {
    const int forward = 2 * m * job, backward = forward + job;
    for (int i = 0; i < job; ++i) {
      const int layer = i / 3, end = backward + job - 1 - i;
      requests.push_back({kUnit * (5 + i % 3 * 11), forward + i, std::min(forward + i + 2, backward - 1)});
      if (i % 3 != 1) requests.push_back({kUnit * (i % 3 == 0 ? 4 : 14), forward + i, end});
      if (layer % 2 == 0) requests.push_back({kUnit * 9, forward + i, std::min(forward + i + 1, backward - 1)});
    }
    for (int i = 0; i < job; ++i)
      requests.push_back({kUnit * (7 + i % 3 * 13), backward + i, std::min(backward + i + 2, backward + job - 1)});
    job_ends.insert(job_ends.end(), {backward, backward + job});
  }
  return requests;
}

TEST(Packing, WhatAJobNeedsItselfLeavesNoHolesInWhatItKeeps) {
  std::vector<int> job_ends;
  const Requests requests = LayersOf(13, 3, job_ends);
  const Packing packing = Pack(requests, job_ends, 0);
  ExpectApart(requests, packing, 0);
  EXPECT_LE(packing.peak, LargestSum(requests) * 1.02);
}

TEST(Packing, ALateLargeRequestHasRoom) {
  std::vector<int> job_ends;
  Requests requests = LayersOf(11, 2, job_ends);
  const int end = job_ends.back();
  for (Requests::value_type& r : requests)  // one value in five stays until the end
    if (&r - requests.data() < std::ssize(requests) / 2 && (&r - requests.data()) % 5 == 0) r.end = end + 2;
  requests.push_back({LargestSum(requests) / 3, end + 1, end + 2});
  job_ends.push_back(end + 3);
  const Packing packing = Pack(requests, job_ends, kUnit);
  ExpectApart(requests, packing, kUnit);
  EXPECT_LE(packing.peak - kUnit, LargestSum(requests) * 1.05);
}

}  // namespace
}  // namespace espalier
