// Declarations that the files of the emulated CUDA runtime share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

namespace espalier::emulation {

enum class Place : uint8_t { kPageable, kPinned, kDevice };

/// Which memory [memory, memory + bytes) belongs to.
Place PlaceOf(const void* memory, size_t bytes);

/// True while this thread captures: allocations, synchronous copies and waits are errors then.
bool Capturing();

/// False in a thread that is on another GPU than the one that the process chose: its calls would fail, or take memory
/// of the other GPU.
bool OnItsGpu();

/// GraphsAlive: a graph exists that may be launched. GraphUnderWay: the host has not awaited a launch of one, though
/// its work may already be done here.
bool GraphsAlive();
bool GraphUnderWay();

/// Runs `work` after everything issued on `stream`, or records it if the stream is captured.
void Enqueue(cudaStream_t stream, std::function<void()> work);
/// The same, but the work runs only when something waits for it.
void EnqueueLate(cudaStream_t stream, std::function<void()> work);

}  // namespace espalier::emulation
