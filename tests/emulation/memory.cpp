// Memory of the emulated runtime, and its GPUs. Device memory is host memory, distinguished by address: it holds NaNs
// at first; a copy in the wrong direction is an error; a copy from pageable memory arrives only once its stream was
// awaited; and the program may take ESPALIER_EMULATED_BYTES of it. There are ESPALIER_EMULATED_GPUS; as in CUDA, a
// thread uses device 0 until cudaSetDevice, and is refused if the process has chosen another one.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "runtime.hpp"

namespace espalier::emulation {
namespace {

size_t Setting(const char* name, size_t value) {
  const char* set = std::getenv(name);
  return set == nullptr ? value : std::strtoull(set, nullptr, 10);
}

struct Block {
  size_t bytes;
  Place place;
};

std::mutex mutex;
std::map<const std::byte*, Block> blocks;
size_t used = 0;
std::atomic<int> opened = -1;  ///< the GPU that the process chose first
thread_local int device = 0;   ///< as in CUDA, device 0 until cudaSetDevice

int Gpus() { return static_cast<int>(Setting("ESPALIER_EMULATED_GPUS", 1)); }
size_t DeviceBytes() { return Setting("ESPALIER_EMULATED_BYTES", size_t{64} << 30); }

void Add(void* memory, size_t bytes, Place place) {
  const std::lock_guard lock(mutex);
  blocks[static_cast<std::byte*>(memory)] = {bytes, place};
}

/// Bytes of the block; 0 if there is none.
size_t Remove(void* memory) {
  const std::lock_guard lock(mutex);
  const auto block = blocks.find(static_cast<std::byte*>(memory));
  if (block == blocks.end()) return 0;
  const size_t bytes = block->second.bytes;
  if (block->second.place == Place::kDevice) used -= bytes;
  blocks.erase(block);
  return bytes;
}

bool IsAllowed(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = PlaceOf(to, bytes) == Place::kDevice, from_device = PlaceOf(from, bytes) == Place::kDevice;
  return bytes == 0 || (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                        from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
}

}  // namespace

Place PlaceOf(const void* memory, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(mutex);
  auto block = blocks.upper_bound(at);
  if (block == blocks.begin()) return Place::kPageable;
  --block;
  return at + bytes <= block->first + block->second.bytes ? block->second.place : Place::kPageable;
}

bool OnItsGpu() { return opened < 0 || device == opened; }

}  // namespace espalier::emulation

using namespace espalier::emulation;

// NOLINTBEGIN: CUDA's names
extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t kAlignment = 256;  // the alignment on a device
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  {
    const std::lock_guard lock(mutex);
    if (used + bytes > DeviceBytes()) return cudaErrorMemoryAllocation;
    used += bytes;
  }
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*memory, 0xff, bytes);
  Add(*memory, bytes, Place::kDevice);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (memory != nullptr && Remove(memory) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  *memory = std::malloc(bytes);
  Add(*memory, bytes, Place::kPinned);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (memory != nullptr && Remove(memory) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  if (PlaceOf(memory, bytes) != Place::kPageable) return cudaErrorHostMemoryAlreadyRegistered;
  Add(memory, bytes, Place::kPinned);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  return Remove(memory) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (!IsAllowed(to, from, bytes, kind)) return cudaErrorInvalidMemcpyDirection;
  // Waits for the default stream; a copy from pageable memory only waits until the bytes have been read.
  if (const cudaError_t error = cudaStreamSynchronize(nullptr); error != cudaSuccess) return error;
  if (kind == cudaMemcpyHostToDevice && PlaceOf(from, bytes) == Place::kPageable) {
    const auto* at = static_cast<const std::byte*>(from);
    EnqueueLate(nullptr, [to, left = std::vector(at, at + bytes)] { std::memcpy(to, left.data(), left.size()); });
  } else {
    std::memcpy(to, from, bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  if (!IsAllowed(to, from, bytes, kind)) return cudaErrorInvalidMemcpyDirection;
  const bool pageable = PlaceOf(to, bytes) == Place::kPageable || PlaceOf(from, bytes) == Place::kPageable;
  if (Capturing() && pageable) return cudaErrorStreamCaptureUnsupported;
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && PlaceOf(memory, bytes) != Place::kDevice) return cudaErrorInvalidValue;
  Enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(mutex);
  *total = DeviceBytes();
  *free = *total - used;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Gpus();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int chosen) {
  if (chosen < 0 || chosen >= Gpus()) return cudaErrorInvalidDevice;
  int none = -1;
  opened.compare_exchange_strong(none, chosen);
  device = chosen;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* current) {
  *current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "an emulated GPU");
  properties->totalGlobalMem = DeviceBytes();
  properties->multiProcessorCount = 1;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidMemcpyDirection ? "cudaErrorInvalidMemcpyDirection" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the emulation", static_cast<int>(error));
  return text;
}
}
// NOLINTEND
