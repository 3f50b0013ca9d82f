// Reshards between all placements of small meshes: their steps are carried out on all ranks at once and compared
// element by element with what the whole tensor says, their traffic with the shortest paths that Floyd and Warshall
// find over all placements.
#include "espalier/passes/reshard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <set>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/verify.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

/// Every placement of a tensor of `dims` dims over `axes`, in a fixed order; `maxima`: partial maxima too.
std::vector<Placements> AllPlacements(size_t dims, const std::vector<Axis>& axes, bool maxima) {
  Placements none;
  none.dims.resize(dims);
  std::vector<Placements> all = {none};
  for (Axis a : axes) {
    std::vector<Placements> more;
    for (const Placements& p : all) {
      more.push_back(p);
      more.push_back(p);
      more.back().partial_sum.Add(a);
      if (maxima) {
        more.push_back(p);
        more.back().partial_max.Add(a);
      }
      for (size_t d = 0; d < dims; ++d)
        for (size_t at = 0; at <= p.dims[d].size(); ++at) {
          more.push_back(p);
          std::vector<Axis>& dim = more.back().dims[d];
          dim.insert(dim.begin() + static_cast<std::ptrdiff_t>(at), a);
        }
    }
    all = std::move(more);
  }
  return all;
}

std::string Text(const Placements& p) {
  Type type = MakeType(Dtype::kF32, Shape(p.dims.size(), 1));
  type.placements = p;
  return ToString(type);
}

std::string Text(const Mesh& mesh, const Type& from, const Placements& to) {
  Type target = from;
  target.placements = to;
  return ToString(from) + " -> " + ToString(target) + " on " + mesh.ToString();
}

/// A local piece with its box.
struct Held {
  Box box;
  std::vector<double> data;
};

int64_t Offset(const Box& box, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < box.size(); ++d) offset = offset * box[d].Extent() + index[d] - box[d].begin;
  return offset;
}

/// f(global index) for every element of a box.
void ForBox(const Box& box, const auto& f) {
  if (IsEmpty(box)) return;
  std::vector<int64_t> index;
  for (const Range& r : box) index.push_back(r.begin);
  for (;;) {
    f(index);
    size_t d = box.size();
    while (d > 0 && ++index[d - 1] == box[d - 1].end) {
      index[d - 1] = box[d - 1].begin;
      --d;
    }
    if (d == 0) return;
  }
}

/// The whole tensor's element at an index; `salt` makes another tensor.
double Whole(const std::vector<int64_t>& index, int salt) {
  int64_t mixed = 17 + salt;
  for (int64_t i : index) mixed = mixed * 31 + i * 7 + 3;
  return double(mixed % 97) - 40;
}

/// Contribution of a member of the partial axes: sums add up to the whole value, maxima have one member that holds it.
double Contribution(const Type& type, const Mesh& mesh, const Coordinate& c, const std::vector<int64_t>& index,
                    int salt) {
  const Placements& p = type.placements;
  const double whole = Whole(index, salt);
  const int maxima = mesh.GroupSize(p.partial_max), sums = mesh.GroupSize(p.partial_sum);
  const int holder = static_cast<int>((static_cast<int64_t>(whole) + 1000) % maxima);
  const double largest = mesh.IndexInGroup(p.partial_max, c) == holder ? whole : whole - 5;
  const int member = mesh.IndexInGroup(p.partial_sum, c);
  const auto part = [&](int m) { return double(m * 3 + index[0] % 2); };
  if (member + 1 < sums) return part(member);
  double rest = largest;
  for (int m = 0; m + 1 < sums; ++m) rest -= part(m);
  return rest;
}

