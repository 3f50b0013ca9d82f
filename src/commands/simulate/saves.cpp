#include "commands/simulate/saves.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

/// Steps between two saves; 0: no interval is set.
double Interval(const Deck::Checkpoint& checkpoint, double step_s) {
  const double by_steps = static_cast<double>(checkpoint.every_steps);
  const double by_clock = std::ceil(checkpoint.every_s / step_s);
  if (by_steps == 0 || by_clock == 0) return std::max(by_steps, by_clock);
  return std::min(by_steps, by_clock);
}

/// Checkpoints at the interval before the last step, the one after it, and the initial weights if the deck asks for
/// them.
int64_t Count(const Deck& deck, double every_steps) {
  const auto between =
      every_steps > 0 ? static_cast<int64_t>(std::floor(static_cast<double>(deck.run.steps - 1) / every_steps)) : 0;
  return between + 1 + (deck.checkpoint.at_start ? 1 : 0);
}

/// Bytes of the node that writes most; ranks fill nodes in order.
int64_t LargestNode(const std::vector<int64_t>& rank_bytes, int ranks_per_node) {
  int64_t most = 0;
  for (size_t first = 0; first < rank_bytes.size(); first += static_cast<size_t>(ranks_per_node)) {
    const size_t end = std::min(rank_bytes.size(), first + static_cast<size_t>(ranks_per_node));
    most = std::max(most, std::accumulate(rank_bytes.begin() + static_cast<std::ptrdiff_t>(first),
                                          rank_bytes.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0}));
  }
  return most;
}

/// Time to copy into the staging buffer. On CPUs that is a copy in memory, which reads and writes every byte.
std::optional<double> CopySeconds(int64_t bytes, const Cluster& cluster) {
  double rate = cluster.compute.host_bytes_per_us;
  if (rate == 0 && cluster.device == DeviceKind::kCpu) rate = cluster.compute.memory_bytes_per_us / 2;
  if (rate == 0) return std::nullopt;
  return static_cast<double>(bytes) / rate * kMicro;
}

/// Time to send the shard of each rank to another node.
std::optional<double> SendSeconds(int64_t rank_bytes, const Cluster& cluster, int nodes) {
  if (nodes == 1) return 0;
  const LinkModel& network = cluster.network;
  const double rate = network.pair_bytes_per_us > 0 ? network.pair_bytes_per_us : network.bytes_per_us;
  if (rate == 0) return std::nullopt;
  return (network.message_us + static_cast<double>(rank_bytes) / rate) * kMicro;
}

std::optional<double> WriteSeconds(const Saves& saves, const Cluster::Storage& storage) {
  if (storage.node_bytes_per_us == 0) return std::nullopt;
  const double of_node = static_cast<double>(saves.node_bytes) / storage.node_bytes_per_us;
  const double of_all =
      storage.total_bytes_per_us > 0 ? static_cast<double>(saves.bytes) / storage.total_bytes_per_us : 0;
  return std::max(of_node, of_all) * kMicro;
}

std::optional<double> BlockedSeconds(const Saves& saves, double step_s) {
  if (saves.staged && !saves.copy_s) return std::nullopt;
  const double copy_s = saves.staged ? *saves.copy_s : 0;
  if (!saves.asynchronous) return saves.write_s ? std::optional(copy_s + *saves.write_s) : std::nullopt;
  const double interval_s = saves.every_steps * step_s;
  const bool overtaken = saves.every_steps > 0 && saves.write_s && *saves.write_s > interval_s;
  return copy_s + (overtaken ? *saves.write_s - interval_s : 0);
}

}  // namespace

Saves SavesOf(const Prediction& prediction) {
  const Compilation& c = prediction.plan.training;
  const Cluster& cluster = prediction.target.cluster;
  const double step_s = prediction.simulation.step_us * kMicro;
  const std::vector<int64_t> rank_bytes = StagingBytes(StateTensors(c), c.mesh);
  Saves saves;
  saves.every_steps = Interval(c.deck.checkpoint, step_s);
  saves.count = Count(c.deck, saves.every_steps);
  saves.asynchronous = c.deck.checkpoint.asynchronous;
  saves.bytes = std::accumulate(rank_bytes.begin(), rank_bytes.end(), int64_t{0});
  saves.node_bytes = LargestNode(rank_bytes, cluster.ranks_per_node);
  saves.rank_bytes = std::ranges::max(rank_bytes);
  saves.copy_s = CopySeconds(saves.rank_bytes, cluster);
  saves.write_s = WriteSeconds(saves, cluster.storage);
  saves.staged = saves.asynchronous || cluster.device == DeviceKind::kCuda;
  saves.blocked_s = BlockedSeconds(saves, step_s);
  return saves;
}

MemoryCopies MemoryCopiesOf(const Prediction& prediction, const Saves& saves) {
  constexpr int64_t kGenerations = 2;
  const Deck& deck = prediction.deck();
  const int64_t steps = deck.checkpoint.memory_steps;
  if (steps == 0) return {};
  const int copies = prediction.nodes() > 1 ? 2 : 1;
  MemoryCopies result{(deck.run.steps - 1) / steps, steps, kGenerations * copies * saves.rank_bytes, {}, {}};
  const auto sent_s = SendSeconds(saves.rank_bytes, prediction.target.cluster, prediction.nodes());
  if (!saves.copy_s || !sent_s) return result;
  result.copy_s = (saves.staged ? 1 + copies : copies) * *saves.copy_s + *sent_s;
  result.blocked_s = saves.asynchronous ? *saves.copy_s : *result.copy_s;
  return result;
}

}  // namespace espalier
