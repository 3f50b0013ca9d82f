// From one set of placements to another in the fewest bytes: cut before joining, join before gathering. Each step is one
// collective over one group of axes (or a local slice).
#include <algorithm>

#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

class Planner {
 public:
  Planner(const Type& from, const Placements& to, const Mesh& mesh) : now_(from.placements), to_(to), mesh_(mesh) {}

  std::vector<ReshardStep> Plan() {
    CHECK(to_.Partial().Empty() || to_ == now_, "a reshard never makes a value partial");
    while (now_ != to_) {
      const bool moved = Append("reduce_scatter", now_.Partial()) || Append("slice", Replicated()) || Join() || Turn() ||
                         Gather();
      CHECK(moved, "reshard is stuck");
    }
    return std::move(steps_);
  }

 private:
  void Step(std::string kind, AxisSet axes) { steps_.push_back({std::move(kind), axes, now_}); }

  AxisSet Replicated() const {
    AxisSet axes;
    for (Axis a : kAxes)
      if (mesh_.Degree(a) > 1 && !now_.Sharded().Has(a) && !now_.Partial().Has(a)) axes.Add(a);
    return axes;
  }

  /// Shards further, on a dim whose axes so far are right, by as many of the next axes as are in `allowed`.
  bool Append(const char* kind, AxisSet allowed) {
    for (size_t d = 0; d < to_.dims.size(); ++d) {
      std::vector<Axis>& now = now_.dims[d];
      const std::vector<Axis>& to = to_.dims[d];
      if (now.size() > to.size() || !std::equal(now.begin(), now.end(), to.begin())) continue;
      AxisSet axes;
      while (now.size() < to.size() && allowed.Has(to[now.size()])) {
        axes.Add(to[now.size()]);
        now.push_back(to[now.size()]);
      }
      if (axes.Empty()) continue;
      now_.partial_sum = now_.partial_sum - axes;
      now_.partial_max = now_.partial_max - axes;
      Step(kind, axes);
      return true;
    }
    return false;
  }

  /// Joins partial results whose axes shard nothing afterwards: sums, then maxima.
  bool Join() {
    for (AxisSet* partial : {&now_.partial_sum, &now_.partial_max}) {
      const AxisSet axes = *partial - to_.Sharded();
      if (axes.Empty()) continue;
      *partial = *partial - axes;
      Step("all_reduce", axes);
      return true;
    }
    return false;
  }
  /// Moves the innermost axis of one dim to another dim where it comes next.
  bool Turn() {
    for (size_t s = 0; s < now_.dims.size(); ++s) {
      if (now_.dims[s].empty()) continue;
      const Axis axis = now_.dims[s].back();
      const int d = to_.DimOf(axis);
      if (d < 0 || d == static_cast<int>(s)) continue;
      std::vector<Axis>& target = now_.dims[static_cast<size_t>(d)];
      const std::vector<Axis>& to = to_.dims[static_cast<size_t>(d)];
      if (target.size() >= to.size() || to[target.size()] != axis || !std::equal(target.begin(), target.end(), to.begin()))
        continue;
      now_.dims[s].pop_back();
      target.push_back(axis);
      Step("all_to_all", {axis});
      return true;
    }
    return false;
  }

  /// Gathers the inner axes of a dim that do not belong there.
  bool Gather() {
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      std::vector<Axis>& now = now_.dims[d];
      const std::vector<Axis>& to = to_.dims[d];
      size_t keep = 0;
      while (keep < now.size() && keep < to.size() && now[keep] == to[keep]) ++keep;
      if (keep == now.size()) continue;
      AxisSet axes;
      for (; now.size() > keep; now.pop_back()) axes.Add(now.back());
      Step("all_gather", axes);
      return true;
    }
    return false;
  }

  Placements now_;
  const Placements& to_;
  const Mesh& mesh_;
  std::vector<ReshardStep> steps_;
};

int64_t ShardCount(const Placements& placements, const Mesh& mesh) { return mesh.GroupSize(placements.Sharded()); }

}  // namespace

std::vector<ReshardStep> PlanReshard(const Type& from, const Placements& to, const Mesh& mesh) {
  return Planner(from, to, mesh).Plan();
}

int64_t ReshardTraffic(const Type& from, const Placements& to, const Mesh& mesh) {
  int64_t sent = 0;
  Placements before = from.placements;
  for (const ReshardStep& step : PlanReshard(from, to, mesh)) {
    const int64_t local = Volume(from.shape) / std::max<int64_t>(1, ShardCount(before, mesh));
    const int64_t n = mesh.GroupSize(step.axes);
    if (step.kind == "all_gather") sent += local * (n - 1);
    if (step.kind == "reduce_scatter" || step.kind == "all_to_all") sent += local * (n - 1) / n;
    if (step.kind == "all_reduce") sent += 2 * local * (n - 1) / n;
    before = step.placements;
  }
  return sent;
}

}  // namespace espalier
