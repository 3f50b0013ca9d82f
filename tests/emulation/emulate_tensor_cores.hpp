// src/kernels/cuda/runtime/tensor_cores.cuh on the host, for blocks in one dim. The lanes of a warp exchange their
// registers as the hardware does. Copies happen as late as they may: when their thread waits for them.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "emulate.hpp"
#include "kernels/fp8.hpp"

namespace espalier::emulation {

inline constexpr int kMaxThreads = 1024, kLanesOfWarp = 32;

/// The values that all lanes of the calling warp give; valid until its next call.
template <typename T>
const T* OfAllLanes(const T& value) {
  static thread_local T all[kMaxThreads / kLanesOfWarp][kLanesOfWarp];
  T* const warp = all[threadIdx.x / kLanesOfWarp];
  Meet(Meeting::kWarp, 0xffffffffu);  // the values of an earlier call have been read
  warp[Lane()] = value;
  Meet(Meeting::kWarp, 0xffffffffu);
  return warp;
}

struct LateCopy {
  void* to;
  const void* from;
  bool inside;

  void Run() const { inside ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); }
};
/// Copies of a thread that have not happened: of groups that have ended, and of the one that has not.
struct LateCopies {
  std::deque<std::vector<LateCopy>> groups;
  std::vector<LateCopy> open;
};
inline LateCopies& CopiesOfThread() {
  static thread_local LateCopies all[kMaxThreads];
  return all[threadIdx.x];
}

/// Two bf16 of a register, the first in its lower half.
struct Bf16Pair {
  uint16_t bits[2];

  float operator[](int i) const { return std::bit_cast<float>(uint32_t{bits[i]} << 16); }
};

}  // namespace espalier::emulation

namespace espalier::cuda {

inline void CopyAsync(void* to, const void* from, bool inside) {
  CheckAligned(to, 16);
  CheckAligned(from, 16);
  emulation::CopiesOfThread().open.push_back({to, from, inside});
}
inline void EndCopies() {
  emulation::LateCopies& copies = emulation::CopiesOfThread();
  copies.groups.push_back(std::exchange(copies.open, {}));
}
template <int kGroups>
void AwaitCopies() {
  auto& groups = emulation::CopiesOfThread().groups;
  for (; groups.size() > kGroups; groups.pop_front())
    for (const emulation::LateCopy& copy : groups.front()) copy.Run();
}

template <bool kTransposed>
void LoadMatrices(uint32_t (&x)[4], const __nv_bfloat16* row) {
  CheckAligned(row, 16);
  const auto* const rows = emulation::OfAllLanes(row);
  const int outer = emulation::Lane() / 4, inner = emulation::Lane() % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    emulation::Bf16Pair pair;
    for (int i = 0; i < 2; ++i) {
      const int of_row = kTransposed ? inner + i : outer, of_column = kTransposed ? outer : inner + i;
      std::memcpy(&pair.bits[i], rows[matrix * 8 + of_row] + of_column, sizeof(uint16_t));
    }
    x[matrix] = std::bit_cast<uint32_t>(pair);
  }
}

inline void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Registers {
    emulation::Bf16Pair a[4], b[2];
  };
  Registers own;
  std::memcpy(own.a, a, sizeof own.a);
  own.b[0] = std::bit_cast<emulation::Bf16Pair>(b0);
  own.b[1] = std::bit_cast<emulation::Bf16Pair>(b1);
  const Registers* const lanes = emulation::OfAllLanes(own);
  const int group = emulation::Lane() / 4, pair = emulation::Lane() % 4;
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column)
      for (int k = 0; k < 16; ++k) {
        const Registers &left = lanes[group * 4 + k % 8 / 2], &right = lanes[(2 * pair + column) * 4 + k % 8 / 2];
        sums[2 * row + column] += left.a[k / 8 * 2 + row][k % 2] * right.b[k / 8][k % 2];
      }
}

template <Dtype kA>
void MultiplyAddFp8(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Registers {
    uint8_t a[4][4], b[2][4];
  };
  Registers own;
  std::memcpy(own.a, a, sizeof own.a);
  std::memcpy(own.b[0], &b0, sizeof b0);
  std::memcpy(own.b[1], &b1, sizeof b1);
  const Registers* const lanes = emulation::OfAllLanes(own);
  const int group = emulation::Lane() / 4, pair = emulation::Lane() % 4;
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column) {
      float products = 0;
      for (int k = 0; k < 32; ++k) {
        const Registers &left = lanes[group * 4 + k % 16 / 4], &right = lanes[(2 * pair + column) * 4 + k % 16 / 4];
        products += FromFp8<kA>(left.a[k / 16 * 2 + row][k % 4]) * FromFp8<Dtype::kF8E4M3>(right.b[k / 16][k % 4]);
      }
      sums[2 * row + column] += products;
    }
}

}  // namespace espalier::cuda
