// Stochastic rounding to bf16, vector by vector (kernels/stochastic_rounding.hpp).
#pragma once

#include "kernels/stochastic_rounding.hpp"
#include "random_words.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Stores moment 0 or 1, rounded with the moment's bits of each word.
template <typename Lanes>
void StoreRounded(Bf16* p, Floats x, Words words, int moment, Lanes lanes) {
  const Words u = std::bit_cast<Words>(x), bits = moment == 0 ? words & 0xffffu : words >> 16;
  const Words rounded = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + bits) >> 16;
  const Halves h = Shortened(rounded);
  std::memcpy(static_cast<void*>(p), &h, static_cast<size_t>(lanes) * sizeof(Bf16));
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
