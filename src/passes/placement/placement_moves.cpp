#include "passes/placement/placement_moves.hpp"

#include <algorithm>
#include <array>

namespace espalier {
namespace {

using Axes = std::vector<Axis>;

AxisSet SetOf(const Axes& axes) {
  AxisSet set;
  for (Axis a : axes) set.Add(a);
  return set;
}

/// Every ordered choice of one or more axes out of a set.
void ForEachOrder(AxisSet from, Axes& chosen, const auto& f) {
  for (Axis a : from.List()) {
    chosen.push_back(a);
    f(chosen);
    ForEachOrder(from - AxisSet{a}, chosen, f);
    chosen.pop_back();
  }
}

/// Every subset but the empty one.
void ForEachSubset(AxisSet of, const auto& f) {
  for (uint32_t bits = 1; bits <= of.bits(); ++bits)
    if (const AxisSet subset = AxisSet::FromBits(bits); (subset - of).Empty()) f(subset);
}

class Moves {
 public:
  Moves(const Placements& now, AxisSet moving, const Mesh& mesh)
      : now_(now),
        moving_(moving),
        mesh_(mesh),
        shard_(UnitsPerShard(moving, mesh) / mesh.GroupSize(now.Sharded() & moving)) {}

  std::vector<Move> All() {
    Shard(MoveKind::kSlice, moving_ - now_.Sharded() - now_.Partial(), nullptr);
    ReduceAxes(&Placements::partial_sum);
    if (now_.partial_sum.Empty()) ReduceAxes(&Placements::partial_max);
    for (size_t d = 0; d < now_.dims.size(); ++d) Unshard(d);
    return std::move(moves_);
  }

 private:
  using Partial = AxisSet Placements::*;

  void Add(MoveKind kind, AxisSet axes, Placements placements, int64_t sent) {
    moves_.push_back({kind, axes, std::move(placements), sent});
  }

  /// Replicated or partial axes shard some dim.
  void Shard(MoveKind kind, AxisSet free, Partial partial) {
    Axes chosen;
    ForEachOrder(free, chosen, [&](const Axes& axes) {
      const AxisSet set = SetOf(axes);
      for (size_t d = 0; d < now_.dims.size(); ++d) {
        Placements next = now_;
        next.dims[d].insert(next.dims[d].end(), axes.begin(), axes.end());
        if (partial != nullptr) next.*partial = next.*partial - set;
        Add(kind, set, std::move(next), partial == nullptr ? 0 : Exchanged(set));
      }
    });
  }

  void ReduceAxes(Partial partial) {
    const AxisSet free = now_.*partial & moving_;
    ForEachSubset(free, [&](AxisSet axes) {
      Placements next = now_;
      next.*partial = next.*partial - axes;
      Add(MoveKind::kAllReduce, axes, std::move(next), 2 * Exchanged(axes));
    });
    Shard(MoveKind::kReduceScatter, free, partial);
  }

  /// The innermost axes of a dim, one more at a time, leave it.
  void Unshard(size_t d) {
    const Axes& here = now_.dims[d];
    for (size_t k = 1; k <= here.size() && moving_.Has(here[here.size() - k]); ++k) {
      const Axes tail(here.end() - static_cast<std::ptrdiff_t>(k), here.end());
      Placements without = now_;
      without.dims[d].resize(here.size() - k);
      Transpose(d, tail, without);
      Add(MoveKind::kAllGather, SetOf(tail), without, shard_ * (mesh_.GroupSize(SetOf(tail)) - 1));
      for (Partial partial : {&Placements::partial_sum, &Placements::partial_max}) {
        Placements next = without;
        next.*partial = next.*partial | SetOf(tail);
        Add(MoveKind::kPad, SetOf(tail), std::move(next), 0);
      }
    }
  }

  void Transpose(size_t from, const Axes& tail, const Placements& without) {
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      if (d == from) continue;
      Placements next = without;
      next.dims[d].insert(next.dims[d].end(), tail.begin(), tail.end());
      Add(MoveKind::kAllToAll, SetOf(tail), std::move(next), Exchanged(SetOf(tail)));
    }
    // Another order on the same dim: some rank sends its whole shard.
    Axes order = tail;
    std::sort(order.begin(), order.end());
    do {
      if (order.front() == tail.front()) continue;  // a shorter tail does that
      Placements next = without;
      next.dims[from].insert(next.dims[from].end(), order.begin(), order.end());
      Add(MoveKind::kAllToAll, SetOf(tail), std::move(next), shard_);
    } while (std::next_permutation(order.begin(), order.end()));
  }

  /// The local shard without the part that the rank keeps.
  int64_t Exchanged(AxisSet axes) const {
    const int64_t n = mesh_.GroupSize(axes);
    return shard_ / n * (n - 1);
  }

  const Placements& now_;
  AxisSet moving_;
  const Mesh& mesh_;
  int64_t shard_;  // size of a rank's shard, in units
  std::vector<Move> moves_;
};

}  // namespace

OpKind OpOf(MoveKind kind) {
  constexpr EnumArray<MoveKind, OpKind, 6> kOps = {OpKind::kSlice,    OpKind::kAllReduce, OpKind::kReduceScatter,
                                                   OpKind::kAllToAll, OpKind::kAllGather, OpKind::kPad};
  return kOps[kind];
}

/// Shards are divided by the axes of a group and, on the route, by all moving axes.
int64_t UnitsPerShard(AxisSet moving, const Mesh& mesh) {
  const int64_t n = mesh.GroupSize(moving);
  return n * n;
}

bool IsLocal(MoveKind kind) { return kind == MoveKind::kSlice || kind == MoveKind::kPad; }

std::vector<Move> MovesFrom(const Placements& now, AxisSet moving, const Mesh& mesh) {
  return Moves(now, moving, mesh).All();
}

}  // namespace espalier
