#include "workspace.hpp"

#include <algorithm>
#include <cstddef>

#include "espalier/util/error.hpp"

namespace espalier::cuda {

int64_t UsableBytes(int64_t bytes) { return std::max<int64_t>(0, bytes - kWorkspaceSlack); }

Workspace AlignedWorkspace(void* data, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto skip = static_cast<int64_t>((kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment);
  CHECK(skip <= kWorkspaceSlack || bytes == 0, "a workspace begins {} bytes before a multiple of {}", skip,
        kWorkspaceAlignment);
  return {static_cast<std::byte*>(data) + skip, UsableBytes(bytes)};
}

}  // namespace espalier::cuda
