// Orders by the times of run.costs.
#include "espalier/costs/order.hpp"

#include <fmt/core.h>

#include <set>

#include "cluster_testing.hpp"
#include "espalier/costs/costs.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/program/compile.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

/// A cluster whose links carry so many bytes per microsecond.
std::string WithLinks(int ranks_per_node, double node, double network) {
  std::string text = kMachine;
  text.replace(text.find("ranks_per_node = 2"), 18, fmt::format("ranks_per_node = {}", ranks_per_node));
  for (const auto& [link, rate] : {std::pair("node", node), std::pair("network", network)})
    text += fmt::format("[{}]\nbytes_per_us = {}\npair_bytes_per_us = {}\nbase_us = 1\n", link, rate, rate);
  return text;
}

Deck WithCosts(const std::string& path, std::vector<std::string> overrides) {
  overrides.push_back("run.costs=" + path);
  Deck deck = SmallDeck(overrides);
  ReadCosts(deck);
  return deck;
}

TEST(Order, TimesAreThoseOfTheFileAndOfThePlaceOnNodes) {
  const ClusterFiles files;
  const std::string near = files.Write("near.toml", WithLinks(2, 1000, 10)),
                    far = files.Write("far.toml", WithLinks(1, 1000, 10));
  const std::vector<std::string> overrides = {"parallel.tp=2", "parallel.cp=2", "model.layers=1"};
  const Deck at_hand = WithCosts(near, overrides), away = WithCosts(far, overrides);
  const Compilation c = Compile(at_hand, 4, Purpose::kTrain);
  const Costs costs(LoadCluster(near));
  int near_by = 0, on_both = 0, kernels = 0;
  for (const Op& op : c.graph->ops) {
    if (op.inputs.empty() || op.frequency() != Frequency::kMicrobatch) continue;
    const double us = TimesOf(at_hand).Of(*c.graph, op, c.mesh), us_far = TimesOf(away).Of(*c.graph, op, c.mesh);
    if (!IsCommunication(op.kind)) {
      EXPECT_EQ(us, costs.Kernel(LocalOpOf(*c.graph, op, c.mesh, {}), false).us) << Name(op.kind);
      EXPECT_EQ(us, us_far) << Name(op.kind);
      ++kernels;
    } else if (op.Axes().Has(Axis::kCp)) {
      EXPECT_EQ(us, us_far);  // over nodes in both
      ++on_both;
    } else {
      EXPECT_LT(us, us_far);
      ++near_by;
    }
  }
  EXPECT_GT(near_by, 0);
  EXPECT_GT(on_both, 0);
  EXPECT_GT(kernels, 0);
}

TEST(Order, ASwitchDoesNotAddWithRunDeterministic) {
  const ClusterFiles files;
  std::string text = WithLinks(2, 1000, 10);
  text.insert(text.find("[node]") + 6, "\nall_reduce_bytes_per_us = [[2, 4000]]");
  const std::string file = files.Write("switch.toml", text);
  const std::vector<std::string> overrides = {"parallel.tp=2", "parallel.sequence_parallel=false", "model.layers=1"};
  const auto microseconds = [&](const char* deterministic) {
    std::vector<std::string> keys = overrides;
    keys.emplace_back(deterministic);
    const Deck deck = WithCosts(file, keys);
    const Compilation c = Compile(deck, 2, Purpose::kTrain);
    double sums = 0, others = 0;
    for (const Op& op : c.graph->ops)
      (op.kind == OpKind::kAllReduce ? sums : others) += TimesOf(deck).Of(*c.graph, op, c.mesh);
    return std::pair(sums, others);
  };
  const auto [ordered, others] = microseconds("run.deterministic=true");
  const auto [by_switches, the_same] = microseconds("run.deterministic=false");
  EXPECT_LT(by_switches, 0.9 * ordered);
  EXPECT_EQ(others, the_same);
}

TEST(Order, OriginFollowsTheContentsAndNotTheComments) {
  const ClusterFiles files;
  const auto origin = [&](const std::string& text) {
    return WithCosts(files.Write("a.toml", text), {}).times->Origin();
  };
  const std::string text = WithLinks(2, 1000, 10);
  EXPECT_EQ(origin(text), origin("# a comment\n" + text));
  EXPECT_NE(origin(text), origin(WithLinks(2, 1000, 11)));
}

