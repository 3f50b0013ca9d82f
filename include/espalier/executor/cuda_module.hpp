// The module for GPUs and its interface: a shared library with one entry, loaded only if needed. No header of CUDA or
// NCCL is needed here.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/executor/device.hpp"
#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

/// A GPU that this process may use.
struct Gpu {
  int index = 0;       ///< among the visible ones
  std::string name;    ///< "NVIDIA H200"
  std::string bus_id;  ///< "0000:1b:00.0"; the same GPU has the same one in every process of a node
  int64_t bytes = 0;   ///< memory of the device
  int capability = 0;  ///< compute capability: 90 is 9.0

  auto Fields() { return std::tie(index, name, bus_id, bytes, capability); }
};

/// The transport between ranks that compute on GPUs.
enum class GpuTransport : uint8_t {
  kMpi,   ///< staged through memory of the host: ranks may share a GPU
  kNccl,  ///< every rank needs a GPU of its own
};

/// How a run uses its GPU.
struct GpuOptions {
  GpuTransport transport = GpuTransport::kMpi;
  bool deterministic = true;  ///< same deck, same ranks, same bits
  std::string gemm_plans;     ///< file of `calibrate`; empty: none, or UseGemmPlans
  ByLane<int> ctas{};         ///< NcclOptions
};

/// attention_grad as a program calls it.
struct AttentionDemand {
  std::vector<Tensor> inputs, outputs;  ///< without memory
  Attributes attributes;
  int64_t calls = 0;  ///< in a step of one rank

  bool IsSameCall(const AttentionDemand& other) const;
};

struct AttentionTime {
  double microseconds = 0;             ///< time of one call
  std::vector<std::string> fallbacks;  ///< one message for each choice that could not be honoured
};

class CudaModule {
 public:
  virtual ~CudaModule() = default;
  /// "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
  virtual std::string Versions() const = 0;
  /// The visible GPUs. Throws UserError (kFault) if there is no driver, or one too old.
  virtual std::vector<Gpu> Gpus() const = 0;
  /// Opens one of them for this process; once. Throws UserError (kFault).
  virtual std::unique_ptr<Device> Open(const Gpu& gpu, const GpuOptions& options) = 0;
  /// Times GEMMs on the GPU that was opened, or the first visible one, in alternating rounds, and keeps the quickest
  /// algorithm of each; calls `measured` for each. Without demands it tells GPU and library alone.
  virtual GemmPlans MeasureGemms(std::span<const GemmDemand> demands,
                                 const std::function<void(const GemmPlan&)>& measured) = 0;
  /// The matmuls of executors that are made from now on go by `plans`, which were measured on such a GPU with such a
  /// library.
  virtual void UseGemmPlans(const GemmPlans& plans) = 0;
  /// The GPU that was opened, or the first visible one, and cuDNN.
  virtual Platform PlatformOfAttention() const = 0;
  /// Times one call there, on operands of its own. Throws UserError: kDeck if the library is too
  /// old for the call's attribute `backward`, kDoesNotFit if too little memory is free.
  virtual AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes) = 0;
};

/// A switch for tests (ESPALIER_NCCL_SELF=1): every communicator has one rank, and each message goes to its sender, so
/// that all NCCL calls run even where ranks share a GPU. Values then differ from the program's.
bool NcclToItself();

/// Whether to load the module, which costs 94 MB and 60 ms: this machine has a driver, or the module is named.
bool MayHaveGpus();

/// Loads `espalier_cuda.so` from the folder of this executable (a build) or from where `meson install` puts it
/// (lib/espalier of the same prefix), or the file that the environment variable ESPALIER_CUDA_MODULE names. It stays
/// loaded. Throws UserError (kFault) that names the missing part.
CudaModule& LoadCudaModule();

}  // namespace espalier

/// The module's entry.
extern "C" espalier::CudaModule* EspalierCudaModule();
