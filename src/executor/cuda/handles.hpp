// RAII owners of CUDA runtime objects.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier::cuda {

class Stream {
 public:
  Stream() { CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t Get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

enum class Timing : uint8_t { kOff, kOn };

class Event {
 public:
  explicit Event(Timing timing) {
    CUDA_CALL(cudaEventCreateWithFlags(&event_, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  cudaEvent_t Get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Pinned host memory, zeroed.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// Device memory outside the arena: small constants.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { CUDA_CALL(cudaMalloc(&data_, bytes)); }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// The streams of a process: one per lane, shared by all of its programs, which therefore run one after the other. Lane
/// kCopy carries staged messages.
struct Streams {
  ByLane<Stream> lanes;

  cudaStream_t Of(Lane lane) const { return lanes[lane].Get(); }
  cudaStream_t Compute() const { return Of(Lane::kCompute); }
};

}  // namespace espalier::cuda
