// A mirror of the arena on the host, for communication over MPI: same offsets, with pages only where messages are.
#pragma once

#include <vector>

#include "espalier/comm/communication.hpp"
#include "espalier/executor/arena.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class HostMirror {
 public:
  /// Pins the ranges of the operands and workspaces of `instructions`.
  HostMirror(const Arena& arena, const std::vector<CommInstruction>& instructions);
  ~HostMirror();
  HostMirror(const HostMirror&) = delete;
  HostMirror& operator=(const HostMirror&) = delete;

  /// The mirrored address of a pointer into the arena.
  void* Of(const void* device) const;
  /// The instruction with tensors and workspace in the mirror.
  CommInstruction Of(const CommInstruction& instruction) const;

 private:
  struct Range {
    int64_t begin, end;
  };
  void Reserve();
  void Pin(std::vector<Range> ranges);

  const std::byte* device_;
  int64_t bytes_;
  std::byte* base_ = nullptr;
  std::vector<std::byte*> pinned_;
};

}  // namespace espalier::cuda
