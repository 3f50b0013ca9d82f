// Which rows and bytes a strip is.
#include "espalier/ops/strip.hpp"

#include <gtest/gtest.h>

#include <set>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Mesh WithTp(int tp, int cp = 1) {
  Coordinate degrees;
  degrees.fill(1);
  degrees[Axis::kTp] = tp;
  degrees[Axis::kCp] = cp;
  return Mesh(degrees);
}
Coordinate AtTp(int tp, int cp = 0) {
  Coordinate coordinate{};
  coordinate[Axis::kTp] = tp;
  coordinate[Axis::kCp] = cp;
  return coordinate;
}
std::vector<Range> Tokens(const char* type, const Strip& strip, const Mesh& mesh, const Coordinate& coordinate) {
  std::vector<Range> tokens;
  for (const Box& box : StripBoxes(ParseType(type), strip, mesh, coordinate)) tokens.push_back(box[strip.dim]);
  return tokens;
}
const AxisSet kTp = {Axis::kTp};

TEST(Strip, OfTheSequenceIsAPartOfEveryShard) {
  const Mesh mesh = WithTp(3);
  const Strip second{.index = 1, .count = 2, .dim = 1, .axes = kTp};
  EXPECT_EQ(Tokens("f32[1,12,8]", second, mesh, AtTp(1)), (std::vector<Range>{{2, 4}, {6, 8}, {10, 12}}));
  EXPECT_EQ(Tokens("f32[1,12{tp},8]", second, mesh, AtTp(1)), (std::vector<Range>{{6, 8}}));
}

TEST(Strip, UnderContextParallelismIsInsideOfTheShardOfCp) {
  const Mesh mesh = WithTp(2, 2);
  const Strip first{.index = 0, .count = 2, .dim = 1, .axes = kTp};
  EXPECT_EQ(Tokens("f32[1,16{cp},8]", first, mesh, AtTp(0, 1)), (std::vector<Range>{{8, 10}, {12, 14}}));
  EXPECT_EQ(Tokens("f32[1,16{cp,tp},8]", first, mesh, AtTp(1, 1)), (std::vector<Range>{{12, 14}}));
}

TEST(Strip, StripsOfAnyCountCoverEachRowOnce) {
  for (int tp : {1, 2, 3, 4})
    for (int count : {1, 2, 3, 5})
      for (int64_t length : {1, 7, 12, 23})
        for (const char* sharded : {"", "{tp}"}) {
          const Mesh mesh = WithTp(tp);
          const std::string type = fmt::format("f32[1,{}{},8]", length, tp > 1 ? sharded : "");
          for (int rank = 0; rank < tp; ++rank) {
            std::multiset<int64_t> rows, expected;
            for (int index = 0; index < count; ++index)
              for (const Range& r : Tokens(type.c_str(), {index, count, 1, mesh.Real(kTp)}, mesh, AtTp(rank)))
                for (int64_t row = r.begin; row < r.end; ++row) rows.insert(row);
            const Box whole = LocalBox(ParseType(type), mesh, AtTp(rank));
            for (int64_t row = whole[1].begin; row < whole[1].end; ++row) expected.insert(row);
            EXPECT_EQ(rows, expected) << type << " in " << count << " strips, tp " << tp << ", rank " << rank;
          }
        }
}

TEST(Strip, BytesCountFromTheStartOfTheShard) {
  const Mesh mesh = WithTp(2);
  Value value;
  value.type = ParseType("bf16[1,8{tp},4]");
  const ByteRange range = BytesOf(value, {{0, 1}, {6, 8}, {0, 4}}, mesh, AtTp(1));
  EXPECT_EQ(range.offset, 2 * 4 * 2);
  EXPECT_EQ(range.bytes, 2 * 4 * 2);
  value.type = ParseType("f32[2,8,4]");
  EXPECT_THROW(BytesOf(value, {{0, 2}, {0, 4}, {0, 4}}, mesh, AtTp(0)), InvariantError)
      << "two sequences, part of each";
}

}  // namespace
}  // namespace espalier
