// The structure of the picture: bars, labels and coordinates. Its appearance is judged by eye.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "espalier/svg/svg.hpp"
#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/picture/jobs.hpp"
#include "timeline/picture/time_axis.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A bar: its class and place.
struct DrawnBar {
  std::string css_class;
  double x = 0, y = 0, width = 0, height = 0;
};

/// Every thick line, as a bar.
std::vector<DrawnBar> BarsIn(const std::string& svg) {
  const std::regex path(
      R"re(<path transform="translate\(0 (\S+)\)" stroke-width="(\S+)" class="(\S+)" d="([^"]*)"/>)re");
  const std::regex line(R"re(M(\S+) 0h([^M]+))re");
  std::vector<DrawnBar> bars;
  for (std::sregex_iterator p(svg.begin(), svg.end(), path), none; p != none; ++p) {
    const double height = std::stod((*p)[2]), y = std::stod((*p)[1]) - height / 2;
    const std::string data = (*p)[4];
    for (std::sregex_iterator l(data.begin(), data.end(), line); l != none; ++l)
      bars.push_back({(*p)[3], std::stod((*l)[1]), y, std::stod((*l)[2]), height});
  }
  return bars;
}

/// The bars of a class below the legend.
std::vector<DrawnBar> BarsOfClass(const std::string& svg, const std::string& css_class) {
  std::vector<DrawnBar> bars;
  for (const DrawnBar& bar : BarsIn(svg))
    if (bar.css_class == css_class && bar.y > 80) bars.push_back(bar);
  return bars;
}

std::vector<std::string> TextsOfClass(const std::string& svg, const std::string& css_class) {
  const std::regex text("<text [^>]*class=\"" + css_class + "\"[^>]*>([^<]*)</text>");
  std::vector<std::string> texts;
  for (std::sregex_iterator t(svg.begin(), svg.end(), text), none; t != none; ++t) texts.push_back((*t)[1]);
  return texts;
}

constexpr double kLeft = 174, kWidth = 1600 - 174 - 250 - 24;  // area of the bars in a picture

/// F0, then the exposed part of a transfer, B0 in two kernels with an invisibly short wait between them, idle time.
Timeline HandMadeStep() {
  const Track track = HandMade()
                          .Add(Lane::kCompute, {}, {0, 0, 300}, Role::kF)
                          .Add(Lane::kTp, {{Lane::kCompute, 1}}, {300, 300, 400})
                          .Add(Lane::kCompute, {{Lane::kTp, 1}}, {400, 400, 499.8}, Role::kB)
                          .Add(Lane::kTp, {{Lane::kCompute, 2}}, {499.8, 499.8, 500})
                          .Add(Lane::kCompute, {{Lane::kTp, 2}}, {500, 500, 700}, Role::kB)
                          .Done();
  return {"by hand <&>", "predicted", 1000, {track}};
}

TEST(DrawSvg, OfAStepByHand) {
  const std::string svg = DrawSvg({HandMadeStep()});
  const std::vector<DrawnBar> forward = BarsOfClass(svg, "F0"), backward = BarsOfClass(svg, "B0");
  ASSERT_EQ(forward.size(), 1);
  ASSERT_EQ(backward.size(), 1) << "one bar for both kernels";
  EXPECT_NEAR(forward[0].x, kLeft + 0.3, 0.06);
  EXPECT_NEAR(forward[0].width, 0.3 * kWidth - 0.6, 0.06);
  EXPECT_NEAR(backward[0].x, kLeft + 0.4 * kWidth + 0.3, 0.06);
  EXPECT_NEAR(backward[0].width, 0.3 * kWidth - 0.6, 0.06);
  const std::vector<DrawnBar> exposed = BarsOfClass(svg, "X");
  ASSERT_EQ(exposed.size(), 1);
  EXPECT_NEAR(exposed[0].x, kLeft + 0.3 * kWidth, 0.06);
  EXPECT_NEAR(exposed[0].width, 0.1 * kWidth, 0.06);
  EXPECT_EQ(exposed[0].height, 24);
  const std::vector<DrawnBar> tp = BarsOfClass(svg, "tp");
  ASSERT_GE(tp.size(), 1);
  EXPECT_NEAR(tp[0].x, kLeft + 0.3 * kWidth, 0.06);
  EXPECT_NEAR(tp[0].width, 0.1 * kWidth, 0.06);
  EXPECT_EQ(tp[0].height, 6);
  EXPECT_TRUE(BarsOfClass(svg, "tph").empty()) << "nothing is hidden";
  EXPECT_THAT(TextsOfClass(svg, "m"), ElementsAre("0", "0"));
  EXPECT_THAT(TextsOfClass(svg, "name"), ElementsAre("stage 0, rank 0"));
  EXPECT_THAT(TextsOfClass(svg, "title"), ElementsAre("by hand &lt;&amp;&gt;"));
  EXPECT_THAT(svg, HasSubstr("step 1 ms; mean of all ranks: compute 60.0 %, exposed 10.0 %, idle 30.0 %"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

TEST(DrawSvg, ShowsShortWaitsAsABand) {
  // 40 kernels of 5 us, each after a transfer of 5 us: half of the job is exposed.
  HandMade track;
  track.Add(Lane::kCompute, {}, {0, 0, 5});
  for (int i = 1; i < 40; ++i) {
    const double at = 10.0 * i;
    track.Add(Lane::kTp, {{Lane::kCompute, i}}, {at - 5, at - 5, at});
    track.Add(Lane::kCompute, {{Lane::kTp, i}}, {at, at, at + 5});
  }
  const std::string svg = DrawSvg({{"", "predicted", 100000, {track.Done()}}});
  ASSERT_EQ(BarsOfClass(svg, "F0").size(), 1);
  const std::vector<DrawnBar> band = BarsOfClass(svg, "X");
  ASSERT_EQ(band.size(), 1);
  EXPECT_EQ(band[0].height, 12) << "half of 24 pixels";
  EXPECT_EQ(band[0].y, BarsOfClass(svg, "F0")[0].y + 12) << "at the foot";
}

TEST(DrawSvg, HasABarForEveryJob) {
  const Compilation compilation =
      Compile(SmallDeck(PipelineDeck({"1f1b", 1}, 4, 6, {"batch.micro=1"})), 4, Purpose::kTrain);
  const Timeline timeline = ReplayPipeline(compilation);
  const std::string svg = DrawSvg({timeline});
  EXPECT_EQ(BarsOfClass(svg, "F0").size(), 4 * 6);
  EXPECT_EQ(BarsOfClass(svg, "BW0").size(), 4 * 6);
  EXPECT_TRUE(BarsOfClass(svg, "B0").empty()) << "B and W are one job";
  EXPECT_THAT(TextsOfClass(svg, "name"),
              ElementsAre("stage 0, rank 0", "stage 1, rank 1", "stage 2, rank 2", "stage 3, rank 3"));
  std::map<std::string, int> numbers;
  for (const std::string& text : TextsOfClass(svg, "m")) ++numbers[text];
  for (int microbatch = 0; microbatch < 6; ++microbatch)
    EXPECT_EQ(numbers[std::to_string(microbatch)], 4 * 2) << "forward and backward of " << microbatch;
  EXPECT_THAT(svg, HasSubstr(">steady state<"));
}

TEST(DrawSvg, TellsWeightGradientsOfZeroBubbleApart) {
  const Compilation compilation = Compile(SmallDeck(PipelineDeck({"zb-h1", 1}, 2, 4)), 2, Purpose::kTrain);
  const std::string svg = DrawSvg({ReplayPipeline(compilation)});
  EXPECT_EQ(BarsOfClass(svg, "B0").size(), 2 * 4);
  EXPECT_EQ(BarsOfClass(svg, "W0").size(), 2 * 4);
  EXPECT_TRUE(BarsOfClass(svg, "BW0").empty());
}

TEST(DrawSvg, ShadesTheChunksOfAStage) {
  const Compilation compilation = Compile(SmallDeck(PipelineDeck({"interleaved", 2}, 2, 4)), 2, Purpose::kTrain);
  const std::string svg = DrawSvg({ReplayPipeline(compilation)});
  EXPECT_EQ(BarsOfClass(svg, "F0").size(), 2 * 4);
  EXPECT_EQ(BarsOfClass(svg, "F1").size(), 2 * 4);
}

TEST(DrawSvg, EnlargesTheMiddleOfALongStep) {
  const Compilation compilation = Compile(SmallDeck(PipelineDeck({"1f1b", 1}, 2, 64)), 2, Purpose::kTrain);
  const std::string svg = DrawSvg({ReplayPipeline(compilation)});
  EXPECT_THAT(TextsOfClass(svg, "name"),
              ElementsAre("stage 0, rank 0", "stage 1, rank 1", "enlarged", "stage 0, rank 0", "stage 1, rank 1"));
  std::map<std::string, int> numbers;
  for (const std::string& text : TextsOfClass(svg, "m")) ++numbers[text];
  EXPECT_EQ(numbers["32"], 4) << "forward and backward on both stages";
  EXPECT_EQ(numbers["5"], 0) << "the whole step is too narrow for numbers";
}

TEST(DrawSvg, DrawsTimelinesOnOneScale) {
  Timeline slow = HandMadeStep();
  slow.title = "slower";
  slow.step_us = 2000;
  const std::string svg = DrawSvg({HandMadeStep(), slow});
  const std::vector<DrawnBar> forward = BarsOfClass(svg, "F0");
  ASSERT_EQ(forward.size(), 2);
  EXPECT_EQ(forward[0].width, forward[1].width);
  EXPECT_NEAR(forward[0].width, 0.15 * kWidth - 0.6, 0.06);
  EXPECT_GT(forward[1].y, forward[0].y + 24);
  EXPECT_THAT(TextsOfClass(svg, "title"), ElementsAre("by hand &lt;&amp;&gt;", "slower"));
}

TEST(DrawSvg, LeavesOutTheMiddleOfManyRanks) {
  Timeline timeline = HandMadeStep();
  const Track track = timeline.tracks[0];
  timeline.tracks.clear();
  for (int rank = 0; rank < 40; ++rank) {
    auto program = std::make_shared<Program>(*track.program);
    program->stage = rank / 4;
    timeline.tracks.push_back({rank, 1, program, track.spans});
  }
  const std::string svg = DrawSvg({timeline});
  const std::vector<std::string> names = TextsOfClass(svg, "name");
  ASSERT_EQ(names.size(), 32);
  EXPECT_EQ(names[15], "stage 3, rank 15");
  EXPECT_EQ(names[16], "stage 6, rank 24");
  EXPECT_THAT(svg, HasSubstr("8 ranks of stages 4 to 5 not shown"));
}

TEST(DrawSvg, StaysSmall) {
  const Compilation compilation =
      Compile(SmallDeck(PipelineDeck({"interleaved", 2}, 4, 512, {"parallel.tp=2"})), 8, Purpose::kTrain);
  const Timeline timeline = ReplayPipeline(compilation);
  size_t spans = 0;
  for (const Track& track : timeline.tracks) spans += track.spans.size();
  EXPECT_GT(spans, 100000);
  EXPECT_LT(DrawSvg({timeline}).size(), 1500000);
}

TEST(DrawSvg, TakesTimelinesWithoutAnything) {
  EXPECT_THAT(DrawSvg({}), HasSubstr("</svg>"));
  EXPECT_THAT(DrawSvg({{"nothing", "measured", 0, {}}}), HasSubstr("</svg>"));
}

std::vector<std::string> Labels(double begin_us, double end_us, int most) {
  std::vector<std::string> labels;
  for (const Tick& tick : TicksOf(begin_us, end_us, most)) labels.push_back(tick.label);
  return labels;
}

TEST(TimeAxis, HasRoundTicks) {
  EXPECT_THAT(Labels(0, 47, 6), ElementsAre("0", "10", "20", "30", "40 µs"));
  EXPECT_THAT(Labels(0, 1200, 6), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1", "1.2 ms"));
  EXPECT_THAT(Labels(2.13e6, 2.41e6, 6), ElementsAre("2.15", "2.2", "2.25", "2.3", "2.35", "2.4 s"));
  EXPECT_THAT(Labels(5, 5, 6), ElementsAre());
  EXPECT_EQ(TimeText(812345), "812.3 ms");
  EXPECT_EQ(TimeText(1.2e6), "1.2 s");
  EXPECT_EQ(TimeText(35), "35 µs");
}

}  // namespace
}  // namespace espalier
