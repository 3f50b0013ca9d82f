// RAII owners of CUDA runtime objects.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier::cuda {

/// Which thread blocks a GPU starts first when a multiprocessor is free.
enum class Urgency : uint8_t { kLow, kHigh };

class Stream {
 public:
  explicit Stream(Urgency urgency) {
    int low = 0, high = 0;
    CUDA_CALL(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA_CALL(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgency == Urgency::kHigh ? high : low));
  }
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

/// The streams of a process: one per lane, shared by all of its programs, which therefore run one after the other. The
/// few blocks of a message start before the blocks of a kernel that fills the GPU, because peers wait for them.
struct Streams {
  ByLane<Stream> lanes = {Stream(Urgency::kLow),  Stream(Urgency::kHigh), Stream(Urgency::kHigh),
                          Stream(Urgency::kHigh), Stream(Urgency::kHigh), Stream(Urgency::kHigh),
                          Stream(Urgency::kHigh), Stream(Urgency::kHigh), Stream(Urgency::kHigh)};
  Stream progress{Urgency::kHigh};  ///< reports the progress of the compute lane to the host
  Stream staging{Urgency::kHigh};   ///< carries messages that pass through the host

  cudaStream_t Of(Lane lane) const { return lanes[lane].Get(); }
  cudaStream_t Compute() const { return Of(Lane::kCompute); }
};

}  // namespace espalier::cuda
