// Whole documents in samples of one size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier {

/// Which documents each sample has, in order.
struct PackedDocuments {
  std::vector<int64_t> documents;  ///< documents of all samples, one after the other
  std::vector<int64_t> begins;     ///< begin of each sample in `documents`; and the end

  int64_t Samples() const { return static_cast<int64_t>(begins.size()) - 1; }
  std::span<const int64_t> Of(int64_t sample) const;
};

/// Packs documents of these lengths, each at most `capacity`. A sample takes the first remaining document, and then
/// each of the next kPackingAhead ones that still fits. The result depends only on the lengths; the time is linear in
/// their number.
PackedDocuments PackDocuments(std::span<const int64_t> lengths, int64_t capacity);

inline constexpr size_t kPackingAhead = 256;

}  // namespace espalier
