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

using Work = std::function<void()>;

/// The state of work that takes time.
enum class Progress : uint8_t { kNone, kSome, kDone };
using Poll = std::function<Progress()>;

/// Runs `work` after everything issued on `stream`, or records it if the stream is captured.
void Enqueue(cudaStream_t stream, Work work);
/// The same, but the work runs only when something waits for it.
void EnqueueLate(cudaStream_t stream, Work work);
/// The same for messages: `start` sends them, and `poll` finds out when they have arrived. Until then they hold
/// `processors` multiprocessors.
void EnqueueMessages(cudaStream_t stream, Work start, Poll poll, int processors);

/// Waits until everything issued has run.
void AwaitAllStreams();

/// Notes the error for cudaGetLastError, and returns it.
cudaError_t Failed(cudaError_t error);
/// From now on every call fails with `error`, as after a kernel that did what it must not do.
void Break(cudaError_t error);
/// The error of Break, or cudaSuccess.
cudaError_t Broken();

}  // namespace espalier::emulation
