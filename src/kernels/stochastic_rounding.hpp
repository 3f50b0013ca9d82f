// Stochastic rounding of the optimizer's moments to bf16 (precision.moments): 16 random bits are added to the fp32
// word, and its lower half is cut off, so that a value is rounded up with the probability of its distance to the value
// below (Gupta et al. 2015, section 3.1). Rounding to nearest would stop the second moment: its relative changes, about
// 1 - beta2 = 0.001 to 0.05, are mostly smaller than half a step of bf16, 2^-9 to 2^-8.
//
// The bits are a pure function of seed, parameter, element and step (doc/numerics.md), so they are the same in any
// layout and after a restart. Element (row, column) of a parameter has word column % 4 of the Philox block with counter
// (column / 4, row, step, 0): its lower half is for the first moment, the upper half for the second.
#pragma once

#include <bit>
#include <cstdint>

#include "espalier/util/philox.hpp"
#include "espalier/util/types.hpp"
#include "kernels/host_device.hpp"

namespace espalier {

/// Where a tensor's random bits come from: a shard of `columns` columns, from an element of the whole parameter on. A
/// vector is one row.
struct RoundingStream {
  uint64_t key;
  int64_t row, column;  ///< of the shard's first element in the parameter; row < 2^32, column < 2^34
  int64_t columns;      ///< of the shard
};

/// The block of elements (row, 4 block) to (row, 4 block + 3) of a parameter.
ESPALIER_HOST_DEVICE inline PhiloxWords RoundingBlock(uint64_t key, int64_t row, int64_t block, uint32_t step) {
  return TenRounds({static_cast<uint32_t>(block), static_cast<uint32_t>(row), step, 0}, static_cast<uint32_t>(key),
                   static_cast<uint32_t>(key >> 32));
}

ESPALIER_HOST_DEVICE inline uint32_t WordOf(const PhiloxWords& block, int64_t column) {
  switch (column % 4) {
    case 0:
      return block.x0;
    case 1:
      return block.x1;
    case 2:
      return block.x2;
    default:
      return block.x3;
  }
}

/// The word of element i of a shard.
ESPALIER_HOST_DEVICE inline uint32_t RoundingWord(const RoundingStream& s, uint32_t step, int64_t i) {
  const int64_t row = s.row + i / s.columns, column = s.column + i % s.columns;
  return WordOf(RoundingBlock(s.key, row, column / 4, step), column);
}

/// The bits of a word for moment 0 or 1.
ESPALIER_HOST_DEVICE inline uint32_t BitsOf(uint32_t word, int moment) {
  return moment == 0 ? word & 0xffffu : word >> 16;
}

/// x rounded by 16 random bits. Exact values, infinities and NaN stay what they are; beyond the largest bf16 a value
/// may become infinite, as with rounding to nearest.
ESPALIER_HOST_DEVICE inline Bf16 RoundedBy(float x, uint32_t bits) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // NaN
  return {static_cast<uint16_t>((u + bits) >> 16)};
}

}  // namespace espalier
