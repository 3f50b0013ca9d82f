// Which instructions become a library collective, and that all members agree and stay within their workspaces.
#include <gtest/gtest.h>

#include "comm/lowering/library_collective.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

using Kind = LibraryCollective::Kind;

/// One instruction over tp, of tensors from -> to.
struct Case {
  std::string kind;
  std::vector<std::pair<std::string, std::string>> tensors;
};

class Member {
 public:
  Member(const Case& c, int members, int index) {
    Graph graph;
    Op op{OpKindOf(c.kind), {}, {}, {}, Role::kF, 1, 0};
    op.attributes.numbers["axes"] = AxisSet{Axis::kTp}.bits();
    program_.mesh = Mesh({1, 1, 1, 1, members});
    coordinate_ = program_.mesh.CoordinateOf(index);
    for (const auto& [from, to] : c.tensors) {
      op.inputs.push_back(graph.AddValue({"from" + std::to_string(op.inputs.size()), ParseType(from), ValueKind::kState,
                                          Frequency::kStep, kAllChunks, -1, ""}));
      op.outputs.push_back(graph.AddValue({"to" + std::to_string(op.outputs.size()), ParseType(to), ValueKind::kState,
                                           Frequency::kStep, kAllChunks, -1, ""}));
    }
    instruction_.op = graph.AddOp(std::move(op));
    instruction_.lane = Lane::kTp;
    program_.graph = std::make_shared<const Graph>(graph);
    const Op& added = program_.graph->ops[0];
    instruction_.workspace.bytes = CommWorkspaceBytes(*program_.graph, added, program_.mesh, coordinate_);
    CommInstruction comm{
        instruction_, Tensors(added.inputs), Tensors(added.outputs), Take(instruction_.workspace.bytes), "", 0};
    lowered_ = LowerToLibraryCollective(program_, coordinate_, comm);
  }

  const std::optional<Exchange>& lowered() const { return lowered_; }

 private:
  std::byte* Take(int64_t bytes) { return memory_.emplace_back(static_cast<size_t>(bytes) + 1).data(); }
  std::vector<Tensor> Tensors(const std::vector<int>& values) {
    std::vector<Tensor> tensors;
    for (int v : values) {
      const Type& type = program_.graph->values[static_cast<size_t>(v)].type;
      const Box box = LocalBox(type, program_.mesh, coordinate_);
      Tensor& tensor = tensors.emplace_back(Tensor{nullptr, type.dtype, ExtentsOf(box), {}});
      for (const Range& range : box) tensor.start.push_back(range.begin);
      tensor.data = Take(Volume(tensor.shape) * SizeOf(type.dtype));
    }
    return tensors;
  }

  Program program_;
  Coordinate coordinate_;
  Instruction instruction_;
  std::vector<std::vector<std::byte>> memory_;
  std::optional<Exchange> lowered_;
};

struct Outcome {
  bool library = false;
  Kind kind = Kind::kAllGather;
  bool in_place = false;  ///< without packs and unpacks
  int64_t bytes = 0;
  bool operator==(const Outcome&) const = default;
};

void PrintTo(const Outcome& o, std::ostream* out) {
  *out << (o.library ? "library" : "exchange") << " kind " << static_cast<int>(o.kind)
       << (o.in_place ? " in place" : " staged") << " of " << o.bytes;
}

Outcome OutcomeOf(const Member& member) {
  if (!member.lowered()) return {};
  const Phase& phase = member.lowered()->phases.at(0);
  EXPECT_TRUE(phase.sends.empty() && phase.receives.empty() && phase.reductions.empty());
  return {true, phase.collective->kind, phase.packs.empty() && phase.unpacks.empty(), phase.collective->bytes};
}

