// espalier calibrate, the part that measures a machine.
#include "espalier/train/measure.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "espalier/comm/agreement.hpp"
#include "espalier/costs/costs.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/clock.hpp"
#include "train/job.hpp"
#include "train/measuring/host_link.hpp"
#include "train/measuring/ladder.hpp"
#include "train/measuring/machine.hpp"
#include "train/measuring/measure_deck.hpp"

namespace espalier {
namespace {

/// A deck with one of its shapes.
struct DeckShape {
  std::string text;  ///< "inputs/llama/tiny.toml, batch.micro 2, model.seq_len 128"
  LoadedDeck loaded;
};

/// Number of data-parallel replicas.
int64_t Replicas(const Mesh& mesh) { return mesh.GroupSize(kBatchAxes); }

/// The deck with other sizes, and with no more microbatches than its pipeline needs: the kernels are the same.
LoadedDeck Resized(const MeasureOptions& options, const std::string& path, const LoadedDeck& deck, const Mesh& mesh,
                   int64_t micro, int64_t seq_len) {
  const int64_t own = deck.deck.batch.global / (deck.deck.batch.micro * Replicas(mesh));
  const int64_t microbatches = std::min<int64_t>(own, 2 * mesh.Degree(Axis::kPp));
  std::vector<std::string> overrides = options.overrides;
  overrides.push_back(fmt::format("batch.micro={}", micro));
  overrides.push_back(fmt::format("batch.global={}", micro * Replicas(mesh) * microbatches));
  overrides.emplace_back("batch.ramp_start=0");
  overrides.push_back(fmt::format("model.seq_len={}", seq_len));
  // The times of kernels do not depend on their order.
  overrides.emplace_back("run.costs=\"\"");
  if (deck.deck.pipeline.schedule == ScheduleKind::kFile) {
    const int chunks = deck.deck.pipeline.chunks;
    overrides.push_back(fmt::format("pipeline.schedule={}", chunks > 1 ? "interleaved" : "1f1b"));
    overrides.push_back(fmt::format("pipeline.chunks={}", chunks));
  }
  return LoadDeck(path, overrides);
}

std::vector<DeckShape> ShapesOf(const MeasureOptions& options, const std::string& path, int ranks) {
  const LoadedDeck deck = LoadDeck(path, options.overrides);
  const Mesh mesh = ResolveMesh(deck, ranks);
  RequirePatternsMatch(deck);
  const int64_t micro = deck.deck.batch.micro, seq_len = deck.deck.model.seq_len;
  std::vector<std::pair<int64_t, int64_t>> sizes = {{micro, seq_len}};
  if (options.shapes == Shapes::kNeighbours) {
    if (micro % 2 == 0) sizes.emplace_back(micro / 2, seq_len);
    sizes.emplace_back(2 * micro, seq_len);
    if (seq_len % 2 == 0) sizes.emplace_back(micro, seq_len / 2);
    sizes.emplace_back(micro, 2 * seq_len);
  }
  std::vector<DeckShape> shapes;
  for (const auto& [m, s] : sizes)
    shapes.push_back(
        {fmt::format("{}, batch.micro {}, model.seq_len {}", path, m, s), Resized(options, path, deck, mesh, m, s)});
  return shapes;
}

/// The work of one rank. Prints on rank 0.
class Calibration {
 public:
  Calibration(const MeasureOptions& options, World& world, MpiWorld* mpi)
      : options_(options), world_(world), mpi_(mpi) {}

  void Run() {
    OnAllRanks(world_, [&] { LoadShapes(); });
    threads_ = AgreeOnThreads(base_, world_).count;
    Begin();
    if (world_.Size() > 1) AddTransfers();
    for (DeckShape& shape : shapes_) AddDeck(shape);
    OnAllRanks(world_, [&] {
      if (IsRankZero()) Finish();
    });
  }

 private:
  bool IsRankZero() const { return world_.Rank() == 0; }

