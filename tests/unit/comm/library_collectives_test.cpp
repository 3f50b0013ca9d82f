// Which instructions become a library collective, that all members agree, and that their workspaces are exactly what
// the lowerings take.
#include <gtest/gtest.h>

#include <random>

#include "comm/lowering/library_collective.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using Kind = LibraryCollective::Kind;

/// One instruction over tp, or over cp and tp, of tensors from -> to.
struct Case {
  std::string kind;
  std::vector<std::pair<std::string, std::string>> tensors;
  int tp = 1, cp = 1;
  int Members() const { return tp * cp; }
};

class Member {
 public:
  Member(const Case& c, int index) {
    Graph graph;
    Op op{OpKindOf(c.kind), {}, {}, {}, Role::kF, 1, 0};
    op.attributes.numbers["axes"] = (c.cp > 1 ? AxisSet{Axis::kCp, Axis::kTp} : AxisSet{Axis::kTp}).bits();
    program_.mesh = Mesh({1, 1, 1, c.cp, c.tp});
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
    inputs_ = Tensors(added.inputs);
    outputs_ = Tensors(added.outputs);
  }

  int64_t Workspace() const { return instruction_.workspace.bytes; }
  std::optional<Exchange> ToCollective(int64_t workspace) {
    return LowerToLibraryCollective(program_, coordinate_, With(workspace));
  }
  /// Whether the workspace suffices for both lowerings.
  bool Suffices(int64_t workspace) {
    try {
      ToCollective(workspace);
      LowerInstruction(program_, coordinate_, With(workspace));
      return true;
    } catch (const InvariantError&) {
      return false;
    }
  }

 private:
  CommInstruction With(int64_t workspace) {
    instruction_.workspace.bytes = workspace;
    return {instruction_, inputs_, outputs_, Take(workspace), "", 0};
  }
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
  std::vector<Tensor> inputs_, outputs_;
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

Outcome OutcomeOf(Member member) {
  const std::optional<Exchange> lowered = member.ToCollective(member.Workspace());
  if (!lowered) return {};
  const Phase& phase = lowered->phases.at(0);
  EXPECT_TRUE(phase.sends.empty() && phase.receives.empty() && phase.reductions.empty());
  return {true, phase.collective->kind, phase.packs.empty() && phase.unpacks.empty(), phase.collective->bytes};
}

/// The collectives to which all members lower it.
Outcome Lower(int members, const std::string& kind, const std::vector<std::pair<std::string, std::string>>& tensors) {
  const Case c{kind, tensors, members};
  const Outcome first = OutcomeOf(Member(c, 0));
  for (int m = 1; m < members; ++m) EXPECT_EQ(OutcomeOf(Member(c, m)), first) << "member " << m;
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

TEST(LibraryCollective, UnevenPiecesArePaddedToTwiceTheirBytes) {
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[103{tp},5]", "f32[103,5]"}}), (Outcome{true, Kind::kAllGather, false, 576}));
  EXPECT_EQ(Lower(4, "reduce_scatter", {{"f32[103,5]+sum{tp}", "f32[103{tp},5]"}}),
            (Outcome{true, Kind::kReduceScatter, false, 576}));
  EXPECT_EQ(Lower(4, "all_gather", {{"f32[2{tp},16]", "f32[2,16]"}}), (Outcome{true, Kind::kAllGather, false, 64}));
  EXPECT_EQ(Lower(5, "all_gather", {{"f32[2{tp},16]", "f32[2,16]"}}), kExchange) << "two of five members have a row";
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

class RandomCases {
 public:
  Case Next() {
    static const std::vector<std::string> kKinds = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                                    "ring_shift"};
    Case c{kKinds[static_cast<size_t>(Below(5))], {}, 1 + Below(5), 1 + Below(3)};
    const std::string dtype = Below(2) == 0 ? "f32" : "bf16";
    for (int t = 0, n = 1 + Below(3); t < n; ++t) c.tensors.push_back(Tensors(c, dtype));
    return c;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  /// The group's axes are together on a dim, or on one each.
  std::pair<std::string, std::string> Tensors(const Case& c, const std::string& dtype) {
    const std::string axes = c.cp > 1 ? "cp,tp" : "tp";
    const int dims = 2 + Below(2), shared = Below(dims);
    const int tp_dim = c.cp > 1 && c.kind != "all_to_all" && Below(2) == 0 ? (shared + 1) % dims : shared;
    std::string whole = dtype + "[", sharded = whole, other = whole;
    for (int d = 0; d < dims; ++d) {
      const int least = c.kind == "ring_shift" ? c.Members() : 1;
      const std::string extent = std::to_string(least * (1 + Below(Below(2) == 0 ? 3 : 90))),
                        end = d + 1 < dims ? "," : "]";
      std::string on;
      if (tp_dim == shared && d == shared) on = axes;
      if (tp_dim != shared && d == shared) on = "cp";
      if (tp_dim != shared && d == tp_dim) on = "tp";
      whole += extent + end;
      sharded += extent + (on.empty() ? "" : "{" + on + "}") + end;
      other += extent + (d == (shared + 1) % dims ? "{" + axes + "}" : "") + end;
    }
    const std::string sum = "+sum{" + axes + "}";
    if (c.kind == "all_gather") return {sharded, whole};
    if (c.kind == "reduce_scatter") return {whole + sum, sharded};
    if (c.kind == "all_reduce") return {whole + sum, whole};
    if (c.kind == "all_to_all") return {sharded, other};
    return {sharded, sharded};
  }
  std::mt19937 random_{20260711};
};

TEST(MessageWorkspace, IsExactlyWhatTheLoweringsTake) {
  RandomCases cases;
  int with = 0, without = 0;
  for (int i = 0; i < 300; ++i) {
    const Case c = cases.Next();
    if (c.Members() == 1) continue;
    std::string text = c.kind + " over cp " + std::to_string(c.cp) + " tp " + std::to_string(c.tp);
    for (const auto& [from, to] : c.tensors) text += ", " + from + " -> " + to;
    SCOPED_TRACE(text);
    bool any_needs_all = false;
    int64_t most = 0;
    for (int m = 0; m < c.Members(); ++m) {
      Member member(c, m);
      const int64_t planned = member.Workspace();
      most = std::max(most, planned);
      EXPECT_TRUE(member.Suffices(planned)) << "member " << m;
      const bool needs_all = planned == 0 || !member.Suffices(planned - 64);
      any_needs_all = any_needs_all || needs_all;
      if (c.kind != "all_to_all" && c.kind != "all_reduce")
        EXPECT_TRUE(needs_all) << "member " << m << " plans " << planned;
    }
    EXPECT_TRUE(any_needs_all) << "all members plan for the one that needs most";
    ++(most > 0 ? with : without);
  }
  EXPECT_GT(with, 80);
  EXPECT_GT(without, 20);
}

}  // namespace
}  // namespace espalier
