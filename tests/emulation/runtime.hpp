// Declarations that the files of the emulated CUDA runtime share.
#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace espalier::emulation {

enum class Place : uint8_t { kPageable, kPinned, kDevice };

/// Which memory [memory, memory + bytes) belongs to.
Place PlaceOf(const void* memory, size_t bytes);

/// True while this thread captures: allocations, synchronous copies and waits are errors then.
bool Capturing();

/// False in a thread that is on another GPU than the one that the process chose: its calls would fail, or take memory
/// of that one.
bool OnItsGpu();

/// True while some graph may be launched; while a launch of one is not awaited by the host, though its work may be done
/// here.
bool GraphsAlive();
bool GraphUnderWay();

/// Runs `work` after everything issued on `stream`, or records it if the stream is captured.
void Enqueue(cudaStream_t stream, std::function<void()> work);
/// As that, but it runs only when something waits for it.
void EnqueueLate(cudaStream_t stream, std::function<void()> work);

}  // namespace espalier::emulation
