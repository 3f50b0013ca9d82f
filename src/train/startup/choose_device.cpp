#include "espalier/train/choose_device.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "espalier/comm/agreement.hpp"
#include "espalier/costs/costs.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"
#include "train/startup/adapters.hpp"
#include "train/startup/same_start.hpp"

namespace espalier {
namespace {

/// GPUs of this rank. A missing module or driver is not an error yet.
GpusOfRank Look(const Deck& deck, MpiWorld* mpi) {
  GpusOfRank mine{HostName(), mpi == nullptr ? 0 : mpi->NodeRank(), {}, {}};
  if (deck.run.device == RunDevice::kAuto && !MayHaveGpus())
    return mine.missing = "cuda: there is no driver (libcuda.so.1)", mine;
  try {
    mine.gpus = LoadCudaModule().Gpus();
    if (mine.gpus.empty()) mine.missing = "cuda: there is no GPU (or CUDA_VISIBLE_DEVICES hides it)";
  } catch (const UserError& error) {
    mine.missing = error.what();
  }
  return mine;
}

/// The first two ranks that would share a GPU, in words; empty if there are none.
std::string Shared(const std::vector<GpusOfRank>& ranks) {
  std::map<std::pair<std::string, std::string>, size_t> users;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Gpu& gpu = GpuOf(ranks[r]);
    const auto [user, fresh] = users.emplace(std::pair(ranks[r].host, gpu.bus_id), r);
    if (!fresh)
      return fmt::format("ranks {} and {} would share {} ({}) on {}", user->second, r, gpu.bus_id, gpu.name,
                         ranks[r].host);
  }
  return "";
}

/// The first rank without a GPU, in words; empty if all have one.
std::string Missing(const std::vector<GpusOfRank>& ranks) {
  const auto without = std::ranges::find_if(ranks, [](const GpusOfRank& rank) { return rank.gpus.empty(); });
  return without == ranks.end()
             ? ""
             : fmt::format("rank {} on {}: {}", without - ranks.begin(), without->host, without->missing);
}

/// "cpu", "cuda", or "a refusal (why)", for this many ranks on one host.
std::string GpusText(const Deck& deck, const GpusOfRank& host, size_t count) {
  std::vector<GpusOfRank> ranks(count, host);
  for (size_t r = 0; r < count; ++r) ranks[r].node_rank = static_cast<int>(r);
  try {
    return std::string(DeckName(Choose(deck.run.device, deck.run.transport, ranks).device));
  } catch (const UserError& error) {
    return fmt::format("a refusal ({})", error.what());
  }
}

/// Rank 0 decides from what every rank found; all ranks get the choice.
DeviceChoice Agree(const Deck& deck, World& world, const GpusOfRank& mine) {
  const std::vector<GpusOfRank> ranks = Gathered(world, mine);
  return OnRankZero(world, [&] {
    return Choose(deck.run.device, deck.run.transport, ranks, NcclToItself() ? Sharing::kAlways : Sharing::kOverMpi);
  });
}

/// The cluster that this run waits for: the same file on every rank.
Cluster AgreeOnCluster(const std::string& path, World& world) {
  Cluster cluster;
  OnAllRanks(world, [&] { cluster = LoadCluster(path); });
  const std::string text = ToText(cluster), first = world.Broadcast(text);
  OnAllRanks(world, [&] {
    if (text != first)
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("run.cluster = \"{}\": rank {} on {} reads other contents there than rank 0: every rank "
                      "must read the same file",
                      path, world.Rank(), HostName()));
  });
  return cluster;
}

/// The file that run.gemm_plans names; empty: none.
std::string FileOfPlans(const Deck& deck) { return deck.run.gemm_plans == kMeasuredAtStart ? "" : deck.run.gemm_plans; }

std::string NearCores(const Gpu& gpu) {
  std::string bus_id = gpu.bus_id;
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string near = ReadSystemFile(fmt::format("/sys/bus/pci/devices/{}/local_cpulist", bus_id));
  while (near.ends_with('\n')) near.pop_back();
  return near;
}

/// Says on runs of several nodes which adapters are near the GPUs of each, and warns of lists that choose others.
/// Collective.
void ReportAdapters(const Gpu& gpu, Transport transport, World& world) {
  const char* variable = transport == Transport::kNccl ? "NCCL_IB_HCA" : "UCX_NET_DEVICES";
  const std::vector<RankOnNetwork> ranks =
      Gathered(world, FindAdapters(gpu.bus_id, variable, std::getenv(variable), "/sys"));
  for (const std::string& line : DescribeAdapters(ranks)) spdlog::info("adapters of {}", line);
  for (const std::string& line : WrongAdapters(ranks)) spdlog::warn("{}", line);
}