std::vector<Held> Fill(const Type& type, const Mesh& mesh, int salt) {
  std::vector<Held> pieces;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Coordinate c = mesh.CoordinateOf(rank);
    Held piece{LocalBox(type, mesh, c), {}};
    ForBox(piece.box, [&](const auto& index) { piece.data.push_back(Contribution(type, mesh, c, index, salt)); });
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

/// One op between two types, as the transfers and the local ops have it.
struct Step {
  Graph graph;
  const Op& op() const { return graph.ops[0]; }
};

Step MakeStep(const ReshardStep& step, const Type& from, const Type& to) {
  Step s;
  const int x = s.graph.AddValue({"x", from, ValueKind::kInput, Frequency::kStep, kAllChunks, -1, ""});
  const int y = s.graph.AddValue({"y", to, ValueKind::kActivation, Frequency::kStep, kAllChunks, -1, ""});
  s.graph.AddOp({step.kind, {x}, {y}, {{{"axes", double(step.axes.bits())}}, {}}, Role::kS, 0, kAllChunks});
  return s;
}

/// Own piece in its place; around it nothing to add.
Held Local(const ReshardStep& step, const Held& mine, Box box) {
  const bool maximum = !(step.placements.partial_max & step.axes).Empty();
  Held out{std::move(box), {}};
  ForBox(out.box, [&](const auto& index) {
    bool inside = true;
    for (size_t d = 0; d < index.size(); ++d)
      inside = inside && index[d] >= mine.box[d].begin && index[d] < mine.box[d].end;
    EXPECT_TRUE(inside || step.kind == OpKind::kPad);
    out.data.push_back(inside ? mine.data[static_cast<size_t>(Offset(mine.box, index))] : maximum ? kLowest : 0);
  });
  return out;
}

/// A collective on one rank: pieces arrive from peers, in group order.
Held Collective(const Step& step, const Mesh& mesh, const Coordinate& c, const std::vector<Held>& before) {
  const TransferPlan plan = PlanTransfer(step.graph, step.op(), mesh, c);
  Held out{LocalBox(step.graph.values[1].type, mesh, c), {}};
  out.data.assign(static_cast<size_t>(Volume(ExtentsOf(out.box))), std::numeric_limits<double>::quiet_NaN());
  for (const Transfer& t : plan.receives) {
    const Held& peer = before[static_cast<size_t>(mesh.RankOf(mesh.GroupMember(plan.axes, c, t.peer)))];
    ForBox(t.box, [&](const auto& index) {
      double& here = out.data[static_cast<size_t>(Offset(out.box, index))];
      const double there = peer.data[static_cast<size_t>(Offset(peer.box, index))];
      EXPECT_TRUE(plan.reduce || std::isnan(here)) << "an element arrives twice";
      here = std::isnan(here) ? there : plan.how == Reduce::kMax ? std::max(here, there) : here + there;
    });
  }
  return out;
}

/// Pieces after a whole reshard; `sent` counts the most bytes that a rank sends, step by step.
std::vector<Held> CarryOut(const Type& from, const Placements& to, const Mesh& mesh, std::vector<Held> pieces,
                           int64_t* sent = nullptr) {
  Type now = from;
  for (const ReshardStep& planned : PlanReshard(from, to, mesh)) {
    Type next = now;
    next.placements = planned.placements;
    const Step step = MakeStep(planned, now, next);
    std::vector<Held> after;
    int64_t most = 0;
    for (int rank = 0; rank < mesh.Ranks(); ++rank) {
      const Coordinate c = mesh.CoordinateOf(rank);
      const bool local = !IsCommunication(planned.kind);
      after.push_back(local ? Local(planned, pieces[static_cast<size_t>(rank)], LocalBox(next, mesh, c))
                            : Collective(step, mesh, c, pieces));
      if (!local) most = std::max(most, WireBytes(step.graph, step.op(), mesh, c));
    }
    if (sent != nullptr) *sent += most;
    pieces = std::move(after);
    now = next;
  }
  EXPECT_EQ(now.placements, to);
  return pieces;
}

/// The value that all ranks' pieces together stand for, from the point of view of one rank: joined over its partial
/// groups.
double Joined(const Type& type, const Mesh& mesh, const std::vector<Held>& pieces, const Coordinate& c,
              const std::vector<int64_t>& index) {
  double largest = kLowest;
  for (int m = 0; m < mesh.GroupSize(type.placements.partial_max); ++m) {
    const Coordinate there = mesh.GroupMember(type.placements.partial_max, c, m);
    double sum = 0;
    for (int s = 0; s < mesh.GroupSize(type.placements.partial_sum); ++s) {
      const Held& piece =
          pieces[static_cast<size_t>(mesh.RankOf(mesh.GroupMember(type.placements.partial_sum, there, s)))];
      sum += piece.data[static_cast<size_t>(Offset(piece.box, index))];
    }
    largest = std::max(largest, sum);
  }
  return largest;
}

bool StandsForTheWhole(const Type& type, const Mesh& mesh, const std::vector<Held>& pieces, int salt) {
  bool right = true;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Coordinate c = mesh.CoordinateOf(rank);
    const Held& piece = pieces[static_cast<size_t>(rank)];
    right = right && piece.box == LocalBox(type, mesh, c) &&
            static_cast<int64_t>(piece.data.size()) == Volume(ExtentsOf(piece.box));
    ForBox(piece.box,
           [&](const auto& index) { right = right && Joined(type, mesh, pieces, c, index) == Whole(index, salt); });
  }
  return right;
}

