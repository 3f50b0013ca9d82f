// Which part of an attention call the library computes in one call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "espalier/device_memory/fused_attention.hpp"

namespace espalier::cuda {

/// The library's answer about a part: bytes of workspace, or why it has no kernel.
struct Offer {
  int64_t bytes = 0;
  std::string refusal;  ///< "": it has a kernel
};

/// The largest part whose workspace has at most `usable` bytes: where the library wants less than was planned, it is
/// larger than `planned`. Nothing if there is none, or if the library refuses `planned` or a smaller part: then the
/// plain kernels must compute the call. A choice smaller than `planned` is noted as a fallback; `call` describes the
/// call in the note.
std::optional<AttentionPart> ChoosePart(const AttentionShape& shape, AttentionPart planned, int64_t usable,
                                        const std::function<Offer(AttentionPart)>& ask, const std::string& call);

}  // namespace espalier::cuda