/// Warns of detours that make copies and messages of GPUs slow without an error. Collective.
void WarnOfDetours(const Gpu& gpu, const DeviceChoice& choice, World& world, const MpiWorld* mpi) {
  const std::string far = FarCores(gpu, NearCores(gpu), CoresOfThis().cores);
  std::vector<std::string> all;
  for (const std::string& text : world.Gather(far))
    if (!text.empty()) all.push_back(text);
  if (!all.empty()) spdlog::warn("{} of {} ranks: {}", all.size(), world.Size(), all.front());
  if (mpi == nullptr || mpi->NodeRanks() == world.Size()) return;
  ReportAdapters(gpu, choice.transport, world);
  if (world.Rank() == 0 && choice.transport == Transport::kMpi)
    spdlog::warn(
        "run.transport = \"mpi\": messages between nodes pass through the memory of hosts, many times slower "
        "than \"nccl\", which needs a GPU for every rank");
}

ByLane<int> CtasOf(const Deck::Overlap& overlap) {
  ByLane<int> ctas{};
  ctas[Lane::kTp] = overlap.tp_ctas;
  ctas[Lane::kCp] = overlap.cp_ctas;
  ctas[Lane::kDp] = overlap.dp_ctas;
  ctas[Lane::kPpSend] = ctas[Lane::kPpRecv] = overlap.pp_ctas;
  return ctas;
}

}  // namespace

const Gpu& GpuOf(const GpusOfRank& rank) { return rank.gpus[static_cast<size_t>(rank.node_rank) % rank.gpus.size()]; }

DeviceChoice Choose(RunDevice device, Transport transport, const std::vector<GpusOfRank>& ranks, Sharing sharing) {
  const std::string missing = Missing(ranks);
  if (device == RunDevice::kCpu || (device == RunDevice::kAuto && !missing.empty())) {
    if (transport == Transport::kNccl)
      throw UserError(ExitStatus::kDeck, fmt::format("run.transport = \"nccl\" is for GPUs, and run.device is cpu{}",
                                                     missing.empty() ? "" : fmt::format(": {}", missing)));
    return {RunDevice::kCpu, Transport::kMpi};
  }
  if (!missing.empty()) throw UserError(ExitStatus::kFault, missing);
  const std::string shared = sharing == Sharing::kAlways ? "" : Shared(ranks);
  if (device == RunDevice::kAuto && !shared.empty() && transport != Transport::kNccl)
    return {RunDevice::kCpu, Transport::kMpi};
  if (transport == Transport::kNccl && !shared.empty())
    throw UserError(
        ExitStatus::kDeck,
        fmt::format("run.transport: {}: nccl needs a GPU for every rank; \"mpi\" lets ranks share one", shared));
  if (transport != Transport::kAuto) return {RunDevice::kCuda, transport};
  return {RunDevice::kCuda, shared.empty() ? Transport::kNccl : Transport::kMpi};
}

void CheckPrecision(const Deck::Precision& precision, const Gpu& gpu) {
  constexpr int kFirstWithFp8 = 89, kWithRows = 90, kFirstWithMx = 100;
  if (precision.matmul != MatmulPrecision::kFp8) return;
  const std::string of_gpu = fmt::format("{} on {} has compute capability {}.{}", gpu.name, HostName(),
                                         gpu.capability / 10, gpu.capability % 10);
  if (gpu.capability < kFirstWithFp8)
    throw UserError(
        ExitStatus::kDeck,
        fmt::format("precision.matmul = \"fp8\": {}; fp8 needs 8.9 or later (allowed here: \"compute\")", of_gpu));
  if (precision.fp8_scaling == Fp8Scaling::kRow && gpu.capability != kWithRows)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("precision.fp8_scaling = \"row\": {}; cuBLASLt has it for 9.0 only (allowed here: {})",
                                of_gpu, gpu.capability < kFirstWithMx ? "\"tensor\"" : "\"tensor\" and \"mx\""));
  if (precision.fp8_scaling == Fp8Scaling::kMx && gpu.capability < kFirstWithMx)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("precision.fp8_scaling = \"mx\": {}; MXFP8 needs 10.0 or later (allowed here: {})",
                                of_gpu, gpu.capability == kWithRows ? "\"tensor\" and \"row\"" : "\"tensor\""));
}

