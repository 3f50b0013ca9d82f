// Stochastic rounding of the optimizer's moments to bf16 (precision.moments): 16 random bits are added to the fp32
// word, and its lower half is cut off, so that a value is rounded up with the probability of its distance to the value
// below (Gupta et al. 2015, section 3.1). Rounding to nearest would stop the second moment: its relative changes, about
// 1 - beta2 = 0.001 to 0.05, are mostly smaller than half a step of bf16, 2^-9 to 2^-8.
//
// Each element of a parameter has a word (random_words.hpp): its lower half is for the first moment, the upper half for
// the second.
#pragma once

#include <bit>
#include <cstdint>

#include "espalier/util/types.hpp"
#include "kernels/host_device.hpp"
#include "kernels/random_words.hpp"

namespace espalier {

/// The bits of a word for moment 0 or 1.
ESPALIER_HOST_DEVICE inline uint32_t BitsOf(uint32_t word, int moment) {
  return moment == 0 ? word & 0xffffu : word >> 16;
}

/// x rounded by 16 random bits. Exact values, infinities and NaN are unchanged; beyond the largest bf16 a value may
/// become infinite, as with rounding to nearest.
ESPALIER_HOST_DEVICE inline Bf16 RoundedBy(float x, uint32_t bits) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // NaN
  return {static_cast<uint16_t>((u + bits) >> 16)};
}

}  // namespace espalier