Type TypeOf(Shape shape, const Placements& placements) {
  Type type = MakeType(Dtype::kF32, std::move(shape));
  type.placements = placements;
  return type;
}

std::vector<Axis> RealAxes(const Mesh& mesh) {
  std::vector<Axis> axes;
  for (Axis a : kAxes)
    if (mesh.Degree(a) > 1) axes.push_back(a);
  return axes;
}

/// f(type, placements) for every `stride`-th pair.
void ForEachPair(const Mesh& mesh, const Shape& shape, size_t stride, const auto& f) {
  const std::vector<Placements> all = AllPlacements(shape.size(), RealAxes(mesh), true);
  for (size_t i = 0; i < all.size() * all.size(); i += stride) {
    const Type from = TypeOf(shape, all[i / all.size()]);
    f(from, all[i % all.size()]);
    if (testing::Test::HasFailure()) return;
  }
}

// Meshes of one, two and three axes; sizes that divide and that do not, 5 rows over 4 ranks among them.
const Mesh kOne({1, 1, 4, 1, 1}), kThree({1, 1, 1, 1, 3}), kTwo({1, 1, 2, 1, 3}), kFourTwo({1, 1, 4, 1, 2}),
    kCube({1, 2, 2, 1, 2});

struct Setting {
  Mesh mesh;
  Shape shape;
  size_t stride;  // 1: every pair
};

const Setting kSettings[] = {
    {kOne, {5}, 1},    {kOne, {8}, 1},        {kOne, {5, 3}, 1},      {kThree, {7, 2}, 1}, {kTwo, {7}, 1},
    {kTwo, {5, 7}, 1}, {kFourTwo, {5, 3}, 1}, {kFourTwo, {8, 16}, 1}, {kCube, {5}, 1},     {kCube, {5, 3}, 7},
};

TEST(Reshard, AnyPlacementsToAnyOthers) {
  for (const Setting& s : kSettings)
    ForEachPair(s.mesh, s.shape, s.stride, [&](const Type& from, const Placements& to) {
      const std::vector<Held> pieces = Fill(from, s.mesh, 1);
      ASSERT_TRUE(StandsForTheWhole(from, s.mesh, pieces, 1));
      EXPECT_TRUE(StandsForTheWhole(TypeOf(s.shape, to), s.mesh, CarryOut(from, to, s.mesh, pieces), 1))
          << Text(s.mesh, from, to);
    });
}

// ---- traffic ----

/// Bytes that a rank sends at most in one collective between two placements, or -1 if none does it. Written down apart
/// from the passes: what changes between the two types says which collective it would be.
class Edges {
 public:
  Edges(const Mesh& mesh, Shape shape) : mesh_(mesh), shape_(std::move(shape)) {}

  int64_t Bytes(const Placements& a, const Placements& b) const {
    const AxisSet sum_out = a.partial_sum - b.partial_sum, max_out = a.partial_max - b.partial_max;
    const AxisSet sum_in = b.partial_sum - a.partial_sum, max_in = b.partial_max - a.partial_max;
    const AxisSet cut = Longer(a, b), uncut = Longer(b, a);
    const int grown = DimsThat(a, b), shrunk = DimsThat(b, a);
    const AxisSet out = sum_out | max_out, in = sum_in | max_in;
    if (!sum_out.Empty() && !max_out.Empty()) return -1;
    if (!sum_in.Empty() && !max_in.Empty()) return -1;
    if (!max_out.Empty() && !a.partial_sum.Empty()) return -1;  // sums first
    if (!in.Empty()) return in == uncut && cut.Empty() && shrunk == 1 && out.Empty() && Suffix(b, a) ? 0 : -1;  // pad
    if (!out.Empty()) {
      if (cut.Empty() && uncut.Empty() && a.dims == b.dims) return Wire("all_reduce", out, a, b);
      return cut == out && grown == 1 && uncut.Empty() && Suffix(a, b) ? Wire("reduce_scatter", out, a, b) : -1;
    }
    if (a.Sharded() == b.Sharded()) return Turn(a, b);
    if (uncut.Empty() && grown == 1 && Suffix(a, b)) return 0;  // slice
    if (cut.Empty() && shrunk == 1 && Suffix(b, a)) return Wire("all_gather", uncut, a, b);
    return -1;
  }

