// Scratch memory of kernels for one call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::cpu {

/// Purposes of scratch memory; each has its own.
enum class ScratchUse { kKernel, kWidened, kPanels, kSums };
inline constexpr int kScratchUses = 4;

/// At least `bytes` bytes, page-aligned, owned by the calling thread; valid until its next call for the same use.
/// Grows, never shrinks, and is freed when the thread ends. Contents are undefined.
std::byte* Scratch(int64_t bytes, ScratchUse use = ScratchUse::kKernel);

inline namespace ESPALIER_CPU_LEVEL {
/// As a number of elements.
template <typename T>
T* ScratchOf(int64_t count, ScratchUse use = ScratchUse::kKernel) {
  return reinterpret_cast<T*>(Scratch(count * static_cast<int64_t>(sizeof(T)), use));
}
}  // namespace ESPALIER_CPU_LEVEL

}  // namespace espalier::cpu
