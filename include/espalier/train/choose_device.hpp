// Which device every rank of a run computes on, and what carries their messages.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/executor/cuda_module.hpp"

namespace espalier {

/// What a rank found of GPUs.
struct GpusOfRank {
  std::string host;
  int node_rank = 0;      ///< among the ranks of its host
  std::vector<Gpu> gpus;  ///< visible ones
  std::string missing;    ///< why there are none

  auto Fields() { return std::tie(host, node_rank, gpus, missing); }
};

/// A rank's GPU: one for each rank of a node where they suffice, else in turn. Where the launcher shows every rank but
/// one, that one.
const Gpu& GpuOf(const GpusOfRank& rank);

/// The settings that a run goes by.
struct DeviceChoice {
  RunDevice device;     ///< kCpu or kCuda
  Transport transport;  ///< kMpi or kNccl

  auto Fields() { return std::tie(device, transport); }
};

/// When ranks may share a GPU.
enum class Sharing : uint8_t { kOverMpi, kAlways };

/// What run.device and run.transport come to with these ranks: "auto" is cuda only if every rank has a GPU of its own.
/// Throws UserError: kFault if there are no GPUs where the deck asks for them, kDeck if ranks would share one over
/// nccl.
DeviceChoice Choose(RunDevice device, Transport transport, const std::vector<GpusOfRank>& ranks,
                    Sharing sharing = Sharing::kOverMpi);

/// What run.device = "auto" would come to on this host, and why: a sentence. It never fails.
std::string ForetellDevice(const Deck& deck);

/// The device that run.device = "auto" is planned for: cuda if this host shows a GPU, or the deck asks for nccl; and
/// why.
struct PlannedDevice {
  RunDevice device;
  std::string reason;
};
PlannedDevice PlanDevice(const Deck& deck);

/// Opens this rank's device, which computes with `threads` threads if it is a processor; writes into the deck what
/// "auto" came to. Collective.
std::unique_ptr<Device> ChooseDevice(Deck& deck, World& world, MpiWorld* mpi, int threads);

/// Rank 0 says what the ranks compute on. Collective.
void AnnounceDevices(const Device& device, World& world);

}  // namespace espalier
