#include "device_progress.hpp"

#include <atomic>
#include <numeric>
#include <vector>

namespace espalier::cuda {

DeviceProgress::DeviceProgress(int most) : words_(kLaneCount * sizeof(int32_t)), numbers_((static_cast<size_t>(most) + 1) * sizeof(int32_t)) {
  std::vector<int32_t> numbers(static_cast<size_t>(most) + 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  CopyToDevice(numbers_.data(), numbers.data(), numbers.size() * sizeof(int32_t));
}

void DeviceProgress::Begin(cudaStream_t stream) const {
  for (size_t lane = 0; lane < kLaneCount; ++lane) Finished(static_cast<Lane>(lane), 0, stream);
}

void DeviceProgress::Finished(Lane lane, int count, cudaStream_t stream) const {
  CUDA_CALL(cudaMemcpyAsync(Word(lane), numbers_.data() + static_cast<size_t>(count) * sizeof(int32_t), sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
}

void DeviceProgress::Show(Progress& progress, int run) const {
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    auto* word = reinterpret_cast<int32_t*>(Word(static_cast<Lane>(lane)));
    progress.done[lane].store(std::atomic_ref(*word).load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  progress.runs.store(run, std::memory_order_relaxed);
}

}  // namespace espalier::cuda
