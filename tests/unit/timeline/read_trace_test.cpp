// A trace that is read back equals the written timeline, to nanoseconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr double kNanosecond = 1e-3, kRounding = 2 * kNanosecond;

Timeline StepOf(const std::string& layout) {
  return ReplayPipeline(Compile(SmallDeck(DegreesOf(layout)), RanksOf(layout), Purpose::kTrain));
}

Timeline ReadBack(const std::string& text, const Timeline& written) {
  return ReadTrace(text, "t.json", [&](int rank) -> std::shared_ptr<const Program> {
    for (const Track& track : written.tracks)
      if (track.rank == rank) return track.program;
    return nullptr;
  });
}

std::string MessageOf(const std::string& text, const Timeline& written) {
  try {
    ReadBack(text, written);
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  return "";
}

std::map<int, Span> ByInstruction(const Track& track) {
  std::map<int, Span> spans;
  for (const Span& span : track.spans) spans[span.instruction] = span;
  return spans;
}

TEST(ReadTrace, ReturnsWhatWasWritten) {
  for (const char* layout : {"111", "222", "412"}) {
    Timeline written = StepOf(layout);
    written.title = "a \"title\"";
    const Timeline read = ReadBack(TraceJson(written), written);
    EXPECT_EQ(read.title, written.title);
    EXPECT_EQ(read.origin, written.origin);
    EXPECT_EQ(read.step_us, written.step_us);
    ASSERT_EQ(read.tracks.size(), written.tracks.size());
    for (size_t t = 0; t < read.tracks.size(); ++t) {
      EXPECT_EQ(read.tracks[t].rank, written.tracks[t].rank);
      EXPECT_EQ(read.tracks[t].ranks, written.tracks[t].ranks);
      const std::map<int, Span> there = ByInstruction(read.tracks[t]), here = ByInstruction(written.tracks[t]);
      ASSERT_EQ(there.size(), here.size());
      for (const auto& [instruction, span] : here) {
        EXPECT_NEAR(there.at(instruction).ready_us, span.ready_us, kRounding);
        EXPECT_NEAR(there.at(instruction).begin_us, span.begin_us, kRounding);
        EXPECT_NEAR(there.at(instruction).end_us, span.end_us, kRounding);
      }
      EXPECT_NEAR(BreakDown(read.tracks[t], read.step_us).compute_us,
                  BreakDown(written.tracks[t], written.step_us).compute_us, 1);
    }
  }
}

TEST(ReadTrace, RefusesTracesOfOtherPrograms) {
  const Timeline written = StepOf("211"), other = StepOf("212");
  EXPECT_THAT(MessageOf(TraceJson(written), other), HasSubstr("t.json: is not a trace of this program: "));
  Timeline fewer = written;
  fewer.tracks.pop_back();
  EXPECT_THAT(MessageOf(TraceJson(written), fewer), HasSubstr("there is no rank 1"));
}

TEST(ReadTrace, RefusesDamagedText) {
  const Timeline written = StepOf("211");
  const std::string text = TraceJson(written);
  EXPECT_THAT(MessageOf("", written), HasSubstr("t.json: is damaged"));
  EXPECT_THAT(MessageOf(text.substr(0, text.size() / 2), written), HasSubstr("t.json: is damaged"));
  EXPECT_THAT(MessageOf("{\"traceEvents\":[]}", written), HasSubstr("it has no events"));
  EXPECT_THAT(MessageOf("[]", written), HasSubstr("t.json"));
  std::string renamed = text;
  renamed.replace(renamed.find("\"op\":\""), 6, "\"op\":\"x");
  EXPECT_THAT(MessageOf(renamed, written), HasSubstr("there, and"));
  std::string twice = text;
  const size_t at = twice.find("\"instruction\":0,");
  twice.replace(at, 16, "\"instruction\":1,");
  EXPECT_NE(MessageOf(twice, written), "");
}

}  // namespace
}  // namespace espalier
