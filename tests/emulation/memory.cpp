// Memory of the emulated runtime, and its GPUs. Device memory is host memory, distinguished by address: it holds NaNs
// at first; a copy in the wrong direction is an error; a copy from pageable memory arrives only once its stream was
// awaited; and the program may take ESPALIER_EMULATED_BYTES of it. An allocation of pinned memory may have
// ESPALIER_EMULATED_PINNED bytes. There are ESPALIER_EMULATED_GPUS; as in CUDA, a
// thread uses device 0 until cudaSetDevice, and is refused if the process has chosen another one.
#include <cuda_profiler_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.hpp"
#include "switches.hpp"

namespace espalier::emulation {
namespace {

size_t Setting(const char* name, size_t value) {
  return static_cast<size_t>(SwitchedNumber(name, "", static_cast<long>(value)));
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
std::atomic<cudaError_t> broken = cudaSuccess;
thread_local cudaError_t last_error = cudaSuccess;

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

/// Writes what a profiler would do to the file of the profiler of NVTX ranges (nvtx_log.cpp).
void AppendToNvtxLog(const char* word) {
  if (const char* log = std::getenv("NVTX_LOG")) std::ofstream(log, std::ios::app) << gettid() << " " << word << "\n";
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

cudaError_t Failed(cudaError_t error) { return last_error = error; }
void Break(cudaError_t error) { broken = error; }
cudaError_t Broken() { return broken; }

}  // namespace espalier::emulation

using namespace espalier::emulation;

// NOLINTBEGIN: CUDA's names
extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (Broken() != cudaSuccess) return Broken();
  constexpr size_t kAlignment = 256;  // the alignment on a device
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  {
    const std::lock_guard lock(mutex);
    if (used + bytes > DeviceBytes()) return Failed(cudaErrorMemoryAllocation);
    used += bytes;
  }
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*memory, 0xff, bytes);
  Add(*memory, bytes, Place::kDevice);
  return cudaSuccess;
}
/// Waits for the device, as CUDA does.
cudaError_t cudaFree(void* memory) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  AwaitAllStreams();
  if (memory != nullptr && Remove(memory) == 0) return Failed(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  if (bytes > Setting("ESPALIER_EMULATED_PINNED", size_t{1} << 62)) return Failed(cudaErrorMemoryAllocation);
  *memory = std::malloc(bytes);
  Add(*memory, bytes, Place::kPinned);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  AwaitAllStreams();
  if (memory != nullptr && Remove(memory) == 0) return Failed(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  if (PlaceOf(memory, bytes) != Place::kPageable) return Failed(cudaErrorHostMemoryAlreadyRegistered);
  Add(memory, bytes, Place::kPinned);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  return Remove(memory) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (!IsAllowed(to, from, bytes, kind)) return Failed(cudaErrorInvalidMemcpyDirection);
  // Waits for the default stream; a copy from pageable memory only waits until the bytes have been read.
  if (const cudaError_t error = cudaStreamSynchronize(nullptr); error != cudaSuccess) return error;
  if (kind == cudaMemcpyHostToDevice && PlaceOf(from, bytes) == Place::kPageable) {
    const auto* at = static_cast<const std::byte*>(from);
    EnqueueLate(nullptr, [to, left = std::vector(at, at + bytes)] { std::memcpy(to, left.data(), left.size()); });
  } else {
    std::memcpy(to, from, bytes);
  }
  return Broken();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  if (!IsAllowed(to, from, bytes, kind)) return Failed(cudaErrorInvalidMemcpyDirection);
  const bool pageable = PlaceOf(to, bytes) == Place::kPageable || PlaceOf(from, bytes) == Place::kPageable;
  if (Capturing() && pageable) return Failed(cudaErrorStreamCaptureUnsupported);
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return Broken();
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && PlaceOf(memory, bytes) != Place::kDevice) return Failed(cudaErrorInvalidValue);
  Enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return Broken();
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(mutex);
  *total = DeviceBytes();
  *free = *total - used;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver / 1000 < runtime / 1000) return Failed(cudaErrorInsufficientDriver);
  *count = Gpus();
  return *count > 0 ? cudaSuccess : Failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int chosen) {
  if (chosen < 0 || chosen >= Gpus()) return Failed(cudaErrorInvalidDevice);
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
  properties->major = Capability() / 10;
  properties->minor = Capability() % 10;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute == cudaDevAttrComputeCapabilityMajor)
    *value = Capability() / 10;
  else if (attribute == cudaDevAttrComputeCapabilityMinor)
    *value = Capability() % 10;
  else
    return Failed(cudaErrorInvalidValue);
  return Broken();
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  AppendToNvtxLog("profiler-start");
  return Broken();
}
cudaError_t cudaProfilerStop() {
  AppendToNvtxLog("profiler-stop");
  return Broken();
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = Version("CUDA", CUDART_VERSION, 1000, 10);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = Version("driver", CUDART_VERSION, 1000, 10);
  return cudaSuccess;
}
/// The error of a kernel stays; others are cleared.
cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return Broken() != cudaSuccess ? Broken() : error;
}
cudaError_t cudaPeekAtLastError() { return Broken() != cudaSuccess ? Broken() : last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidMemcpyDirection:
      return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the emulation", static_cast<int>(error));
  return text;
}
}
// NOLINTEND
