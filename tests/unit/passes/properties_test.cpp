// Properties that passes require and establish: the list is sound, a wrong order is refused, and every checker finds an
// offence.
#include "espalier/passes/properties.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "espalier/passes/pipeline.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using enum Property;
using testing::HasSubstr;

std::string MessageOf(const std::function<void()>& checks) {
  try {
    checks();
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "nothing is refused";
}
std::string OrderRefused(const std::vector<Pass>& passes) {
  return MessageOf([&] { PropertiesAfter(passes); });
}
std::vector<Pass> AllPasses() { return {Passes().begin(), Passes().end()}; }
size_t IndexOf(std::string_view pass) {
  return static_cast<size_t>(std::ranges::find(Passes(), pass, &Pass::name) - Passes().begin());
}
bool Shares(Properties a, Properties b) {
  return std::ranges::any_of(kProperties, [&](Property p) { return a.Has(p) && b.Has(p); });
}

TEST(Properties, EarlierPassesEstablishWhatLaterOnesRequire) {
  const Properties held = PropertiesAfter(Passes());
  for (Property p : {kPlaced, kDifferentiated, kSummed, kLowered, kCut}) EXPECT_TRUE(held.Has(p)) << Name(p);
  for (Property p : {kUnplaced, kReshards, kSingleMessages, kWhole, kUncut}) EXPECT_FALSE(held.Has(p)) << Name(p);
}

TEST(Properties, ALaterPlaceNamesThePassAndTheProperty) {
  std::vector<Pass> passes = AllPasses();
  std::swap(passes[IndexOf("merge_gradients")], passes[IndexOf("optimize")]);
  EXPECT_THAT(OrderRefused(passes), HasSubstr("pass optimize requires what no pass before it establishes: gradients of "
                                              "weights are accumulators"));
}

TEST(Properties, AnEarlierPlaceNamesBothPassesAndTheProperty) {
  std::vector<Pass> passes = AllPasses();
  std::swap(passes[IndexOf("fuse")], passes[IndexOf("quantize")]);
  EXPECT_THAT(OrderRefused(passes),
              HasSubstr("pass fuse requires what pass quantize has ended: matmuls and sums of logits have their own "
                        "operands alone"));
}

TEST(Properties, NoPassMayBeLeftOutOrComeFirstIfOthersRelyOnIt) {
  for (size_t i = 0; i < Passes().size(); ++i) {
    const Pass& pass = Passes()[i];
    const bool needed = std::any_of(Passes().begin() + static_cast<ptrdiff_t>(i), Passes().end(),
                                    [&](const Pass& later) { return Shares(later.required, pass.established); });
    std::vector<Pass> passes = AllPasses();
    passes.erase(passes.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_EQ(OrderRefused(passes) != "nothing is refused", needed) << "without " << pass.name;
    const bool spoils = std::any_of(Passes().begin(), Passes().begin() + static_cast<ptrdiff_t>(i),
                                    [&](const Pass& earlier) { return Shares(earlier.required, pass.ended); });
    passes.insert(passes.begin(), pass);
    if (spoils) EXPECT_NE(OrderRefused(passes), "nothing is refused") << pass.name << " first";
  }
}

/// Two stages of two ranks, in training.
struct Two {
  Deck deck{};
  Coordinate degrees;
  std::string Refused(Property property, const std::string& graph) {
    degrees.fill(1);
    degrees[Axis::kPp] = degrees[Axis::kDpShard] = 2;
    const PassContext context{deck, Mesh(degrees), {0, 1}, TraitsOf(deck.pipeline.schedule)};
    return MessageOf([&] { CheckProperties(ParseGraph(graph), context, property, "after a pass"); });
  }
};

/// A graph without a property, the same graph with it, and where the first offends.
struct Planted {
  std::string offends, where, holds;
};

const std::map<Property, std::vector<Planted>> kPlanted = {
    {kUnplaced,
     {{"value x : f32[4{dp_shard},8] input microbatch chunk 0\n", "x", "value x : f32[4,8] input microbatch chunk 0\n"},
      {"value x : f32[4]+sum{dp_shard} accumulator step chunk 0\n", "x",
       "value x : f32[4] accumulator step chunk 0\n"}}},
    {kPlaced,
     {{"value x : f32[4,8] input microbatch chunk 0 layout batch,embed\n", "x",
       "value x : f32[4{dp_shard},8] input microbatch chunk 0 layout batch,embed\n"}}},
    {kDifferentiated,
     {{"value parameters/w : f32[8] state step chunk 0\nvalue gradients/w : f32[8] accumulator step chunk 0\n",
       "parameters/w",
       "value parameters/w : f32[8] state step chunk 0\nvalue gradients/w : f32[8] accumulator step chunk 0\n"
       "gradients/w = accumulate(parameters/w) @ W layer 1 chunk 0 : f32[8]\n"}}},
    {kSummed,
     {{"value parameters/w : f32[8] state step chunk 0\n"
       "gradients/w = cast(parameters/w) {to=\"f32\"} @ W layer 1 chunk 0 : f32[8]\n",
       "parameters/w",
       "value parameters/w : f32[8] state step chunk 0\nvalue gradients/w : f32[8] accumulator step chunk 0\n"
       "gradients/w = accumulate(parameters/w) @ W layer 1 chunk 0 : f32[8]\n"}}},
    {kSingleUpdates,
     {{"value parameters/w : f32[8] state step chunk 0\n", "parameters/w",
       "value parameters/w : f32[8] state step chunk 0\n"
       "parameters/w = muon_update(parameters/w) @ U layer 1 chunk 0 : f32[8]\n"},
      {"value parameters/v : f32[8] state step chunk 0\nvalue parameters/w : f32[8] state step chunk 0\n"
       "parameters/v, parameters/w = adamw(parameters/v, parameters/w) @ U layer 1 chunk 0 : f32[8], f32[8]\n",
       "op 0 adamw -> parameters/v",
       "value parameters/v : f32[8] state step chunk 0\nvalue parameters/w : f32[8] state step chunk 0\n"
       "parameters/v = adamw(parameters/v) @ U layer 1 chunk 0 : f32[8]\n"
       "parameters/w = adamw(parameters/w) @ U layer 1 chunk 0 : f32[8]\n"}}},
    {kCastCopies,
     {{"value parameters/w : f32[8] state step chunk 0\nvalue w : bf16[8] cache step chunk 0\n"
       "parameters/w, w = adamw(parameters/w) @ U layer 1 chunk 0 : f32[8], bf16[8]\n",
       "op 0 adamw -> parameters/w",
       "value parameters/w : f32[8] state step chunk 0\nvalue w : bf16[8] cache step chunk 0\n"
       "w = cast(parameters/w) {to=\"bf16\"} @ P layer 1 chunk 0 : bf16[8]\n"}}},
    {kReshards,
     {{"value x : f32[4{dp_shard},8] input microbatch chunk 0\n"
       "y = all_gather(x) {axes=\"dp_shard\"} @ F layer 1 chunk 0 : f32[4,8]\n",
       "op 0 all_gather -> y",
       "value x : f32[4{dp_shard},8] input microbatch chunk 0\n"
       "y = reshard(x) @ F layer 1 chunk 0 : f32[4,8]\n"}}},
    {kLowered,
     {{"value x : f32[4{dp_shard},8] input microbatch chunk 0\n"
       "y = reshard(x) @ F layer 1 chunk 0 : f32[4,8]\n",
       "op 0 reshard -> y",
       "value x : f32[4{dp_shard},8] input microbatch chunk 0\n"
       "y = all_gather(x) {axes=\"dp_shard\"} @ F layer 1 chunk 0 : f32[4,8]\n"}}},
    {kSingleMessages,
     {{"value x : f32[4]+sum{dp_shard} input microbatch chunk 0\nvalue y : f32[6]+sum{dp_shard} input microbatch chunk "
       "0\n"
       "a, b = all_reduce(x, y) {axes=\"dp_shard\"} @ F layer 1 chunk 0 : f32[4], f32[6]\n",
       "op 0 all_reduce -> a",
       "value x : f32[4]+sum{dp_shard} input microbatch chunk 0\n"
       "a = all_reduce(x) {axes=\"dp_shard\"} @ F layer 1 chunk 0 : f32[4]\n"}}},
    {kUnfused,
     {{"value x : f32[1,4,8] input microbatch chunk 0\nvalue w : f32[6,8] input step chunk 0\nvalue b : f32[6] input "
       "step "
       "chunk 0\ny = matmul(x, w, b) {spec=\"bsk,nk->bsn\"} @ F layer 1 chunk 0 : f32[1,4,6]\n",
       "op 0 matmul -> y",
       "value x : f32[1,4,8] input microbatch chunk 0\nvalue w : f32[6,8] input step chunk 0\n"
       "y = matmul(x, w) {spec=\"bsk,nk->bsn\"} @ F layer 1 chunk 0 : f32[1,4,6]\n"},
      {"value x : f32[1,4,8] input microbatch chunk 0\nvalue t : i32[1,4] input microbatch chunk 0\n"
       "s, u, m = logits_sum(x, t) @ F layer 1 chunk 0 : f32[1,4], f32[1,4], f32[1,4]\n",
       "op 0 logits_sum -> s",
       "value x : f32[1,4,8] input microbatch chunk 0\nvalue t : i32[1,4] input microbatch chunk 0\n"
       "m = logits_max(x) @ F layer 1 chunk 0 : f32[1,4]\n"
       "s, u = logits_sum(x, m, t) @ F layer 1 chunk 0 : f32[1,4], f32[1,4]\n"}}},
    {kWhole,
     {{"value x : f32[4,8] input microbatch chunk 0\n"
       "y = add(x, x) {strip=0 strip_axes=\"none\" strip_dim=0 strips=1} @ F layer 1 chunk 0 : f32[4,8]\n",
       "op 0 add -> y",
       "value x : f32[4,8] input microbatch chunk 0\ny = add(x, x) @ F layer 1 chunk 0 : f32[4,8]\n"}}},
    {kUncut,
     {{"value x : f32[4,8] input microbatch chunk 0\nsend(x) {to=1} @ F layer 1 chunk 0\n", "op 0 send",
       "value x : f32[4,8] input microbatch chunk 0\ny = add(x, x) @ F layer 1 chunk 0 : f32[4,8]\n"}}},
    {kCut,
     {{"value x : f32[4,8] input microbatch chunk 0\ny = add(x, x) @ F layer 1 chunk 1 : f32[4,8]\n", "op 0 add -> y",
       "value x : f32[4,8] input microbatch chunk 0\ny = add(x, x) @ F layer 1 chunk 0 : f32[4,8]\n"},
      {"value x : f32[] input step chunk 0\ny = add(x, x) @ U layer 1 chunk all : f32[]\n", "op 0 add -> y",
       "value x : f32[] input step chunk all\ny = add(x, x) @ U layer 1 chunk all : f32[]\n"}}},
};

TEST(Properties, EveryCheckerFindsAPlantedOffence) {
  for (Property property : kProperties) {
    ASSERT_TRUE(kPlanted.contains(property)) << Name(property);
    for (const Planted& planted : kPlanted.at(property)) {
      EXPECT_THAT(Two().Refused(property, planted.offends),
                  HasSubstr(fmt::format("after a pass: it is not so that {}: {}", Name(property), planted.where)));
      EXPECT_EQ(Two().Refused(property, planted.holds), "nothing is refused") << Name(property);
    }
  }
}

TEST(Properties, EvaluationNeedsNoGradientsAndNoUpdates) {
  const Deck deck{};
  const PassContext context{deck, Mesh(), {0}, TraitsOf(deck.pipeline.schedule), Purpose::kEvaluate};
  const Graph graph = ParseGraph("value parameters/w : f32[8] state step chunk 0\n");
  EXPECT_NO_THROW(CheckProperties(graph, context, kDifferentiated | kSummed | kSingleUpdates, "after a pass"));
}

TEST(Properties, ARowThatClaimsTooMuchIsRefused) {
  const Deck deck = SmallDeck({"parallel.dp_shard=2", "parallel.zero=3", "parallel.pp=2"});
  std::map<std::string, Graph, std::less<>> after;
  const Compilation c =
      Compile(deck, 4, Purpose::kTrain, [&](std::string_view pass, const Graph& graph) { after.emplace(pass, graph); });
  const PassContext context{c.deck, c.mesh, c.schedule.stage_of_chunk, TraitsOf(deck.pipeline.schedule)};
  const auto claim = [&](std::string_view pass, Property property) {
    return MessageOf([&] { CheckProperties(after.find(pass)->second, context, property, pass); });
  };
  for (size_t i = 0; i < Passes().size(); ++i)
    for (Property property : kProperties) {
      const Pass& pass = Passes()[i];
      if (pass.established.Has(property))
        EXPECT_THAT(claim(i == 0 ? "model" : Passes()[i - 1].name, property), HasSubstr("it is not so"))
            << Name(property) << " holds before " << pass.name;
    }
}

}  // namespace
}  // namespace espalier
