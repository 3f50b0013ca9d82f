// The parts of an attention call that the library computes one by one, or two at the same time on separate streams.
#pragma once

#include <functional>

#include "fused_attention.hpp"

namespace espalier::cuda {

/// Bytes of workspace that each part of a call may use, given the `bytes` that are planned for the call.
int64_t UsableByPart(const FusedCall& call, int64_t bytes);

/// Creates the stream that ForEachPart needs. Call it before the first step: no step may create streams.
void PrepareParts(const FusedCall& call);

/// Issues `run` for every part with the part's memory. With two streams every other part runs on a stream that waits
/// for `stream`, in its own half of the workspace; then `stream` waits for it.
void ForEachPart(const FusedCall& call, AttentionPart part, const FusedMemory& memory, cudaStream_t stream,
                 const std::function<void(const FusedMemory& of_part, cudaStream_t on)>& run);

}  // namespace espalier::cuda
