// Times of attention's backward by way: their file, and the choice of a way.
#include "espalier/executor/attention_times.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/deck/choices.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

AttentionDemand Call(int64_t tokens, int64_t calls) {
  const Tensor x{nullptr, Dtype::kBf16, {3, tokens, 40}, {0, 0, 5}}, lse{nullptr, Dtype::kF32, {3, 5, tokens}, {}};
  AttentionDemand call{{x, x, x, x, lse, x}, {x, x, x}, {{{"head_dim", 8}, {"causal", 1}}, {}}, calls};
  return call;
}

AttentionTimes SomeTimes() {
  return {"NVIDIA H200",
          "cuDNN 9.19.0",
          {{Call(17, 2), {{"parts", 10.25}, {"two_streams", 8}, {"ordered", 7}}},
           {Call(33, 1), {{"parts", 20}, {"two_streams", 21}, {"own", 300.5}}}}};
}

/// A module that knows times of ways: parts 5, large_parts 4, ordered too old, two_streams without a kernel, own
/// without memory.
class KnownTimes final : public CudaModule {
 public:
  std::string Versions() const override { return ""; }
  std::vector<Gpu> Gpus() const override { return {}; }
  std::unique_ptr<Device> Open(const Gpu&, const GpuOptions&) override { return nullptr; }
  GemmPlans MeasureGemms(std::span<const GemmDemand>, const std::function<void(const GemmPlan&)>&) override {
    return {};
  }
  void UseGemmPlans(const GemmPlans&) override {}
  Platform PlatformOfAttention() const override { return {}; }
  AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t) override {
    const std::string& way = demand.attributes.Text("backward");
    if (way == "ordered") throw UserError(ExitStatus::kDeck, "it is too old");
    if (way == "own" && !has_memory) throw UserError(ExitStatus::kDoesNotFit, "it needs more");
    if (way == "two_streams") return {1, {"there is no kernel"}};
    const double noise = ++timed_ % 5 == 0 ? 1000 : 0;  // a median leaves it out
    return {(way == "parts" ? 5 : 4) + noise, {}};
  }

  bool has_memory = false;

 private:
  int timed_ = 0;
};

TEST(AttentionTimes, AreReadAsTheyAreWritten) {
  const AttentionTimes written = SomeTimes(), read = AttentionTimes::Parse(written.Text(), "times.json");
  EXPECT_EQ(read.platform, written.platform);
  ASSERT_EQ(read.entries.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(read.entries[i].call.IsSameCall(written.entries[i].call));
    EXPECT_EQ(read.entries[i].call.calls, written.entries[i].call.calls);
    EXPECT_EQ(read.entries[i].microseconds, written.entries[i].microseconds);
  }
}

TEST(AttentionTimes, ACallIsFoundByShapesAndAttributesButItsWay) {
  const AttentionTimes times = SomeTimes();
  AttentionDemand call = Call(33, 7);
  call.attributes.texts["backward"] = "ordered";
  EXPECT_EQ(times.Find(call), &times.entries[1]);
  call.attributes.numbers["window"] = 4;
  EXPECT_EQ(times.Find(call), nullptr);
  call = Call(33, 1);
  call.inputs[0].start = {0, 3, 5};
  EXPECT_EQ(times.Find(call), nullptr);
}

TEST(AttentionTimes, WhatIsWrongWithTheFileIsSaid) {
  const auto refusal = [](std::string text, const std::string& from, const std::string& to) -> std::string {
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    try {
      AttentionTimes::Parse(text, "times.json");
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      return error.what();
    }
    return "";
  };
  const std::string text = SomeTimes().Text();
  EXPECT_THAT(refusal("{}", "", ""), HasSubstr("times.json: not a file of attention's times"));
  EXPECT_THAT(refusal(text, "_times\": 1", "_times\": 2"), HasSubstr("format 2 is not 1; remove it"));
  EXPECT_THAT(refusal(text, "bf16", "f16"), HasSubstr("unknown type f16"));
  EXPECT_THAT(refusal(text, "10.25", "\"fast\""), HasSubstr("not a file of attention's times"));
}

TEST(AttentionTimes, StepsAddCallsThatAWayComputesAll) {
  const std::vector<TimedAttention> calls = SomeTimes().entries;
  EXPECT_THAT(TimesOfStep(calls), ElementsAre(Pair("parts", 40.5), Pair("two_streams", 37.0)));
  EXPECT_THAT(TimesOfStep({}), IsEmpty());
}

TEST(AttentionTimes, AnotherWayThanTheDefaultIsFasterByOnePercent) {
  EXPECT_THAT(FastestWays({{"parts", 100}, {"large_parts", 99.5}, {"two_streams", 90}, {"ordered", 80}, {"own", 900}}),
              ElementsAre("ordered", "two_streams", "parts"));
  EXPECT_THAT(FastestWays({{"parts", 100}, {"large_parts", 99}}), ElementsAre("large_parts", "parts"));
  EXPECT_THAT(FastestWays({{"own", 9}, {"ordered", 8}, {std::string(kUnorderedBackward), 1}}),
              ElementsAre("ordered", "own"));
  EXPECT_THAT(FastestWays({}), IsEmpty());
}

TEST(AttentionTimes, WaysThatCannotComputeACallAreLeftOut) {
  KnownTimes module;
  std::vector<std::string> left_out;
  const auto note = [&](const std::string& way, const std::string& why) { left_out.push_back(way + ": " + why); };
  AttentionDemand call = Call(17, 3);
  call.attributes.texts["backward"] = "ordered";
  const TimedAttention timed = TimeWays(module, call, DeterministicWays(), note);
  EXPECT_THAT(timed.microseconds, ElementsAre(Pair("large_parts", 4.0), Pair("parts", 5.0)));
  EXPECT_THAT(left_out, ElementsAre("two_streams: there is no kernel", "ordered: it is too old", "own: it needs more"));
  EXPECT_FALSE(timed.lasting);
  EXPECT_FALSE(timed.call.attributes.texts.contains("backward"));
  EXPECT_EQ(timed.call.calls, 3);
  module.has_memory = true;
  EXPECT_TRUE(TimeWays(module, call, DeterministicWays(), note).lasting);
}

}  // namespace
}  // namespace espalier
