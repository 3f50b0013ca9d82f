// Rows of keys and values that are written into a cache.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, CacheWrite) {
  for (const int64_t width : {1, 17, 64}) {
    for (const int64_t first : {0, 3, 8}) {
      constexpr int64_t kBatch = 2, kRows = 5, kLength = 13;
      const OwnedTensor x = Real({kBatch, kRows, width}), before = Real({kBatch, kLength, width});
      OwnedTensor cache = before, positions(Dtype::kI32, {kRows});
      for (int64_t i = 0; i < kRows; ++i) positions.Set(i, double(first + i));
      const Tensor in[] = {cache.View(), x.View(), positions.View()}, out[] = {cache.View()};
      const Attributes none;
      RunTested("cache_write", {.inputs = in, .outputs = out, .attributes = &none});
      for (int64_t i = 0; i < cache.Count(); ++i) {
        const int64_t batch = i / (kLength * width), row = i / width % kLength - first;
        const bool written = row >= 0 && row < kRows;
        ASSERT_EQ(cache[i], written ? x[(batch * kRows + row) * width + i % width] : before[i])
            << "element " << i << ", rows from " << first;
      }
      EXPECT_TRUE(cache.IsIntact());
    }
  }
}

}  // namespace
}  // namespace espalier::testing