 private:
  /// Axes that shard `b` and not `a`.
  static AxisSet Longer(const Placements& a, const Placements& b) { return b.Sharded() - a.Sharded(); }
  /// How many dims differ where `b` has more axes.
  static int DimsThat(const Placements& a, const Placements& b) {
    int n = 0;
    for (size_t d = 0; d < a.dims.size(); ++d) n += a.dims[d] != b.dims[d] && a.dims[d].size() < b.dims[d].size();
    return n;
  }
  static bool Starts(const std::vector<Axis>& with, const std::vector<Axis>& list) {
    return with.size() <= list.size() && std::equal(with.begin(), with.end(), list.begin());
  }
  /// Every dim of `b` has the axes of that of `a`, or these and further ones after them.
  static bool Suffix(const Placements& a, const Placements& b) {
    for (size_t d = 0; d < a.dims.size(); ++d)
      if (!Starts(a.dims[d], b.dims[d])) return false;
    return true;
  }
  /// The innermost axes of one dim, in their order, after those of another; or in another order where they are.
  int64_t Turn(const Placements& a, const Placements& b) const {
    std::vector<size_t> changed;
    for (size_t d = 0; d < a.dims.size(); ++d)
      if (a.dims[d] != b.dims[d]) changed.push_back(d);
    if (changed.size() == 1) {
      const std::vector<Axis>&x = a.dims[changed[0]], &y = b.dims[changed[0]];
      AxisSet axes;
      for (size_t i = static_cast<size_t>(std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin()); i < x.size();
           ++i)
        axes.Add(x[i]);
      return Wire("all_to_all", axes, a, b);
    }
    if (changed.size() != 2) return -1;
    for (int turn = 0; turn < 2; ++turn) {
      const size_t s = changed[static_cast<size_t>(turn)], d = changed[static_cast<size_t>(1 - turn)];
      if (!Starts(b.dims[s], a.dims[s]) || !Starts(a.dims[d], b.dims[d])) continue;
      const std::vector<Axis> left(a.dims[s].begin() + static_cast<std::ptrdiff_t>(b.dims[s].size()), a.dims[s].end());
      const std::vector<Axis> came(b.dims[d].begin() + static_cast<std::ptrdiff_t>(a.dims[d].size()), b.dims[d].end());
      if (left != came) continue;
      AxisSet axes;
      for (Axis axis : left) axes.Add(axis);
      return Wire("all_to_all", axes, a, b);
    }
    return -1;
  }
  int64_t Wire(const char* kind, AxisSet axes, const Placements& a, const Placements& b) const {
    const Step step = MakeStep({OpKindOf(kind), axes, b}, TypeOf(shape_, a), TypeOf(shape_, b));
    int64_t most = 0;
    for (int rank = 0; rank < mesh_.Ranks(); ++rank)
      most = std::max(most, WireBytes(step.graph, step.op(), mesh_, mesh_.CoordinateOf(rank)));
    return most;
  }

  const Mesh& mesh_;
  Shape shape_;
};

/// The axes on which both ends agree, which no step between them may touch: per dim the leading axes, then the partial
/// ones.
std::string Common(const Placements& a, const Placements& b) {
  Placements common;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    common.dims.emplace_back();
    for (size_t i = 0; i < std::min(a.dims[d].size(), b.dims[d].size()) && a.dims[d][i] == b.dims[d][i]; ++i)
      common.dims[d].push_back(a.dims[d][i]);
  }
  common.partial_max = a.partial_max & b.partial_max;
  if ((a.partial_max - b.partial_max).Empty()) common.partial_sum = a.partial_sum & b.partial_sum;
  AxisSet replicated;
  for (Axis axis : kAxes)
    if (!(a.Sharded() | a.Partial() | b.Sharded() | b.Partial()).Has(axis)) replicated.Add(axis);
  return Text(common) + " replicated " + Name(replicated);
}
bool Agrees(const Placements& p, const Placements& a, const Placements& b) {
  for (size_t d = 0; d < a.dims.size(); ++d)
    for (size_t i = 0; i < std::min(a.dims[d].size(), b.dims[d].size()) && a.dims[d][i] == b.dims[d][i]; ++i)
      if (p.dims[d].size() <= i || p.dims[d][i] != a.dims[d][i]) return false;
  if (!((a.partial_max & b.partial_max) - p.partial_max).Empty()) return false;
  if ((a.partial_max - b.partial_max).Empty() && !((a.partial_sum & b.partial_sum) - p.partial_sum).Empty())
    return false;
  return ((p.Sharded() | p.Partial()) - (a.Sharded() | a.Partial() | b.Sharded() | b.Partial())).Empty();
}

