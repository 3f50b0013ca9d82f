#include "train/health/links.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "espalier/util/clock.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFirstBytes = int64_t{256} << 10, kMaxBytes = int64_t{64} << 20, kGrowth = 4;
constexpr double kLongEnoughMs = 20;
constexpr int kPings = 20, kRepeats = 3;

/// This rank and one other.
class Pair {
 public:
  Pair(World& world, int peer) : world_(world), peer_(peer) {}

  double LatencyUs() {
    double best_ms = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kPings; ++i) {
      const auto began = Clock::now();
      Send(1);
      Receive(1);
      best_ms = std::min(best_ms, MillisecondsSince(began));
    }
    return best_ms * 1e3 / 2;
  }
  void Answer() {
    for (int i = 0; i < kPings; ++i) {
      Receive(1);
      Send(1);
    }
  }

  /// Messages that grow until one takes long enough, which is repeated. The receiver learns each size first, and 0 at
  /// the end.
  double RateOfSends() {
    double best = 0;
    int repeats = kRepeats;
    for (int64_t bytes = kFirstBytes; repeats > 0;) {
      SendNumber(bytes);
      const auto began = Clock::now();
      Send(bytes);
      Receive(1);
      const double ms = MillisecondsSince(began);
      best = std::max(best, static_cast<double>(bytes) / (ms * 1e3));
      if (repeats == kRepeats && ms < kLongEnoughMs && bytes < kMaxBytes)
        bytes *= kGrowth;
      else
        --repeats;
    }
    SendNumber(0);
    return best;
  }
  void ReceiveAll() {
    for (int64_t bytes = ReceiveNumber(); bytes > 0; bytes = ReceiveNumber()) {
      Receive(bytes);
      Send(1);
    }
  }

 private:
  std::byte* Buffer(int64_t bytes) {
    if (std::ssize(buffer_) < bytes) buffer_.resize(static_cast<size_t>(bytes));
    return buffer_.data();
  }
  void Send(int64_t bytes) {
    const Parcel parcel{peer_, Buffer(bytes), bytes};
    world_.Exchange({&parcel, 1}, {});
  }
  void Receive(int64_t bytes) {
    const Parcel parcel{peer_, Buffer(bytes), bytes};
    world_.Exchange({}, {&parcel, 1});
  }
  void SendNumber(int64_t number) {
    const Parcel parcel{peer_, reinterpret_cast<std::byte*>(&number), sizeof number};
    world_.Exchange({&parcel, 1}, {});
  }
  int64_t ReceiveNumber() {
    int64_t number = 0;
    const Parcel parcel{peer_, reinterpret_cast<std::byte*>(&number), sizeof number};
    world_.Exchange({}, {&parcel, 1});
    return number;
  }

  World& world_;
  const int peer_;
  std::vector<std::byte> buffer_;
};

/// First the lower rank sends, then the other.
LinkRate MeasureSends(World& world, int peer) {
  Pair pair(world, peer);
  LinkRate rate{world.Rank(), peer};
  for (const bool sends : {world.Rank() < peer, world.Rank() > peer})
    if (sends) {
      rate.latency_us = pair.LatencyUs();
      rate.bytes_per_us = pair.RateOfSends();
    } else {
      pair.Answer();
      pair.ReceiveAll();
    }
  return rate;
}

}  // namespace

std::vector<Pairs> Rounds(int count, int most) {
  const int even = count + count % 2;
  std::vector<Pairs> rounds;
  for (int round = 0; round < std::min(even - 1, most); ++round) {
    Pairs& pairs = rounds.emplace_back();
    const auto at = [&](int place) { return place == 0 ? 0 : 1 + (place - 1 + round) % (even - 1); };
    for (int i = 0; i < even / 2; ++i) {
      const auto [a, b] = std::minmax({at(i), at(even - 1 - i)});
      if (b < count) pairs.emplace_back(a, b);
    }
  }
  return rounds;
}

std::vector<LinkRate> MeasureLinks(World& world, const std::vector<Pairs>& rounds) {
  std::vector<LinkRate> mine;
  for (const Pairs& pairs : rounds) {
    world.Barrier();
    for (const auto& [a, b] : pairs) {
      if (a == world.Rank()) mine.push_back(MeasureSends(world, b));
      if (b == world.Rank()) mine.push_back(MeasureSends(world, a));
    }
  }
  return mine;
}

}  // namespace espalier
