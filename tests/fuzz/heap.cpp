// Counts what operator new allocates: an input must not make the program allocate more than the input's size justifies.
#include <malloc.h>

#include <atomic>
#include <new>

#include "fuzz.hpp"

namespace {

std::atomic<int64_t> held = 0, base = 0, peak = 0;

void* Take(std::size_t bytes, std::size_t alignment) {
  // An impossible size is refused as the library would refuse it.
  void* memory = alignment == 0 ? std::malloc(bytes == 0 ? 1 : bytes)
                                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = held += static_cast<int64_t>(malloc_usable_size(memory));
  for (int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}

void GiveBack(void* memory) {
  if (memory == nullptr) return;
  held -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return Take(bytes, 0); }
void* operator new[](std::size_t bytes) { return Take(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Take(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return Take(bytes, static_cast<std::size_t>(alignment));
}
// Replaces these operators too, with which std::stable_sort allocates its buffer: sanitizers have their own.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return Take(bytes, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* memory) noexcept { GiveBack(memory); }
void operator delete[](void* memory) noexcept { GiveBack(memory); }
void operator delete(void* memory, std::size_t) noexcept { GiveBack(memory); }
void operator delete[](void* memory, std::size_t) noexcept { GiveBack(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { GiveBack(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { GiveBack(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { GiveBack(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { GiveBack(memory); }

namespace espalier::fuzz {

void Heap::Reset() {
  base = held.load();
  peak = held.load();
}

int64_t Heap::Peak() { return peak - base; }

}  // namespace espalier::fuzz
