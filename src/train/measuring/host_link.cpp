#include "train/measuring/host_link.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/median.hpp"

namespace espalier {
namespace {

/// How long copies between an arena of this rank's device and one on the host take.
class HostLink {
 public:
  static constexpr int64_t kBytes = int64_t{64} << 20;
  explicit HostLink(Device& device) : arena_(device.MakeArena(2 * kBytes)), host_(device.MakeStaging(2 * kBytes)) {}

  /// One copy of so many bytes, the best of a few, in us.
  double Us(Space to, int64_t bytes) const {
    double best_ms = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      const auto began = std::chrono::steady_clock::now();
      Copy(to, bytes);
      best_ms = std::min(best_ms, MillisecondsSince(began));
    }
    return best_ms * 1e3;
  }
  /// Bytes per us over a few copies to the host; where both arenas are in one memory, with as many back at the same
  /// time.
  double Together() const {
    const auto began = std::chrono::steady_clock::now();
    {
      std::optional<std::jthread> back;
      if (arena_->OnHost())
        back.emplace([this] {
          for (int round = 0; round < kRounds; ++round) Copy(Space::kDevice, kBytes);
        });
      for (int round = 0; round < kRounds; ++round) Copy(Space::kHost, kBytes);
    }
    return (arena_->OnHost() ? 2 : 1) * double(kRounds * kBytes) / (MillisecondsSince(began) * 1e3);
  }

 private:
  static constexpr int kRounds = 5;
  /// The two directions have parts of their own.
  void Copy(Space to, int64_t bytes) const {
    const int64_t at = to == Space::kHost ? 0 : kBytes;
    if (to == Space::kHost)
      arena_->Read(arena_->At(at, bytes), host_->At(at, bytes), bytes);
    else
      arena_->Write(arena_->At(at, bytes), host_->At(at, bytes), bytes);
  }

  std::unique_ptr<Arena> arena_, host_;
};

/// The measurements of a rank.
struct LinkRates {
  double out = 0, in = 0, start_us = 0, together = 0;
  auto Fields() { return std::tie(out, in, start_us, together); }
};

double MedianOver(const std::vector<LinkRates>& ranks, double LinkRates::*rate) {
  std::vector<double> values;
  for (const LinkRates& rank : ranks) values.push_back(rank.*rate);
  return MedianOf(std::move(values));
}

}  // namespace

Cluster::Host MeasureHostLink(Device& device, World& world, int ranks_per_node) {
  constexpr double kAsFast = 0.9;
  std::optional<HostLink> link;
  OnAllRanks(world, [&] { link.emplace(device); });
  LinkRates mine;
  for (int turn = 0; turn < ranks_per_node; ++turn) {
    world.Barrier();
    if (world.Rank() % ranks_per_node != turn) continue;
    mine.start_us = link->Us(Space::kHost, 1);
    for (const auto& [to, rate] : {std::pair(Space::kHost, &mine.out), std::pair(Space::kDevice, &mine.in)})
      *rate = HostLink::kBytes / std::max(link->Us(to, HostLink::kBytes) - mine.start_us, 1e-3);
  }
  world.Barrier();
  mine.together = link->Together();
  const std::vector<LinkRates> ranks = Gathered(world, mine);
  Cluster::Host host;
  if (ranks.empty()) return host;
  host.out_bytes_per_us = MedianOver(ranks, &LinkRates::out);
  host.in_bytes_per_us = MedianOver(ranks, &LinkRates::in);
  host.copy_us = MedianOver(ranks, &LinkRates::start_us);
  const double together = MedianOver(ranks, &LinkRates::together);
  if (device.Kind() == DeviceKind::kCpu || together < kAsFast * host.out_bytes_per_us)
    host.dram_bytes_per_us = together * ranks_per_node;
  return host;
}

}  // namespace espalier