using Table = std::vector<std::vector<int64_t>>;
constexpr int64_t kFar = int64_t{1} << 40;

/// Floyd (1962) and Warshall (1962) over the placements in `among`.
Table ShortestPaths(const Table& edges, const std::vector<size_t>& among) {
  Table least = edges;
  for (size_t k : among)
    for (size_t i : among)
      for (size_t j : among) least[i][j] = std::min(least[i][j], least[i][k] + least[k][j]);
  return least;
}

/// Every reshard's bytes, as its steps send them, against the shortest path.
void CheckTraffic(const Mesh& mesh, const Shape& shape) {
  const std::vector<Placements> all = AllPlacements(shape.size(), RealAxes(mesh), true);
  const Edges edges(mesh, shape);
  Table table(all.size(), std::vector<int64_t>(all.size(), kFar));
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < all.size(); ++j)
      if (const int64_t bytes = i == j ? 0 : edges.Bytes(all[i], all[j]); bytes >= 0) table[i][j] = bytes;
  std::map<std::string, Table> least;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < all.size(); ++j) {
      const auto [it, fresh] = least.try_emplace(Common(all[i], all[j]));
      if (fresh) {
        std::vector<size_t> among;
        for (size_t k = 0; k < all.size(); ++k)
          if (Agrees(all[k], all[i], all[j])) among.push_back(k);
        it->second = ShortestPaths(table, among);
      }
      const Type from = TypeOf(shape, all[i]);
      int64_t sent = 0;
      CarryOut(from, all[j], mesh, Fill(from, mesh, 1), &sent);
      ASSERT_EQ(sent, it->second[i][j]) << Text(mesh, from, all[j]);
      EXPECT_EQ(ReshardTraffic(from, all[j], mesh) * 4, sent) << Text(mesh, from, all[j]);
    }
}

TEST(Reshard, SendsNoMoreThanTheShortestPath) {
  CheckTraffic(kOne, {16});
  CheckTraffic(kOne, {16, 4});
  CheckTraffic(kTwo, {36});
  CheckTraffic(kTwo, {12, 18});
  CheckTraffic(kFourTwo, {16, 8});
  CheckTraffic(kCube, {64});
}

TEST(Reshard, JoinsAxesInOneCollective) {
  const Mesh mesh({1, 2, 4, 1, 2});
  const auto kinds = [&](const std::string& from, const std::string& to) {
    std::vector<std::string> list;
    for (const ReshardStep& s : PlanReshard(ParseType(from), ParseType(to).placements, mesh))
      list.push_back(fmt::format("{} {}", s.kind, Name(s.axes)));
    return list;
  };
  using testing::ElementsAre;
  EXPECT_THAT(kinds("f32[64{tp,dp_shard},8]", "f32[64,8]"), ElementsAre("all_gather dp_shard+tp"));
  EXPECT_THAT(kinds("f32[64,8]+sum{dp_replicate,dp_shard}", "f32[64,8]"),
              ElementsAre("all_reduce dp_replicate+dp_shard"));
  EXPECT_THAT(kinds("f32[64,8]+sum{dp_shard,tp}", "f32[64{tp,dp_shard},8]"), ElementsAre("reduce_scatter dp_shard+tp"));
  EXPECT_THAT(kinds("f32[64{dp_shard,tp},8]", "f32[64,8{dp_shard,tp}]"), ElementsAre("all_to_all dp_shard+tp"));
  EXPECT_THAT(kinds("f32[64,8]+sum{dp_replicate,dp_shard}", "f32[64{dp_shard},8]"),
              ElementsAre("reduce_scatter dp_shard", "all_reduce dp_replicate"));
  EXPECT_THAT(kinds("f32[64,8]+max{tp}", "f32[64{tp},8]"), ElementsAre("reduce_scatter tp"));
  EXPECT_THAT(kinds("f32[64,8]", "f32[64,8]+sum{tp}"), ElementsAre("slice tp", "pad tp"));
  EXPECT_THAT(kinds("f32[64{tp},8]", "f32[64{tp},8]"), ElementsAre());
}

