#include "train/measuring/made_up_batch.hpp"

namespace espalier {
namespace {

/// Tokens that are spread over the vocabulary.
std::vector<int32_t> MadeUpTokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

}  // namespace

Batch MadeUpBatch(const BatchLayout& layout, int64_t vocab) {
  Batch batch;
  const int64_t rows = layout.rows.Extent(), tokens = rows * std::ssize(layout.positions);
  const std::vector<int32_t> at_start(static_cast<size_t>(rows * std::ssize(layout.DocumentPositions())));
  const std::vector<int32_t> first(static_cast<size_t>(tokens));
  const std::vector<int32_t> of_stream(static_cast<size_t>(rows * std::ssize(layout.stream_positions)));
  for (int64_t m = 0; m < layout.microbatches; ++m) {
    const std::vector<int32_t> ids = MadeUpTokens(tokens, vocab, static_cast<uint64_t>(2 * m)),
                               targets = MadeUpTokens(tokens, vocab, static_cast<uint64_t>(2 * m + 1));
    const auto depths = static_cast<size_t>(layout.depths);
    batch.microbatches.push_back(
        {ids, targets, at_start, first, of_stream, at_start, std::vector(depths, ids), std::vector(depths, targets)});
  }
  return batch;
}

}  // namespace espalier
