// The one allocation of a rank: every buffer of a program lies in it, at the offset that was planned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

/// Zeroed memory of a device, taken once.
class Arena {
 public:
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t bytes() const { return bytes_; }
  /// The host may use its pointers.
  virtual bool OnHost() const = 0;
  /// CHECKs that [offset, offset + bytes) is inside.
  std::byte* At(int64_t offset, int64_t bytes) const;

  /// Copies from this memory to the host's and back; outside a step. Only through them may the host look at an arena,
  /// unless it made a HostArena itself. The regions lie inside, and the copy is done on return.
  virtual void Read(const void* from, void* to, int64_t bytes) const = 0;
  virtual void Write(void* to, const void* from, int64_t bytes) = 0;

  /// Bytes below the highest end of a buffer that was really used; buffers take whole lines of 64 bytes.
  int64_t HighWater() const { return high_water_; }
  /// A buffer that ends at `end` was used.
  void Use(int64_t end);

 protected:
  explicit Arena(int64_t bytes);
  std::byte* base_ = nullptr;

 private:
  int64_t bytes_ = 0;
  int64_t high_water_ = 0;
};

/// Page-aligned, on huge pages where the system gives them, and already touched: nothing is faulted in while steps run.
class HostArena final : public Arena {
 public:
  /// Throws UserError (kDoesNotFit) if the system has no `bytes` to give.
  explicit HostArena(int64_t bytes);
  ~HostArena() override;

  bool OnHost() const override { return true; }
  void Read(const void* from, void* to, int64_t bytes) const override;
  void Write(void* to, const void* from, int64_t bytes) override;

 private:
  int64_t mapped_ = 0;
};

}  // namespace espalier