std::string FarCores(const Gpu& gpu, const std::string& near, const std::vector<int>& cores) {
  if (near.empty()) return "";
  std::istringstream ranges(near);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    const int numbers = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (numbers == 1) last = first;
    if (numbers >= 1 && std::ranges::any_of(cores, [&](int core) { return first <= core && core <= last; })) return "";
  }
  return fmt::format(
      "the process may use cores {} of {}, and cores {} are near its GPU {}: copies and messages pass "
      "between sockets (bind ranks near their GPUs: srun --gpu-bind=closest, mpirun --map-by)",
      fmt::join(cores, ","), HostName(), near, gpu.bus_id);
}

std::string PredictDevice(const Deck& deck) {
  const GpusOfRank here = Look(deck, nullptr);
  const size_t count = here.gpus.size();
  if (count == 0)
    return deck.run.transport == Transport::kNccl ? "comes to " + GpusText(deck, here, 1)
                                                  : fmt::format("comes to cpu on this host: {}", here.missing);
  return fmt::format("comes to {} on this host, which has {} GPU{} ({}), for {}, and to {} for more",
                     GpusText(deck, here, count), count, count == 1 ? "" : "s", here.gpus[0].name,
                     count == 1 ? "one rank" : "as many ranks", GpusText(deck, here, count + 1));
}

std::string PrecisionAdvice(const Deck& deck) {
  if (deck.precision.compute != Dtype::kBf16 || !CpuWidensBf16()) return "";
  return fmt::format(
      "precision.compute = \"bf16\": this processor ({}) has no bf16 instructions: fp32 is as fast and "
      "more exact, and bf16 only saves memory",
      CpuLevel());
}

PlannedDevice PlanDevice(const Deck& deck) {
  if (deck.run.device == RunDevice::kSleep) {
    const Cluster cluster = LoadCluster(deck.run.cluster);
    return {cluster.device == DeviceKind::kCuda ? RunDevice::kCuda : RunDevice::kCpu,
            fmt::format("run.device = \"sleep\", as {} ({})", cluster.name, cluster.path)};
  }
  if (deck.run.device != RunDevice::kAuto)
    return {deck.run.device, fmt::format("run.device = \"{}\"", DeckName(deck.run.device))};
  if (deck.run.transport == Transport::kNccl)
    return {RunDevice::kCuda, "run.device = \"auto\" with run.transport = \"nccl\""};
  const GpusOfRank here = Look(deck, nullptr);
  if (here.gpus.empty()) return {RunDevice::kCpu, fmt::format("run.device = \"auto\" on this host; {}", here.missing)};
  return {RunDevice::kCuda,
          fmt::format("run.device = \"auto\" on this host, which has {} x {}", here.gpus.size(), here.gpus[0].name)};
}

std::unique_ptr<Device> ChooseDevice(Deck& deck, World& world, MpiWorld* mpi, int threads) {
  if (deck.run.device == RunDevice::kSleep)
    return MakeSleepDevice(Costs(AgreeOnCluster(deck.run.cluster, world), {}, JobOf(deck, world.Size())),
                           deck.run.dilation);
  GpusOfRank mine{"", 0, {}, "run.device = \"cpu\" asks for none"};
  if (deck.run.device != RunDevice::kCpu) mine = Look(deck, mpi);
  const DeviceChoice choice = Agree(deck, world, mine);
  deck.run.device = choice.device;
  deck.run.transport = choice.transport;
  if (choice.device == RunDevice::kCpu) AgreeOnLevel(world);
  std::unique_ptr<Device> device;
  OnAllRanks(world, [&] {
    if (choice.device == RunDevice::kCuda) CheckPrecision(deck.precision, GpuOf(mine));
    if (choice.device == RunDevice::kCuda)
      device = LoadCudaModule().Open(GpuOf(mine),
                                     {choice.transport == Transport::kNccl ? GpuTransport::kNccl : GpuTransport::kMpi,
                                      deck.run.deterministic, FileOfPlans(deck), CtasOf(deck.overlap)});
    else if (const std::string plans = FileOfPlans(deck); !plans.empty() && !std::filesystem::exists(plans))
      throw UserError(ExitStatus::kDeck, fmt::format("run.gemm_plans = \"{}\": no such file", plans));
    else
      device = MakeCpuDevice(threads);
  });
  if (choice.device == RunDevice::kCuda) WarnOfDetours(GpuOf(mine), choice, world, mpi);
  return device;
}

std::vector<std::string> DescribeDevices(const Device& device, World& world) { return world.Gather(device.Describe()); }

}  // namespace espalier
