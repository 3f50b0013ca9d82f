// The queries of passes, and how passes rewrite ops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/graph/uses.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Graph Small() {
  return ParseGraph(R"(
value x : f32[2,4,8] input microbatch chunk 0
value parameters/w : f32[8{dp_shard},8] state step chunk 0
w = all_gather(parameters/w) {axes="dp_shard"} @ F layer 1 chunk 0 : f32[8,8]
a = add(x, x) @ F layer 1 chunk 0 : f32[2,4,8]
y = matmul(a, w) {spec="bsk,nk->bsn"} @ F layer 1 chunk 0 : f32[2,4,8]
gradients/w = matmul(a, y) {spec="bsn,bsk->nk"} @ W layer 1 chunk 0 : f32[8,8]+sum{dp_shard}
g = reduce_scatter(gradients/w) {axes="dp_shard"} @ W layer 1 chunk 0 : f32[8{dp_shard},8]
result y
)");
}

TEST(Uses, ReadersAreInOrderAndAResultIsReadLast) {
  const Graph graph = Small();
  const Uses uses(graph);
  EXPECT_THAT(uses.Readers(graph.Find("x")), ElementsAre(1, 1));
  EXPECT_THAT(uses.Readers(graph.Find("y")), ElementsAre(3, uses.End()));
  EXPECT_THAT(uses.Readers(graph.Find("g")), IsEmpty());
  EXPECT_EQ(uses.FirstReader(graph.Find("a")), 2);
  EXPECT_EQ(uses.FirstReader(graph.Find("g")), uses.End());
  EXPECT_EQ(uses.LastWriter(graph.Find("y")), 2);
  EXPECT_EQ(uses.LastWriter(graph.Find("x")), -1);
}

TEST(Rewriter, NumbersWhatTheWalkHasLeft) {
  Graph graph = Small();
  {
    Rewriter old(graph);
    EXPECT_TRUE(graph.ops.empty());
    for (Op& op : old.ops)
      if (op.role == Role::kF) graph.ops.push_back(std::move(op));
    graph.ops[1] = {};  // is dropped
  }
  EXPECT_EQ(graph.ops.size(), 2U);
  EXPECT_EQ(graph.value(graph.Find("y")).producer, 1);
  EXPECT_EQ(graph.value(graph.Find("a")).producer, -1);
  EXPECT_EQ(graph.value(graph.Find("g")).producer, -1);
}

TEST(Transfers, AreOfWeightsGradientsOrActivations) {
  const Graph graph = Small();
  const Op &gather = graph.op(0), &reduce = graph.op(4);
  EXPECT_TRUE(GathersParameters(graph, gather));
  EXPECT_FALSE(GathersParameters(graph, reduce));
  EXPECT_TRUE(ReducesGradients(graph, reduce));
  EXPECT_FALSE(ReducesGradients(graph, gather));
  for (const Op* op : {&gather, &reduce}) {
    EXPECT_FALSE(MovesActivations(graph, *op));
    EXPECT_TRUE(IsWeightTransfer(graph, *op));
    EXPECT_FALSE(IsTensorCollective(*op));
  }
  Op context = gather;
  context.inputs = {graph.Find("a")};
  context.attributes.numbers["axes"] = AxisSet{Axis::kCp}.bits();
  EXPECT_TRUE(IsContextTransfer(graph, context));
  EXPECT_TRUE(MovesActivations(graph, context));
  EXPECT_FALSE(IsWeightTransfer(graph, context));
  context.attributes.numbers["axes"] = AxisSet{Axis::kTp}.bits();
  EXPECT_TRUE(IsTensorCollective(context));
}

TEST(Provenance, NamesSayWhatAValueIs) {
  const auto value = [](std::string name, ValueKind kind) {
    Value v;
    v.name = std::move(name);
    v.kind = kind;
    return v;
  };
  const Value master = value(StateName("a.weight"), ValueKind::kState);
  const Value moment = value(MomentName("exp_avg", "a.weight"), ValueKind::kState);
  const Value gradient = value(GradientName("a.weight"), ValueKind::kAccumulator);
  const Value copy = value("a.weight", ValueKind::kCache);
  for (const Value& v : {master, moment, gradient, copy}) EXPECT_EQ(ParameterOf(v), "a.weight") << v.name;
  EXPECT_TRUE(IsParameter(master) && IsMoment(moment) && IsGradientOfWeight(gradient));
  EXPECT_FALSE(IsParameter(moment) || IsMoment(master) || IsGradientOfWeight(copy));
  Graph graph;
  graph.AddValue(copy);
  EXPECT_FALSE(IsCopy(graph, copy));  // keys of earlier tokens are a cache, too
  graph.AddValue(master);
  EXPECT_TRUE(IsCopy(graph, copy));
  EXPECT_EQ(GradientName("a.weight", 2), "gradients/a.weight.2");
  EXPECT_EQ(RecomputedName("x"), "x.again");
}

}  // namespace
}  // namespace espalier
