// Memory of a GPU, and host memory that it copies to and from at full speed.
#pragma once

#include "espalier/executor/arena.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class DeviceArena final : public Arena {
 public:
  /// Copies run after everything issued on `stream`, which must outlive the arena. Throws UserError (kDoesNotFit).
  DeviceArena(int64_t bytes, cudaStream_t stream);
  ~DeviceArena() override;

  bool OnHost() const override { return false; }
  void Read(const void* from, void* to, int64_t bytes) const override;
  void Write(void* to, const void* from, int64_t bytes) override;

 private:
  cudaStream_t stream_;
};

class PinnedArena final : public Arena {
 public:
  /// Throws UserError (kDoesNotFit).
  explicit PinnedArena(int64_t bytes);
  ~PinnedArena() override;

  bool OnHost() const override { return true; }
  void Read(const void* from, void* to, int64_t bytes) const override;
  void Write(void* to, const void* from, int64_t bytes) override;
};

}  // namespace espalier::cuda
