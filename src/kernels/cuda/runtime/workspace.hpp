// The workspace of a call as libraries require it.
#pragma once

#include <cstdint>

namespace espalier::cuda {

/// Every buffer of a call begins at a multiple of this many bytes.
inline constexpr int64_t kBufferAlignment = 64;

/// Libraries require a larger alignment of the workspace. The plan includes the difference.
inline constexpr int64_t kWorkspaceAlignment = 256, kWorkspaceSlack = kWorkspaceAlignment - kBufferAlignment;

struct Workspace {
  void* data;
  int64_t bytes;
};
Workspace AlignedWorkspace(void* data, int64_t bytes);

/// Bytes that certainly remain of `bytes` after the workspace is aligned.
int64_t UsableBytes(int64_t bytes);

}  // namespace espalier::cuda
