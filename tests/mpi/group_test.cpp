// Every group op on every mesh of the world's size: odd sizes, all element types, several tensors in one message; sums
// bitwise equal to the in-order fp32 sum on all ranks.
#include "harness.hpp"

namespace espalier::test {
namespace {

Lane LaneOf(AxisSet axes) {
  if (axes == AxisSet{Axis::kTp}) return Lane::kTp;
  return axes == AxisSet{Axis::kCp} ? Lane::kCp : Lane::kDp;
}

std::string Join(AxisSet axes) {
  std::string text = Name(axes);
  for (char& c : text)
    if (c == '+') c = ',';
  return text;
}

/// "A" in a type stands for the axes of the group.
std::string Substitute(std::string type, AxisSet axes) {
  for (size_t at; (at = type.find("{A}")) != std::string::npos;) type.replace(at, 3, "{" + Join(axes) + "}");
  return type;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// Runs one op over `axes` for two steps and compares all of its outputs with values that every rank can compute.
void Check(const std::string& kind, const Mesh& mesh, AxisSet axes, const Pairs& tensors,
           MpiCommunicationOptions options = {}) {
  SCOPED_TRACE(kind + " over " + Name(axes) + " of " + mesh.ToString() + ": " + tensors[0].first);
  ProgramBuilder builder(mesh);
  std::vector<int> from, to;
  for (size_t t = 0; t < tensors.size(); ++t) {
    from.push_back(builder.AddValue("from" + std::to_string(t), Substitute(tensors[t].first, axes)));
    to.push_back(builder.AddValue("to" + std::to_string(t), Substitute(tensors[t].second, axes)));
  }
  for (int v : from) builder.Place(v);
  for (int v : to) builder.Place(v);
  builder.Run(GroupOp(OpKindOf(kind), from, to, axes), LaneOf(axes));
  Runner runner(builder.Take(), nullptr, options);
  for (int step = 0; step < 2; ++step) {
    for (size_t t = 0; t < from.size(); ++t) {
      const Type& type = runner.TypeOf(from[t]);
      Fill(runner.At(from[t]), type, static_cast<int>(t),
           mesh.IndexInGroup(type.placements.Partial(), builder.coordinate()), step);
    }
    runner.executor().RunStep();
    for (size_t t = 0; t < to.size(); ++t) {
      const Placements& before = runner.TypeOf(from[t]).placements;
      const Reduce how = before.partial_max.Empty() ? Reduce::kSum : Reduce::kMax;
      EXPECT_EQ(CountWrong(runner.At(to[t]), runner.TypeOf(to[t]), static_cast<int>(t),
                           mesh.GroupSize(before.Partial()), how, step),
                0)
          << "tensor " << t << " in step " << step << " on rank " << TheWorld().Rank();
    }
  }
}

/// Calls f(mesh, axes) for every group of more than one rank formed by an axis, by two neighbouring axes, or by all dp
/// axes.
template <typename F>
void ForEachGroup(F f) {
  for (const Mesh& mesh : Meshes())
    for (AxisSet axes : {AxisSet{Axis::kTp}, AxisSet{Axis::kCp}, AxisSet{Axis::kDpShard}, AxisSet{Axis::kDpReplicate},
                         AxisSet{Axis::kDpReplicate, Axis::kDpShard}, AxisSet{Axis::kDpShard, Axis::kCp}})
      if (mesh.Real(axes) == axes) f(mesh, axes);
}

TEST(Group, AllGather) {
  ForEachGroup([](const Mesh& mesh, AxisSet axes) {
    Check("all_gather", mesh, axes, {{"f32[7{A},5]", "f32[7,5]"}});
    Check("all_gather", mesh, axes, {{"bf16[3,13{A}]", "bf16[3,13]"}});
    Check("all_gather", mesh, axes, {{"i32[2,7{A},3]", "i32[2,7,3]"}});
    Check("all_gather", mesh, axes,
          {{"bf16[5{A}]", "bf16[5]"}, {"f32[3,9{A}]", "f32[3,9]"}, {"i32[1{A},2]", "i32[1,2]"}});
  });
}

TEST(Group, ReduceScatter) {
  ForEachGroup([](const Mesh& mesh, AxisSet axes) {
    Check("reduce_scatter", mesh, axes, {{"f32[7,5]+sum{A}", "f32[7{A},5]"}});
    Check("reduce_scatter", mesh, axes, {{"f32[3,2111]+sum{A}", "f32[3,2111{A}]"}});
    Check("reduce_scatter", mesh, axes, {{"bf16[2,7,3]+sum{A}", "bf16[2,7{A},3]"}});
    Check("reduce_scatter", mesh, axes, {{"f32[1]+sum{A}", "f32[1{A}]"}});
    Check("reduce_scatter", mesh, axes,
          {{"bf16[5,3]+sum{A}", "bf16[5{A},3]"},
           {"f32[9,3]+sum{A}", "f32[9{A},3]"},
           {"bf16[3,11]+sum{A}", "bf16[3,11{A}]"}});
  });
}

TEST(Group, AllReduce) {
  ForEachGroup([](const Mesh& mesh, AxisSet axes) {
    for (const std::string how : {"sum", "max"}) {
      Check("all_reduce", mesh, axes, {{"f32[]+" + how + "{A}", "f32[]"}});
      Check("all_reduce", mesh, axes, {{"f32[17,61]+" + how + "{A}", "f32[17,61]"}});
      Check("all_reduce", mesh, axes, {{"bf16[5,3]+" + how + "{A}", "bf16[5,3]"}});
      Check("all_reduce", mesh, axes, {{"i32[11]+" + how + "{A}", "i32[11]"}});
    }
    Check("all_reduce", mesh, axes,
          {{"f32[2]+sum{A}", "f32[2]"}, {"f32[]+sum{A}", "f32[]"}, {"f32[3,67]+sum{A}", "f32[3,67]"}});
    Check("all_reduce", mesh, axes, Pairs(9, {"bf16[5]+sum{A}", "bf16[5]"}));
  });
}

TEST(Group, AllToAll) {
  ForEachGroup([](const Mesh& mesh, AxisSet axes) {
    Check("all_to_all", mesh, axes, {{"f32[7{A},5,3]", "f32[7,5{A},3]"}});
    Check("all_to_all", mesh, axes, {{"bf16[3,11,7{A}]", "bf16[3,11{A},7]"}});
    Check("all_to_all", mesh, axes, {{"bf16[9{A},3]", "bf16[9,3{A}]"}, {"f32[5,4{A}]", "f32[5{A},4]"}});
  });
}

/// After a shift a member has the shard of the previous member; its own coordinate, one place back, tells which.
void CheckShift(const Mesh& mesh, AxisSet axes, const std::vector<std::string>& types) {
  SCOPED_TRACE("ring_shift over " + Name(axes) + " of " + mesh.ToString() + ": " + types[0]);
  ProgramBuilder builder(mesh);
  std::vector<int> from, to;
  for (size_t t = 0; t < types.size(); ++t) {
    from.push_back(builder.AddValue("from" + std::to_string(t), Substitute(types[t], axes)));
    to.push_back(builder.AddValue("to" + std::to_string(t), Substitute(types[t], axes)));
  }
  for (int v : from) builder.Place(v);
  for (int v : to) builder.Place(v);
  builder.Run(GroupOp(OpKind::kRingShift, from, to, axes), LaneOf(axes));
  Runner runner(builder.Take());
  const int n = mesh.GroupSize(axes), self = mesh.IndexInGroup(axes, builder.coordinate());
  const Coordinate before = mesh.GroupMember(axes, builder.coordinate(), (self + n - 1) % n);
  for (int step = 0; step < 2; ++step) {
    for (size_t t = 0; t < from.size(); ++t)
      Fill(runner.At(from[t]), runner.TypeOf(from[t]), static_cast<int>(t), 0, step);
    runner.executor().RunStep();
    for (size_t t = 0; t < to.size(); ++t) {
      Tensor arrived = runner.At(to[t]);
      const Box box = LocalBox(runner.TypeOf(to[t]), mesh, before);
      for (size_t d = 0; d < box.size(); ++d) arrived.start[d] = box[d].begin;
      EXPECT_EQ(CountWrong(arrived, runner.TypeOf(to[t]), static_cast<int>(t), 1, Reduce::kSum, step), 0)
          << "tensor " << t << " in step " << step << " on rank " << TheWorld().Rank();
    }
  }
}

TEST(Group, RingShift) {
  ForEachGroup([](const Mesh& mesh, AxisSet axes) {
    CheckShift(mesh, axes, {"f32[3,24{A},5]"});
    CheckShift(mesh, axes, {"bf16[1,24{A},7]", "bf16[1,24{A},7]"});
    CheckShift(mesh, axes, {"bf16[24{A}]", "f32[2,24{A}]"});
  });
}

TEST(Group, MegabytesTravelByRendezvous) {
  const Mesh mesh({1, 1, 1, 1, TheWorld().Size()});
  const AxisSet axes = {Axis::kTp};
  Check("all_reduce", mesh, axes, {{"f32[1500001]+sum{A}", "f32[1500001]"}});
  Check("all_gather", mesh, axes, {{"bf16[1301{A},1001]", "bf16[1301,1001]"}});
  Check("reduce_scatter", mesh, axes, {{"f32[999,1003]+sum{A}", "f32[999,1003{A}]"}});
}

/// Some in place on both sides or on one, some packed; uneven, and with small boxes between them.
TEST(Group, LargeBoxesAreMessagesOfTheirOwn) {
  const Mesh mesh({1, 1, 1, 1, TheWorld().Size()});
  const AxisSet axes = {Axis::kTp};
  Check("all_gather", mesh, axes,
        {{"bf16[3,13{A}]", "bf16[3,13]"},
         {"f32[23{A},30011]", "f32[23,30011]"},
         {"bf16[5,240001{A}]", "bf16[5,240001]"},
         {"f32[7{A}]", "f32[7]"}});
  Check("reduce_scatter", mesh, axes,
        {{"bf16[5,3]+sum{A}", "bf16[5{A},3]"},
         {"f32[23,30011]+sum{A}", "f32[23{A},30011]"},
         {"bf16[5,240001]+sum{A}", "bf16[5,240001{A}]"},
         {"f32[9,3]+sum{A}", "f32[9,3{A}]"}});
  Check("all_to_all", mesh, axes,
        {{"f32[24{A},240003]", "f32[24,240003{A}]"}, {"bf16[9{A},3]", "bf16[9,3{A}]"}, {"f32[5,4{A}]", "f32[5{A},4]"}});
  CheckShift(mesh, axes, {"f32[24{A},22001]", "bf16[24{A}]", "bf16[2,24{A},33001]", "f32[24{A},3]"});
}

TEST(Group, LongMessagesTravelInParts) {
  MpiCommunicationOptions options;
  options.largest_part = 100;
  ForEachGroup([&](const Mesh& mesh, AxisSet axes) {
    Check("all_reduce", mesh, axes, {{"f32[1001]+sum{A}", "f32[1001]"}}, options);
    Check("all_gather", mesh, axes, {{"bf16[13{A},77]", "bf16[13,77]"}, {"f32[5{A},3]", "f32[5,3]"}}, options);
  });
}

TEST(Group, AxesThatNestOnOneDim) {
  for (const Mesh& mesh : Meshes()) {
    if (mesh.Degree(Axis::kDpShard) < 2 || mesh.Degree(Axis::kTp) < 2) continue;
    Check("all_gather", mesh, {Axis::kDpShard}, {{"f32[19{tp,dp_shard},3]", "f32[19{tp},3]"}});
    Check("reduce_scatter", mesh, {Axis::kDpShard}, {{"f32[19{tp},3]+sum{dp_shard}", "f32[19{tp,dp_shard},3]"}});
    Check("all_gather", mesh, {Axis::kDpShard}, {{"bf16[19{tp},7{dp_shard}]", "bf16[19{tp},7]"}});
    Check("all_reduce", mesh, {Axis::kDpShard}, {{"bf16[19{tp},7]+sum{dp_shard}", "bf16[19{tp},7]"}});
  }
}

TEST(Group, OneRankNeedsNoMessages) {
  const Mesh mesh({TheWorld().Size(), 1, 1, 1, 1});
  ProgramBuilder builder(mesh);
  const int x = builder.AddValue("x", "f32[5]"), y = builder.AddValue("y", "f32[5]");
  builder.Place(x);
  builder.Place(y);
  builder.Run(GroupOp(OpKind::kAllGather, {x}, {y}, AxisSet{Axis::kTp}), Lane::kTp);
  Runner runner(builder.Take());
  EXPECT_TRUE(ChannelsOf(runner.program()).empty());
  Fill(runner.At(x), runner.TypeOf(x), 0, 0, 0);
  runner.executor().RunStep();
  EXPECT_EQ(CountWrong(runner.At(y), runner.TypeOf(y), 0, 1, Reduce::kSum, 0), 0);
}

}  // namespace
}  // namespace espalier::test
