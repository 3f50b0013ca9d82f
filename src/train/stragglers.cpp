#include "train/stragglers.hpp"

#include <algorithm>
#include <tuple>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

constexpr double kSlow = 1.2;      // times the median of the peers
constexpr double kSlowLink = 1.5;  // the same of messages, whose times vary more
constexpr double kMatters = 0.05;  // of a step

double MedianWithout(std::vector<double> times, size_t left_out) {
  times.erase(times.begin() + static_cast<std::ptrdiff_t>(left_out));
  std::ranges::sort(times);
  const size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

/// The axes of a group whose ranks exchange what `carrier` carries.
AxisSet GroupOf(CommAxis carrier) {
  if (carrier == CommAxis::kTp) return kTensorAxes;
  return carrier == CommAxis::kDp ? kTokenAxes : AxesWith(&AxisRow::activations, carrier);
}

/// Ranks by the place of their group among the peers: each list has the groups of one stage, or all pipelines.
std::map<int, std::vector<std::vector<int>>> GroupsOf(CommAxis carrier, const Mesh& mesh) {
  std::map<int, std::vector<std::vector<int>>> groups;
  if (mesh.GroupSize(GroupOf(carrier)) == 1) return groups;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Coordinate coordinate = mesh.CoordinateOf(rank);
    std::vector<int> ranks = mesh.GroupRanks(GroupOf(carrier), coordinate);
    const int stage = carrier == CommAxis::kPp ? 0 : coordinate[Axis::kPp];
    if (std::ranges::min(ranks) == rank) groups[stage].push_back(std::move(ranks));
  }
  return groups;
}

/// Counts windows in a row. Returns whether this one makes it so many that the name is said.
template <typename Key>
bool NamedNow(const std::map<Key, int>& before, std::map<Key, int>& now, const Key& key) {
  const auto found = before.find(key);
  return (now[key] = (found == before.end() ? 0 : found->second) + 1) == Stragglers::kPatience;
}

}  // namespace

struct Stragglers::Window {
  double step_ms = 0, compute_ms = 0;
  ByCommAxis<double> comm_ms{};
  std::string host;

  auto Fields() { return std::tie(step_ms, compute_ms, comm_ms, host); }
};

std::vector<Straggler> FindStragglers(const std::vector<double>& ms, const Mesh& mesh) {
  std::map<int, std::vector<int>> stages;  // ranks
  for (int rank = 0; rank < mesh.Ranks(); ++rank) stages[mesh.CoordinateOf(rank)[Axis::kPp]].push_back(rank);
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

std::vector<SlowLink> FindSlowLinks(const std::vector<ByCommAxis<double>>& ms, const Mesh& mesh, double step_ms) {
  std::vector<SlowLink> found;
  for (const CommAxis carrier : kCommAxes)
    for (const auto& [stage, groups] : GroupsOf(carrier, mesh)) {
      if (groups.size() < 2) continue;
      std::vector<double> times;
      for (const std::vector<int>& ranks : groups) {
        std::vector<double> of_ranks;
        for (const int rank : ranks) of_ranks.push_back(ms[static_cast<size_t>(rank)][carrier]);
        times.push_back(std::ranges::min(of_ranks));
      }
      for (size_t i = 0; i < groups.size(); ++i)
        if (const double peers = MedianWithout(times, i);
            times[i] > kSlowLink * peers && times[i] - peers > kMatters * step_ms)
          found.push_back({carrier, groups[i], times[i], peers, {}});
    }
  return found;
}

SlowParts Stragglers::After(double step_ms, double compute_ms, const std::optional<CommTimes>& comm) {
  sum_ms_ += step_ms;
  compute_ms_ += compute_ms;
  for (const CommAxis axis : kCommAxes)
    if (comm) comm_ms_[axis] += comm->exposed_ms[axis] + comm->hidden_ms[axis];
  if (++steps_ % kWindow != 0 || world_.Size() == 1) return {};
  const auto mean = [](double& sum) { return std::exchange(sum, 0.0) / static_cast<double>(kWindow); };
  Window mine{mean(sum_ms_), mean(compute_ms_), {}, HostName()};
  for (const CommAxis axis : kCommAxes) mine.comm_ms[axis] = mean(comm_ms_[axis]);
  return Judge(Gathered(world_, mine));
}

SlowParts Stragglers::Judge(const std::vector<Window>& ranks) {
  if (ranks.empty()) return {};
  std::vector<double> compute_ms;
  std::vector<ByCommAxis<double>> comm_ms;
  double step_ms = 0;
  for (const Window& window : ranks) {
    step_ms = std::max(step_ms, window.step_ms);
    compute_ms.push_back(window.compute_ms);
    comm_ms.push_back(window.comm_ms);
  }
  SlowParts named;
  std::map<int, int> slow_ranks;
  for (Straggler& found : FindStragglers(compute_ms, mesh_)) {
    found.host = ranks[static_cast<size_t>(found.rank)].host;
    if (NamedNow(slow_ranks_, slow_ranks, found.rank)) named.ranks.push_back(std::move(found));
  }
  slow_ranks_ = std::move(slow_ranks);
  std::map<std::pair<CommAxis, int>, int> slow_links;
  for (SlowLink& found : FindSlowLinks(comm_ms, mesh_, step_ms)) {
    for (const int rank : found.ranks)
      if (const std::string& host = ranks[static_cast<size_t>(rank)].host; std::ranges::count(found.hosts, host) == 0)
        found.hosts.push_back(host);
    if (NamedNow(slow_links_, slow_links, std::pair(found.axis, found.ranks.front())))
      named.links.push_back(std::move(found));
  }
  slow_links_ = std::move(slow_links);
  return named;
}

}  // namespace espalier
