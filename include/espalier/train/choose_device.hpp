// Which device each rank of a run computes on, and which transport carries the messages.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/executor/cuda_module.hpp"

namespace espalier {

/// The GPUs that a rank found.
struct GpusOfRank {
  std::string host;
  int node_rank = 0;      ///< position among the ranks of its host
  std::vector<Gpu> gpus;  ///< visible ones
  std::string missing;    ///< why there are none

  auto Fields() { return std::tie(host, node_rank, gpus, missing); }
};

/// The GPU of a rank: the ranks of a node take its GPUs in turn. If the launcher shows each rank only one GPU, it is
/// that one.
const Gpu& GpuOf(const GpusOfRank& rank);

/// The settings after "auto" is resolved.
struct DeviceChoice {
  RunDevice device;     ///< kCpu or kCuda
  Transport transport;  ///< kMpi or kNccl

  auto Fields() { return std::tie(device, transport); }
};

/// When ranks may share a GPU.
enum class Sharing : uint8_t { kOverMpi, kAlways };

/// Resolves run.device and run.transport for these ranks: "auto" is cuda only if every rank has a GPU of its own.
/// Throws UserError: kFault if there are no GPUs where the deck asks for them, kDeck if ranks would share one over
/// nccl.
DeviceChoice Choose(RunDevice device, Transport transport, const std::vector<GpusOfRank>& ranks,
                    Sharing sharing = Sharing::kOverMpi);

/// Throws UserError (kDeck) if the GPU has no matmuls for the deck's precision: fp8 needs compute capability 8.9,
/// scales by row need exactly 9.0, and scales of blocks (MXFP8) 10.0.
void CheckPrecision(const Deck::Precision& precision, const Gpu& gpu);

/// A message if none of a rank's cores is near its GPU, else empty. `near`: the cores of the GPU's socket as the system
/// lists them, "0-15,64-79"; empty if it does not.
std::string FarCores(const Gpu& gpu, const std::string& near, const std::vector<int>& cores);

/// A sentence: the device that run.device = "auto" would choose on this host, and why. Never fails.
std::string PredictDevice(const Deck& deck);

/// A message why fp32 is the better `precision.compute` on this processor; "" if the deck already has it, or the
/// instruction level multiplies bf16.
std::string PrecisionAdvice(const Deck& deck);

/// The device that `plan` compiles for, kCpu or kCuda, and why. For run.device = "auto": cuda if this host has a GPU or
/// the deck asks for nccl. For "sleep": the device of run.cluster; throws UserError (kDeck) if the file cannot be read.
struct PlannedDevice {
  RunDevice device;
  std::string reason;
};
PlannedDevice PlanDevice(const Deck& deck);

/// Opens this rank's device (a CPU with `threads` threads, a GPU, or one that waits) and writes the resolved settings
/// into the deck. Collective.
std::unique_ptr<Device> ChooseDevice(Deck& deck, World& world, MpiWorld* mpi, int threads);

/// Device::Describe of every rank, on rank 0. Collective.
std::vector<std::string> DescribeDevices(const Device& device, World& world);

}  // namespace espalier