/// The collectives to which all members lower it.
Outcome Lower(int members, const std::string& kind, const std::vector<std::pair<std::string, std::string>>& tensors) {
  const Case c{kind, tensors};
  const Outcome first = OutcomeOf(Member(c, members, 0));
  for (int m = 1; m < members; ++m) EXPECT_EQ(OutcomeOf(Member(c, members, m)), first) << "member " << m;
  return first;
}

constexpr Outcome kExchange = {};

TEST(LibraryCollective, EqualContiguousPiecesStayInPlace) {
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[8{tp},5]", "f32[8,5]"}}), (Outcome{true, Kind::kAllGather, true, 40}));
  EXPECT_EQ(Lower(4, "reduce_scatter", {{"bf16[8,5]+sum{tp}", "bf16[8{tp},5]"}}),
            (Outcome{true, Kind::kReduceScatter, true, 20}));
  EXPECT_EQ(Lower(2, "all_reduce", {{"f32[3,5]+sum{tp}", "f32[3,5]"}}), (Outcome{true, Kind::kAllReduce, true, 60}));
}

TEST(LibraryCollective, OthersArePackedIntoEqualSlots) {
  EXPECT_EQ(Lower(2, "all_gather", {{"f32[3,8{tp}]", "f32[3,8]"}}), (Outcome{true, Kind::kAllGather, false, 64}));
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[8{tp}]", "f32[8]"}, {"bf16[4{tp},33]", "bf16[4,33]"}}),
            (Outcome{true, Kind::kAllGather, false, 128}));
  EXPECT_EQ(Lower(4, "reduce_scatter", {{"f32[3,8]+sum{tp}", "f32[3,8{tp}]"}}),
            (Outcome{true, Kind::kReduceScatter, false, 64}));
  EXPECT_EQ(Lower(3, "all_reduce", {{"f32[3]+sum{tp}", "f32[3]"}, {"f32[]+sum{tp}", "f32[]"}}),
            (Outcome{true, Kind::kAllReduce, false, 16}));
}

TEST(LibraryCollective, UnevenPiecesArePaddedIfEveryWorkspaceSuffices) {
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[103{tp},5]", "f32[103,5]"}}), (Outcome{true, Kind::kAllGather, false, 576}));
  EXPECT_EQ(Lower(4, "reduce_scatter", {{"f32[103,5]+sum{tp}", "f32[103{tp},5]"}}),
            (Outcome{true, Kind::kReduceScatter, false, 576}));
  EXPECT_EQ(Lower(2, "all_gather", {{"f32[7{tp},5]", "f32[7,5]"}}), kExchange)
      << "the second member plans 192 bytes, two slots take 256";
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[3{tp},16]", "f32[3,16]"}}), kExchange)
      << "the last member has nothing, and plans for three";
}

TEST(LibraryCollective, OnlySumsOfFloats) {
  EXPECT_EQ(Lower(2, "all_reduce", {{"f32[5]+max{tp}", "f32[5]"}}), kExchange);
  EXPECT_EQ(Lower(2, "all_reduce", {{"i32[5]+sum{tp}", "i32[5]"}}), kExchange);
  EXPECT_EQ(Lower(2, "reduce_scatter", {{"f32[4]+sum{tp}", "f32[4{tp}]"}, {"bf16[4]+sum{tp}", "bf16[4{tp}]"}}),
            kExchange);
}

TEST(LibraryCollective, WhatHasNoCollective) {
  EXPECT_EQ(Lower(2, "all_to_all", {{"f32[4{tp},4]", "f32[4,4{tp}]"}}), kExchange);
  EXPECT_EQ(Lower(2, "ring_shift", {{"f32[4{tp},4]", "f32[4{tp},4]"}}), kExchange);
  EXPECT_EQ(Lower(1, "all_gather", {{"f32[4,4]", "f32[4,4]"}}), kExchange) << "a group of one rank";
  EXPECT_EQ(Lower(2, "all_gather", {{"f32[0{tp},4]", "f32[0,4]"}}), kExchange) << "nothing";
}

}  // namespace
}  // namespace espalier
