#include "device_progress.hpp"

#include <atomic>
#include <numeric>
#include <vector>

namespace espalier::cuda {

DeviceProgress::DeviceProgress(int most)
    : words_(kLaneCount * sizeof(int32_t)), numbers_((kLaneCount + static_cast<size_t>(most)) * sizeof(int32_t)) {
  std::vector<int32_t> numbers(kLaneCount + static_cast<size_t>(most));
  std::iota(numbers.begin() + kLaneCount, numbers.end(), 1);
  CopyToDevice(numbers_.data(), numbers.data(), numbers.size() * sizeof(int32_t));
}

void DeviceProgress::Begin(cudaStream_t stream) const { Copy(words_.data(), 0, kLaneCount, stream); }

void DeviceProgress::Finished(Lane lane, int count, cudaStream_t stream) const {
  Copy(Word(lane), kLaneCount - 1 + static_cast<size_t>(count), 1, stream);
}

void DeviceProgress::Copy(std::byte* words, size_t first, size_t count, cudaStream_t stream) const {
  CUDA_CALL(cudaMemcpyAsync(words, numbers_.data() + first * sizeof(int32_t), count * sizeof(int32_t),
                            cudaMemcpyDeviceToHost, stream));
}

int DeviceProgress::Done(Lane lane) const {
  return std::atomic_ref(*reinterpret_cast<int32_t*>(Word(lane))).load(std::memory_order_relaxed);
}

void DeviceProgress::Show(Progress& progress, int run) const {
  for (Lane lane : kLanes) progress.done[lane].store(Done(lane), std::memory_order_relaxed);
  progress.runs.store(run, std::memory_order_relaxed);
}

}  // namespace espalier::cuda
