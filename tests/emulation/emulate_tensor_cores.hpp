// src/kernels/cuda/runtime/tensor_cores.cuh on the host: lanes exchange their registers as the hardware does. Copies
// are complete at once, so that a missing wait gives no other result here.
#pragma once

#include <bit>
#include <cstring>

#include "emulate.hpp"

namespace espalier::cuda {

inline void CopyAsync(void* to, const void* from, bool inside) {
  CheckAligned(to, 16);
  CheckAligned(from, 16);
  if (inside)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void EndCopies() {}
template <int kGroups>
void AwaitCopies() {}

/// Two bf16 of a register, the first in its lower half.
struct Bf16Pair {
  uint16_t bits[2];

  float operator[](int i) const { return std::bit_cast<float>(uint32_t{bits[i]} << 16); }
};

template <bool kTransposed>
void LoadMatrices(uint32_t (&x)[4], const __nv_bfloat16* row) {
  CheckAligned(row, 16);
  const int lane = emulation::Lane(), outer = lane / 4, inner = lane % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    Bf16Pair pair;
    for (int i = 0; i < 2; ++i) {
      const int of_row = kTransposed ? inner + i : outer, of_column = kTransposed ? outer : inner + i;
      const auto* address = std::bit_cast<const __nv_bfloat16*>(
          emulation::Shuffle(0xffffffffu, std::bit_cast<uint64_t>(row), matrix * 8 + of_row));
      std::memcpy(&pair.bits[i], address + of_column, sizeof(uint16_t));
    }
    x[matrix] = std::bit_cast<uint32_t>(pair);
  }
}

inline void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int group = emulation::Lane() / 4, pair = emulation::Lane() % 4;
  const auto joined = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  // Of the lanes that have rows `group` and `group` + 8 of a, and of those that have the two columns of b.
  for (int half = 0; half < 2; ++half)
    for (int of = 0; of < 4; ++of) {
      const uint64_t rows = emulation::Shuffle(0xffffffffu, joined(a[2 * half], a[2 * half + 1]), group * 4 + of);
      for (int column = 0; column < 2; ++column) {
        const uint32_t b = half == 0 ? b0 : b1;
        const auto right = std::bit_cast<Bf16Pair>(emulation::Shuffle(0xffffffffu, b, (2 * pair + column) * 4 + of));
        for (int row = 0; row < 2; ++row) {
          const auto left = std::bit_cast<Bf16Pair>(static_cast<uint32_t>(rows >> (32 * row)));
          for (int i = 0; i < 2; ++i) sums[2 * row + column] += left[i] * right[i];
        }
      }
    }
}

}  // namespace espalier::cuda
