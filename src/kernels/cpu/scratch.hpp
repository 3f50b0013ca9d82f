// Memory that kernels need for the length of one call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::cpu {

/// At least `bytes` bytes, 64-byte aligned, of the calling thread; valid until its next call. Grows, never shrinks, and is
/// given back when the thread ends. Contents are undefined.
std::byte* Scratch(int64_t bytes);

/// As a number of elements.
template <typename T>
T* ScratchOf(int64_t count) {
  return reinterpret_cast<T*>(Scratch(count * static_cast<int64_t>(sizeof(T))));
}

}  // namespace espalier::cpu
