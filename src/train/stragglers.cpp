#include "train/stragglers.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/comm/pack.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

constexpr double kSlow = 1.2;  // times the median of the peers

struct WindowOfRank {
  double ms = 0;
  std::string host;

  auto Fields() { return std::tie(ms, host); }
};

double MedianWithout(std::vector<double> times, size_t left_out) {
  times.erase(times.begin() + static_cast<std::ptrdiff_t>(left_out));
  std::ranges::sort(times);
  const size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

}  // namespace

std::vector<Straggler> FindStragglers(const std::vector<double>& ms, const Mesh& mesh) {
  std::map<int, std::vector<int>> stages;  // ranks
  for (int rank = 0; rank < mesh.Ranks(); ++rank)
    stages[mesh.CoordinateOf(rank)[static_cast<size_t>(Axis::kPp)]].push_back(rank);
  std::vector<Straggler> found;
  for (const auto& [stage, ranks] : stages) {
    if (ranks.size() < 2) continue;
    std::vector<double> times;
    for (const int rank : ranks) times.push_back(ms[static_cast<size_t>(rank)]);
    for (size_t i = 0; i < ranks.size(); ++i)
      if (const double peers = MedianWithout(times, i); times[i] > kSlow * peers)
        found.push_back({ranks[i], times[i], peers, ""});
  }
  std::ranges::sort(found, {}, &Straggler::rank);
  return found;
}

std::vector<Straggler> Stragglers::After(double compute_ms) {
  sum_ms_ += compute_ms;
  if (++steps_ % kWindow != 0 || world_.Size() == 1) return {};
  const WindowOfRank mine{sum_ms_ / static_cast<double>(kWindow), HostName()};
  sum_ms_ = 0;
  return Judge(world_.Gather(Pack(mine)));
}

std::vector<Straggler> Stragglers::Judge(const std::vector<std::string>& packed) {
  std::vector<WindowOfRank> ranks;
  std::vector<double> ms;
  for (const std::string& bytes : packed) ms.push_back(ranks.emplace_back(Unpack<WindowOfRank>(bytes)).ms);
  if (ranks.empty()) return {};
  std::vector<int> slow(ranks.size(), 0);
  std::vector<Straggler> named;
  for (Straggler& found : FindStragglers(ms, mesh_)) {
    const auto rank = static_cast<size_t>(found.rank);
    slow[rank] = (slow_.empty() ? 0 : slow_[rank]) + 1;
    found.host = ranks[rank].host;
    if (slow[rank] == kPatience) named.push_back(std::move(found));
  }
  slow_ = std::move(slow);
  return named;
}

}  // namespace espalier
