// The kernels under test are the cuda backend's, on this machine's first GPU; without one the binary exits with 77.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "unit/tested_kernels.hpp"

namespace espalier::testing {
namespace {

/// Memory of the device, as far from a boundary of 16 bytes as `like` is.
class DeviceMemory {
 public:
  DeviceMemory(size_t bytes, const void* like) : offset_(reinterpret_cast<uintptr_t>(like) % 16) {
    CUDA_CALL(cudaMalloc(&memory_, bytes + offset_ + 1));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(memory_); }
  void* data() const { return static_cast<char*>(memory_) + offset_; }

 private:
  void* memory_ = nullptr;
  size_t offset_;
};

size_t BytesOf(const Tensor& x) { return static_cast<size_t>(Volume(x.shape) * SizeOf(x.dtype)); }

/// The tensors of a call on the device: those with one address once, and neighbours as neighbours.
class DeviceTensors {
 public:
  std::vector<Tensor> Upload(std::span<const Tensor> tensors) {
    std::vector<Tensor> there;
    for (size_t i = 0; i < tensors.size(); ++i) {
      Tensor x = tensors[i];
      if (!there_.contains(x.data)) PlaceWithNeighbours(tensors.subspan(i));
      CUDA_CALL(cudaMemcpy(there_.at(x.data), x.data, BytesOf(x), cudaMemcpyHostToDevice));
      x.data = there_.at(x.data);
      there.push_back(x);
    }
    return there;
  }
  void Download(std::span<const Tensor> tensors) const {
    for (const Tensor& x : tensors)
      CUDA_CALL(cudaMemcpy(x.data, there_.at(x.data), BytesOf(x), cudaMemcpyDeviceToHost));
  }

 private:
  /// Memory for the first tensor and those that follow it in the host's.
  void PlaceWithNeighbours(std::span<const Tensor> tensors) {
    auto* const begin = static_cast<char*>(tensors[0].data);
    size_t bytes = 0, count = 0;
    for (; count < tensors.size() && tensors[count].data == begin + bytes; ++count) bytes += BytesOf(tensors[count]);
    memory_.push_back(std::make_unique<DeviceMemory>(bytes, begin));
    for (const Tensor& x : tensors.first(count))
      there_[x.data] = static_cast<char*>(memory_.back()->data()) + (static_cast<char*>(x.data) - begin);
  }

  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::map<void*, void*> there_;  // by address on the host
};

}  // namespace

bool IsTested(std::string_view op) { return FindCudaKernel(op) != nullptr; }

void RunTested(std::string_view op, const KernelCall& call) {
  constexpr int kNan = 0xff;
  DeviceTensors tensors;
  const std::vector<Tensor> inputs = tensors.Upload(call.inputs), outputs = tensors.Upload(call.outputs);
  const int64_t bytes = PlannedWorkspace(op, call);
  const DeviceMemory workspace(static_cast<size_t>(bytes), nullptr);
  CUDA_CALL(cudaMemset(workspace.data(), kNan, static_cast<size_t>(bytes)));
  KernelCall planned = call;
  planned.inputs = inputs;
  planned.outputs = outputs;
  planned.workspace = workspace.data();
  planned.workspace_bytes = bytes;
  PrepareCudaKernel(op, planned);
  FindCudaKernel(op)(planned);
  CUDA_CALL(cudaDeviceSynchronize());
  tensors.Download(call.outputs);
}

std::span<const int> OtherWays() {
  static constexpr int kTwiceMore[] = {1, 2};
  return kTwiceMore;
}
void SetWay(int) {}
bool RefusesOnTheDevice() { return true; }
bool Multiplies(Scales scales) {
  int device = 0;
  cudaDeviceProp properties{};
  CUDA_CALL(cudaGetDevice(&device));
  CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  const int capability = 10 * properties.major + properties.minor;
  return scales == Scales::kMx ? capability >= 100 : scales == Scales::kRow ? capability == 90 : capability >= 89;
}

}  // namespace espalier::testing

int main(int argc, char** argv) {
  int devices = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&devices); code != cudaSuccess || devices == 0) {
    std::cout << "skipped: no NVIDIA GPU (" << cudaGetErrorString(code) << ")\n";
    return 77;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