  void Say(const std::string& line) const {
    if (!IsRankZero()) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  void LoadShapes() {
    for (const std::string& deck : options_.decks)
      for (DeckShape& shape : ShapesOf(options_, deck, world_.Size())) shapes_.push_back(std::move(shape));
    if (!shapes_.empty()) base_ = shapes_.front().loaded.deck;
  }

  std::unique_ptr<Device> Open(Deck& deck) const { return ChooseDevice(deck, world_, mpi_, threads_); }

  /// The file, or the machine if there is none.
  void Begin() {
    const auto device = Open(base_);
    machine_ = KeyOfMachine(*device, mpi_);
    bool found = false;
    OnAllRanks(world_, [&] {
      if (!IsRankZero()) return;
      if (auto file = LoadForMachine(options_.file, machine_)) cluster_ = std::move(*file), found = true;
      if (found && options_.steady_s > 0)
        throw UserError(ExitStatus::kDeck, fmt::format("{}: exists, and its keys stay as they are: --steady would set "
                                                       "device.sustained_share (name another file; a new one is made)",
                                                       options_.file));
    });
    if (world_.Max(found ? 1 : 0) == 0) {
      cluster_ = DescribeMachine(*device, world_, mpi_);
      if (device->Computes()) cluster_.host = MeasureHostLink(*device, world_, machine_.ranks_per_node);
    }
    cluster_.path = options_.file;
    Say(fmt::format("machine     {}, {} rank{} per node{}", machine_.name, machine_.ranks_per_node,
                    machine_.ranks_per_node == 1 ? "" : "s", found ? "; rows are added to " + options_.file : ""));
    if (found) return;
    const double memory = cluster_.compute.memory_bytes_per_us / 1e3;  // of a GPU: from its kernels, later
    Say(fmt::format("peak        {:.4g} TFLOP/s in bf16, {:.4g} in f32{}; per rank, {}", cluster_.compute.bf16_tflops,
                    cluster_.compute.fp32_tflops, memory > 0 ? fmt::format("; memory {:.4g} GB/s", memory) : "",
                    world_.Size() > 1 ? "all at the same time" : "alone"));
    const Cluster::Host& host = cluster_.host;
    Say(fmt::format("host        {:.4g} GB/s to it, {:.4g} GB/s from it; {}; a copy starts in {:.2g} us",
                    host.out_bytes_per_us / 1e3, host.in_bytes_per_us / 1e3,
                    host.dram_bytes_per_us > 0
                        ? fmt::format("all ranks together {:.4g} GB/s", host.dram_bytes_per_us / 1e3)
                        : "no rank slows another",
                    host.copy_us));
  }

  void AddTransfers() {
    const auto began = std::chrono::steady_clock::now();
    CostTable table = MeasureTransfers(world_, mpi_, [&] { return Open(base_); });
    for (auto& [key, points] : table.collectives) {
      if (IsRankZero() && points.size() > 1)
        Say(fmt::format("transfers   {:<14} {} ranks on {} node{}: {} of {:.1f} us, {} of {:.1f} us", Name(key.kind),
                        key.place.ranks, key.place.nodes, key.place.nodes == 1 ? "" : "s", points.begin()->first,
                        points.begin()->second.us, points.rbegin()->first, points.rbegin()->second.us));
      cluster_.table.collectives[key] = std::move(points);
    }
    SetLinks(cluster_);
    Say(fmt::format("            {} places and kinds, in {:.1f} s", table.collectives.size(),
                    MillisecondsSince(began) / 1e3));
  }

  void AddDeck(DeckShape& shape) {
    const auto device = Open(shape.loaded.deck);
    const MachineKey machine = KeyOfMachine(*device, mpi_);
    if (machine.name != machine_.name)
      throw UserError(ExitStatus::kDeck,
                      fmt::format("{}: computes on {}, the decks before on {}: calibrate them into files of their own",
                                  shape.text, machine.name, machine_.name));
    const bool first = &shape == &shapes_.front();
    const DeckMeasurement measured =
        MeasureDeck(shape.loaded.deck, world_, mpi_, *device, first ? options_.steady_s : 0);
    if (first && options_.steady_s > 0) AddLoad(measured.load);
    for (const auto& [key, row] : measured.table.kernels) cluster_.table.kernels[key] = row;
    for (const auto& [key, points] : measured.table.collectives)
      for (const auto& [bytes, point] : points) cluster_.table.collectives[key][bytes] = point;
    if (cluster_.compute.kernel_us == 0) cluster_.compute.kernel_us = measured.gap_us;
    if (device->Kind() == DeviceKind::kCuda)
      cluster_.compute.memory_bytes_per_us = std::max(cluster_.compute.memory_bytes_per_us, measured.bytes_per_us);
    Say(fmt::format("deck        {}: {} kernels, {} steps of {:.4g} ms, spread {:.1f} %, in {:.1f} s", shape.text,
                    measured.table.kernels.size(), measured.steps, measured.step_ms, 100 * measured.spread,
                    measured.seconds));
  }

  /// The formulas have their rates from short measurements. Rows are timed after the load, and need no share.
  void AddLoad(const SteadyLoad& load) {
    cluster_.compute.sustained_share = load.Share();
    Say(
        fmt::format("load        {:.0f} s, {} steps: {:.4g} ms in the first twentieth (burst), {:.4g} ms in the last "
                    "quarter (steady): sustained share {:.3f}",
                    load.seconds, load.steps, load.burst_ms, load.steady_ms, load.Share()));
    const std::string burst = Describe(load.burst), steady = Describe(load.steady);
    Say(burst.empty() ? fmt::format("clocks      not known: {}", load.no_clocks)
                      : fmt::format("clocks      {} (burst), {} (steady){}", burst, steady,
                                    world_.Size() > 1 ? "; means of all ranks" : ""));
    const std::string cause = CauseOfLoss(load.Share(), load.burst, load.steady);
    if (!cause.empty() && IsRankZero())
      spdlog::warn("the steady rate is {:.1f} % below the burst: {}", 100 * (1 - load.Share()), cause);
  }

  void Finish() {
    RequireRates(cluster_);
    WriteRows(cluster_);
    Say(fmt::format("{}: {} kernels, {} places and kinds of transfers", options_.file, cluster_.table.kernels.size(),
                    cluster_.table.collectives.size()));
  }

  const MeasureOptions& options_;
  World& world_;
  MpiWorld* mpi_;
  std::vector<DeckShape> shapes_;
  Deck base_{};  ///< determines the device
  int threads_ = 1;
  MachineKey machine_;
  Cluster cluster_;
};

}  // namespace

ExitStatus Measure(const MeasureOptions& options) {
  if (!options.decks.empty()) WaitBriefly(LoadDeck(options.decks.front(), options.overrides).deck);
  return RunJob([&](World& world, MpiWorld* mpi, Parts& parts) {
    parts.Make<Calibration>(options, world, mpi).Run();
    return ExitStatus::kDone;
  });
}

}  // namespace espalier