TEST(Order, AFileMustBeReadBeforeADeckIsCompiled) {
  Deck deck = SmallDeck({"run.costs=nowhere.toml"});
  EXPECT_THROW(TimesOf(deck), InvariantError);
  try {
    ReadCosts(deck);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_TRUE(error.messages().at(0).starts_with("run.costs: ")) << error.what();
  }
  deck.run.costs.clear();
  EXPECT_EQ(&TimesOf(deck), &RoughTimes());
}

/// The numbers of strips in a program with an automatic number.
std::set<int> NumbersOfStrips(const Deck& deck, DeviceKind device) {
  const Compilation c = Compile(deck, 2, Purpose::kTrain, device);
  std::set<int> numbers;
  for (const Op& op : c.graph->ops)
    if (const std::optional<Strip> strip = StripOf(op); strip && op.frequency() == Frequency::kMicrobatch)
      numbers.insert(strip->count);
  return numbers;
}

TEST(Order, StripsAreAsManyAsTheTimesMakeFastest) {
  const ClusterFiles files;
  // Sizes at which kernels take far longer than their start.
  std::vector<std::string> overrides = {"parallel.tp=2",      "overlap.tensor_strips=0", "model.dim=4096",
                                        "model.heads=32",     "model.kv_heads=8",        "model.ffn_dim=14336",
                                        "model.seq_len=4096", "batch.micro=1",           "precision.compute=bf16"};
  const std::string balanced = files.Write("balanced.toml", WithLinks(2, 20, 10)),
                    fast = files.Write("fast.toml", WithLinks(2, 1e7, 10));
  EXPECT_EQ(NumbersOfStrips(SmallDeck(overrides), DeviceKind::kCpu), std::set<int>{});
  EXPECT_EQ(NumbersOfStrips(WithCosts(fast, overrides), DeviceKind::kCpu), std::set<int>{});
  const std::set<int> numbers = NumbersOfStrips(WithCosts(balanced, overrides), DeviceKind::kCpu);
  EXPECT_FALSE(numbers.empty());
  EXPECT_GT(*numbers.rbegin(), 1);
  // Sums of GPU libraries may depend on the number of rows, so there the file has no say unless the deck allows it.
  const auto on_gpus = [&](const std::string& path, const char* deterministic) {
    std::vector<std::string> keys = overrides;
    keys.emplace_back(deterministic);
    return NumbersOfStrips(WithCosts(path, keys), DeviceKind::kCuda);
  };
  EXPECT_EQ(on_gpus(balanced, "run.deterministic=true"), std::set<int>{});
  EXPECT_FALSE(on_gpus(balanced, "run.deterministic=false").empty());
  overrides[7] = "batch.micro=2";
  for (const std::string& path : {balanced, fast}) EXPECT_EQ(on_gpus(path, "run.deterministic=true"), std::set<int>{2});
}

TEST(Order, MessagesAreSplitAsWithoutAFileWhereSumsDependOnSizes) {
  const ClusterFiles files;
  std::vector<std::string> overrides = {"parallel.cp=4",         "parallel.context=all_gather",
                                        "model.dim=4096",        "model.heads=32",
                                        "model.kv_heads=8",      "model.ffn_dim=14336",
                                        "model.seq_len=8192",    "precision.compute=bf16",
                                        "batch.global=1",        "batch.micro=1",
                                        "run.deterministic=true"};
  const auto messages = [&](const Deck& deck) {
    std::multiset<std::pair<OpKind, size_t>> found;
    const Compilation c = Compile(deck, 4, Purpose::kTrain, DeviceKind::kCuda);
    for (const Op& op : c.graph->ops)
      if (IsCollective(op.kind)) found.emplace(op.kind, op.inputs.size());
    return found;
  };
  const std::string slow = files.Write("slow.toml", WithLinks(4, 10, 10)),
                    fast = files.Write("fast.toml", WithLinks(4, 1e4, 1e4));
  for (const char* context : {"all_gather", "all_to_all"}) {
    overrides[1] = fmt::format("parallel.context={}", context);
    overrides.back() = "run.deterministic=true";
    const auto alone = messages(SmallDeck(overrides));
    EXPECT_EQ(messages(WithCosts(slow, overrides)), alone) << context;
    EXPECT_EQ(messages(WithCosts(fast, overrides)), alone) << context;
    overrides.back() = "run.deterministic=false";
    EXPECT_NE(messages(WithCosts(slow, overrides)), messages(WithCosts(fast, overrides))) << context;
  }
}

}  // namespace
}  // namespace espalier
