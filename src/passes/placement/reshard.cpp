// From one set of placements to another with the fewest bytes: a shortest path over placements (Dijkstra 1959), whose
// edges are the collectives and local ops of placement_moves.hpp. Among equals it is the route with the fewest
// messages, then the fewest ops, then a fixed order of kinds: the same on every machine. Axes on which source and
// target agree are never moved, so that no traffic goes over the links of other parallelisms.
#include "espalier/passes/reshard.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "espalier/util/error.hpp"
#include "passes/placement/placement_moves.hpp"

namespace espalier {
namespace {

/// Big-endian, so that keys order as the sets do.
void Append(std::string& key, AxisSet axes) {
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(axes.bits() >> shift);
}

/// Placements as a compact key.
std::string TextOf(const Placements& p) {
  std::string key;
  for (const std::vector<Axis>& dim : p.dims) {
    for (Axis a : dim) key += static_cast<char>('a' + static_cast<int>(a));
    key += '|';
  }
  Append(key, p.partial_sum);
  Append(key, p.partial_max);
  return key;
}

/// For messages; the extents are not known here.
std::string Text(const Placements& p) { return ToString({Dtype::kF32, Shape(p.dims.size(), 0), p}); }

/// The axes that must change: all but those that are replicated in both, are partial in both, or shard the same dim at
/// the same position. A partial maximum can be reduced only after all partial sums.
AxisSet MovingAxes(const Placements& from, const Placements& to, const Mesh& mesh) {
  AxisSet fixed;
  if ((from.partial_max - to.partial_max).Empty()) fixed = fixed | (from.partial_sum & to.partial_sum);
  fixed = fixed | (from.partial_max & to.partial_max);
  for (size_t d = 0; d < from.dims.size(); ++d) {
    const std::vector<Axis>&a = from.dims[d], &b = to.dims[d];
    for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) fixed.Add(a[i]);
  }
  return mesh.Real(from.Sharded() | from.Partial() | to.Sharded() | to.Partial()) - fixed;
}

struct Cost {
  int64_t sent = 0;
  int messages = 0;
  std::vector<MoveKind> kinds;

  bool operator<(const Cost& o) const {
    const size_t n = kinds.size(), m = o.kinds.size();
    return std::tie(sent, messages, n, kinds) < std::tie(o.sent, o.messages, m, o.kinds);
  }
};

Cost operator+(Cost cost, const Move& move) {
  cost.sent += move.sent;
  cost.messages += IsLocal(move.kind) ? 0 : 1;
  cost.kinds.push_back(move.kind);
  return cost;
}

struct Route {
  std::vector<ReshardStep> steps;
  int64_t sent = 0;  ///< in units (PartsOf)
  AxisSet moving;
};

/// Dijkstra's search from one end to the other.
class Search {
 public:
  Search(const Placements& from, const Placements& to, const Mesh& mesh)
      : mesh_(mesh), from_(from), to_(to), goal_(TextOf(to)), moving_(MovingAxes(from, to, mesh)) {
    Reach({}, from, "", nullptr);
  }

  Route Run() {
    while (!open_.empty()) {
      const auto [cost, key] = *open_.begin();
      open_.erase(open_.begin());
      if (key == goal_) return RouteTo(key);
      const Placements here = places_.at(key).placements;
      for (const Move& move : MovesFrom(here, moving_, mesh_)) Reach(cost + move, move.placements, key, &move);
    }
    CHECK(false, "no steps lead from {} to {}", Text(from_), Text(to_));
  }

 private:
  struct Place {
    Placements placements;
    Cost cost;
    std::string before;
    ReshardStep step;
  };

  void Reach(const Cost& cost, const Placements& placements, const std::string& before, const Move* move) {
    std::string key = TextOf(placements);
    const auto [it, fresh] = places_.try_emplace(key);
    if (!fresh) {
      if (!(cost < it->second.cost)) return;
      open_.erase({it->second.cost, key});
    }
    ReshardStep step;
    if (move != nullptr) step = {OpOf(move->kind), move->axes, placements};
    it->second = {placements, cost, before, std::move(step)};
    open_.emplace(cost, std::move(key));
  }

  Route RouteTo(std::string key) const {
    Route route;
    route.sent = places_.at(key).cost.sent;
    route.moving = moving_;
    for (const Place* p = &places_.at(key); p->step.kind != OpKind::kNone; p = &places_.at(p->before))
      route.steps.push_back(p->step);
    std::reverse(route.steps.begin(), route.steps.end());
    return route;
  }

  const Mesh& mesh_;
  const Placements &from_, &to_;
  std::string goal_;
  AxisSet moving_;
  std::map<std::string, Place> places_;
  std::set<std::pair<Cost, std::string>> open_;
};

/// Routes are cached: they depend on placements and degrees alone, and deep models need the same few.
const Route& FindRoute(const Placements& from, const Placements& to, const Mesh& mesh) {
  static std::mutex mutex;
  static std::map<std::string, Route> known;
  std::string key = TextOf(from) + TextOf(to);
  for (Axis a : kAxes) key += std::to_string(mesh.Degree(a)) + " ";
  const std::lock_guard lock(mutex);
  const auto it = known.find(key);
  if (it != known.end()) return it->second;
  return known.emplace(std::move(key), Search(from, to, mesh).Run()).first->second;
}

}  // namespace

std::vector<ReshardStep> PlanReshard(const Type& from, const Placements& to, const Mesh& mesh) {
  CHECK(from.placements.dims.size() == to.dims.size(), "{} resharded to {} dims", ToString(from), to.dims.size());
  return FindRoute(from.placements, to, mesh).steps;
}

int64_t ReshardTraffic(const Type& from, const Placements& to, const Mesh& mesh) {
  const Route& route = FindRoute(from.placements, to, mesh);
  const int64_t common = Volume(from.shape) / mesh.GroupSize(from.placements.Sharded() - route.moving);
  return common * route.sent / UnitsPerShard(route.moving, mesh);
}

}  // namespace espalier
