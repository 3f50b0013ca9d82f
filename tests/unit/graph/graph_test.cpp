// Types, boxes and the text form of graphs.
#include "espalier/graph/graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/ops/verify.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

TEST(Type, TextRoundTrip) {
  for (const char* text : {"f32[]", "bf16[4{dp_replicate,dp_shard},128{cp,tp},64]", "i32[7]",
                           "f32[12{tp},5]+sum{dp_replicate,dp_shard}", "f32[2,3]+max{tp}", "f32[0,3]"})
    EXPECT_EQ(ToString(ParseType(text)), text);
  for (const char* text : {"", "f64[2]", "f32[2", "f32[2{xx}]", "f32[2]+sum{tp", "f32[a]", "f32[2]x"})
    EXPECT_THROW(ParseType(text), InvariantError) << text;
}

TEST(Type, PiecesAreCeilSizedAndMayBeEmpty) {
  const auto pieces = [](int64_t extent, int n) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < n; ++i) sizes.push_back(ShardOf({0, extent}, n, i).Extent());
    return sizes;
  };
  EXPECT_EQ(pieces(5, 4), (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(pieces(7, 3), (std::vector<int64_t>{3, 3, 1}));
  EXPECT_EQ(pieces(0, 2), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(pieces(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
}

TEST(Type, AxesOnOneDimNestMajorFirst) {
  const Mesh mesh({1, 1, 3, 1, 2});
  const Type type = ParseType("f32[10{tp,dp_shard},4]");
  // tp cuts 10 into 5 + 5; dp_shard cuts each into 2 2 1.
  std::vector<Range> rows;
  for (int rank = 0; rank < 6; ++rank) rows.push_back(LocalBox(type, mesh, mesh.CoordinateOf(rank))[0]);
  EXPECT_EQ(rows, (std::vector<Range>{{0, 2}, {5, 7}, {2, 4}, {7, 9}, {4, 5}, {9, 10}}));
}

TEST(Type, GroupsChangeNoShard) {
  for (int64_t extent = 0; extent < 40; ++extent)
    for (const auto& [groups, ranks] : std::vector<std::pair<int, int>>{{2, 2}, {3, 2}, {2, 3}}) {
      EnumArray<Axis, int, kAxisCount> degrees = {1, 1, groups, 2};
      degrees[Axis::kRegather] = ranks;
      const Mesh mesh(degrees), flat({1, 1, groups * ranks, 2});
      const std::string text = "f32[" + std::to_string(extent);
      const Type both = ParseType(text + "{regather,dp_shard,cp}]"), one = ParseType(text + "{dp_shard,cp}]");
      for (int rank = 0; rank < mesh.Ranks(); ++rank) {
        const Coordinate c = mesh.CoordinateOf(rank);
        const int same = mesh.IndexInGroup(kShardAxes | AxisSet{Axis::kCp}, c);
        const Range shard = LocalBox(both, mesh, c)[0];
        EXPECT_EQ(shard, LocalBox(one, flat, flat.CoordinateOf(same))[0]) << extent << " rank " << rank;
        const Range group = LocalBox(ParseType(text + "{regather}]"), mesh, c)[0];
        EXPECT_TRUE(group.begin <= shard.begin && shard.end <= group.end) << extent << " rank " << rank;
      }
    }
}

TEST(Type, BoxesIntersect) {
  EXPECT_EQ(Intersect({{0, 4}, {2, 9}}, {{3, 8}, {0, 5}}), (Box{{3, 4}, {2, 5}}));
  EXPECT_TRUE(IsEmpty(Intersect({{0, 4}}, {{4, 8}})));
  EXPECT_FALSE(IsEmpty(Box{})) << "a scalar has one element";
}

TEST(Graph, ReaderNamesTheLine) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      ParseGraph(text);
    } catch (const InvariantError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of("value a : f32[2] input step chunk 0\nb = add(a, z) @ S layer 1 chunk 0 : f32[2]\n"),
              testing::HasSubstr("graph line 2: unknown value z"));
  EXPECT_THAT(error_of("value a : f32[2] thing step chunk 0\n"), testing::HasSubstr("graph line 1"));
  EXPECT_THAT(error_of("value a : f32[2] input step chunk 0\nb = add(a) @ S layer 1\n"),
              testing::HasSubstr("expected ' chunk '"));
}

TEST(Verify, NamesThePassAndTheOp) {
  Graph graph = ParseGraph("value a : f32[2] input step chunk 0\nb = add(a, a) @ S layer 1 chunk 0 : f32[2]\n");
  Verify(graph, "nothing");
  const auto error_of = [](const Graph& g) -> std::string {
    try {
      Verify(g, "some_pass");
    } catch (const InvariantError& error) {
      return error.what();
    }
    return "";
  };
  Graph no_role = graph;
  no_role.ops[0].role = Role::kUnset;
  EXPECT_THAT(error_of(no_role), testing::HasSubstr("after some_pass: op 0 add -> b"));
  EXPECT_THAT(error_of(no_role), testing::HasSubstr("no role is set"));
  Graph no_stage = graph;
  no_stage.ops[0].chunk = kUnset;
  EXPECT_THAT(error_of(no_stage), testing::HasSubstr("no chunk is set"));
  Graph no_layer = graph;
  no_layer.ops[0].layer = kUnset;
  EXPECT_THAT(error_of(no_layer), testing::HasSubstr("no layer is set"));
  Graph removed = graph;
  removed.ops[0].kind = OpKind::kNone;
  EXPECT_THAT(error_of(removed), testing::HasSubstr("op kind '' has no definition"));
}

}  // namespace
}  // namespace espalier
