// The one allocation of a rank: every buffer of a program lies in it, at the offset that was planned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

/// Zeroed, page-aligned memory, on huge pages where the system gives them, and already touched: nothing is faulted in
/// while steps run.
class Arena {
 public:
  /// Throws UserError (kDoesNotFit) if the system has no `bytes` to give.
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t bytes() const { return bytes_; }
  /// CHECKs that [offset, offset + bytes) is inside.
  std::byte* At(int64_t offset, int64_t bytes) const;

  /// Bytes below the highest end of a buffer that was really used; buffers take whole lines of 64 bytes.
  int64_t HighWater() const { return high_water_; }
  /// A buffer that ends at `end` was used.
  void Use(int64_t end);

 private:
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_ = 0;
  int64_t high_water_ = 0;
};

}  // namespace espalier