TEST(Reshard, SumsAreJoinedBeforeMaxima) {
  const Mesh mesh({1, 1, 2, 1, 2});
  const std::vector<ReshardStep> steps =
      PlanReshard(ParseType("f32[8]+sum{dp_shard}+max{tp}"), ParseType("f32[8]").placements, mesh);
  ASSERT_FALSE(steps.empty());
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    if (steps[i + 1].placements.partial_max.Empty()) {
      EXPECT_TRUE(steps[i].placements.partial_sum.Empty());
    }
}

// ---- adjoints ----

/// A value's adjoint is partial where the value is replicated, and the reverse; where it is sharded it is sharded
/// alike.
Placements Adjoint(const Placements& p, const Mesh& mesh) {
  Placements adjoint = p;
  adjoint.partial_sum = {};
  for (Axis a : RealAxes(mesh))
    if (!p.Sharded().Has(a) && !p.partial_sum.Has(a)) adjoint.partial_sum.Add(a);
  return adjoint;
}

double InnerProduct(const std::vector<Held>& x, const std::vector<Held>& y) {
  double sum = 0;
  for (size_t rank = 0; rank < x.size(); ++rank) {
    EXPECT_EQ(x[rank].box, y[rank].box);
    for (size_t i = 0; i < x[rank].data.size(); ++i) sum += x[rank].data[i] * y[rank].data[i];
  }
  return sum;
}

TEST(Reshard, AdjointIsTheReshardOfTheAdjointTypes) {
  for (const Setting& s : kSettings)
    ForEachPair(s.mesh, s.shape, s.stride, [&](const Type& from, const Placements& to) {
      if (!from.placements.partial_max.Empty() || !to.partial_max.Empty()) return;
      const Type target = TypeOf(s.shape, to), back_from = TypeOf(s.shape, Adjoint(to, s.mesh));
      const Placements back_to = Adjoint(from.placements, s.mesh);
      const std::vector<Held> x = Fill(from, s.mesh, 1), y = Fill(back_from, s.mesh, 2);
      const double forward = InnerProduct(CarryOut(from, to, s.mesh, x), y);
      const double backward = InnerProduct(x, CarryOut(back_from, back_to, s.mesh, y));
      EXPECT_EQ(forward, backward) << Text(s.mesh, from, to);
    });
}

// ---- lowering ----

TEST(Reshard, LowersToOpsThatVerify) {
  const Mesh mesh({1, 1, 2, 1, 2});
  for (const char* to :
       {"f32[6,4]+max{tp}", "f32[6{tp,dp_shard},4]", "f32[6,4]+sum{dp_shard,tp}", "f32[6,4{dp_shard}]+sum{tp}"}) {
    Graph graph = ParseGraph(
        std::string("value x : f32[6{dp_shard,tp},4] input step chunk 0\ny = reshard(x) @ S layer 0 chunk 0 : ") + to +
        "\n");
    LowerReshards(graph, {Deck{}, mesh, {0}, TraitsOf(ScheduleKind::k1F1B)});
    Verify(graph, "lower_reshards");
    for (const Op& op : graph.ops) {
      EXPECT_NE(op.kind, OpKind::kReshard);
      EXPECT_TRUE(IsCommunication(op.kind) || FindReferenceKernel(Name(op.kind)) != nullptr) << Name(op.kind);
      if (op.kind == OpKind::kPad) {
        EXPECT_EQ(op.attributes.NumberOr("max", 0), std::string(to).find("max") != std::string::npos);
      }
    }
  }
}

TEST(Reshard, AHundredThousandAreQuick) {
  const Mesh mesh({8, 4, 16, 4, 8});
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100000; ++i) {
    PlanReshard(ParseType("f32[64,64]+sum{dp_replicate,dp_shard,cp}"), ParseType("f32[64{dp_shard,cp},64]").placements,
                mesh);
    PlanReshard(ParseType("bf16[4{dp_shard},64{cp,tp},64]"), ParseType("bf16[4{dp_shard},64,64{tp}]").placements, mesh);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace espalier
