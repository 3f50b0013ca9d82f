// The single allocation of a rank: every buffer of a program is in it, at its planned offset.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

/// Zeroed memory of a device, allocated once.
class Arena {
 public:
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t bytes() const { return bytes_; }
  /// True if the host may dereference its pointers.
  virtual bool OnHost() const = 0;
  /// CHECKs that [offset, offset + bytes) is in the arena.
  std::byte* At(int64_t offset, int64_t bytes) const;

  /// Copies between this memory and the host's, outside a step. The host may access an arena only through these
  /// functions, unless it is a HostArena. The region must be in the arena; the copy is complete on return.
  virtual void Read(const void* from, void* to, int64_t bytes) const = 0;
  virtual void Write(void* to, const void* from, int64_t bytes) = 0;

  /// The highest end of a buffer that was used, rounded up to 64 bytes.
  int64_t HighWater() const { return high_water_; }
  /// Notes that a buffer that ends at `end` was used.
  void Use(int64_t end);

 protected:
  explicit Arena(int64_t bytes);
  std::byte* base_ = nullptr;

 private:
  int64_t bytes_ = 0;
  int64_t high_water_ = 0;
};

/// Page-aligned, on huge pages where the system has them, and already touched, so that steps cause no page faults.
class HostArena final : public Arena {
 public:
  /// Throws UserError (kDoesNotFit) if the system cannot allocate `bytes`.
  explicit HostArena(int64_t bytes);
  ~HostArena() override;

  bool OnHost() const override { return true; }
  void Read(const void* from, void* to, int64_t bytes) const override;
  void Write(void* to, const void* from, int64_t bytes) override;

 private:
  int64_t mapped_ = 0;
};

}  // namespace espalier
