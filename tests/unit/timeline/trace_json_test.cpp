// The trace as Perfetto reads it: valid JSON, one event per instruction, an arrow per message.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

using nlohmann::json;

Timeline StepOf(const std::vector<std::string>& overrides, int ranks) {
  return ReplayPipeline(Compile(SmallDeck(overrides), ranks, Purpose::kTrain));
}

std::vector<json> Events(const json& trace, const std::string& phase, const std::string& category = "") {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == phase && (category.empty() || event["cat"] == category)) events.push_back(event);
  return events;
}

TEST(TraceJson, OfAHandMadeStep) {
  Track track = HandMade().Add(Lane::kCompute, {}, {0, 0.5, 1.2344}, Role::kB, 2).Done();
  track.rank = 3;
  const Timeline timeline{"a \"title\" \xff", "measured", 7, {track}};
  const json trace = json::parse(TraceJson(timeline));
  EXPECT_EQ(trace["otherData"]["origin"], "measured");
  EXPECT_EQ(trace["otherData"]["title"], "a \"title\" \xEF\xBF\xBD");
  EXPECT_EQ(trace["otherData"]["step_us"], 7);
  const json& events = trace["traceEvents"];
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "rank 3, stage 0");
  EXPECT_EQ(events[1]["args"]["sort_index"], 3);
  EXPECT_EQ(events[2]["args"]["name"], "compute");
  const json& kernel = events[4];
  EXPECT_EQ(kernel["name"], "B2 layer 1 matmul");
  EXPECT_EQ(kernel["pid"], 3);
  EXPECT_EQ(kernel["tid"], 1);
  EXPECT_DOUBLE_EQ(kernel["ts"], 0.5);
  EXPECT_DOUBLE_EQ(kernel["dur"], 0.734) << "nanoseconds";
  EXPECT_EQ(kernel["args"], json::parse(R"({"instruction":0,"op":"matmul","role":"B","microbatch":2,"layer":1,
                                            "bytes":0,"waiting_us":0.5})"));
  EXPECT_EQ(events.size(), 5);
}

TEST(TraceJson, HasOneEventPerInstructionInLaneOrder) {
  for (const char* layout : {"111", "222", "411"}) {
    const Timeline timeline = StepOf(DegreesOf(layout), RanksOf(layout));
    const json trace = json::parse(TraceJson(timeline));
    for (const Track& track : timeline.tracks) {
      std::map<int, std::vector<int>> planned, written;  // by lane: instructions
      for (int i = 0; i < std::ssize(track.program->instructions); ++i)
        planned[static_cast<int>(track.program->instructions[static_cast<size_t>(i)].lane) + 1].push_back(i);
      std::map<int, double> end;
      for (const json& event : Events(trace, "X")) {
        if (event["pid"] != track.rank) continue;
        EXPECT_GE(event["ts"].get<double>(), end[event["tid"]] - 1e-9) << "events of a lane overlap";
        end[event["tid"]] = event["ts"].get<double>() + event["dur"].get<double>();
        if (event["cat"] != "wait") written[event["tid"]].push_back(event["args"]["instruction"]);
      }
      EXPECT_EQ(planned, written) << layout;
    }
  }
}

TEST(TraceJson, ShowsWaitsForPeersByThemselves) {
  const Timeline timeline = StepOf(DegreesOf("411"), 4);
  const json trace = json::parse(TraceJson(timeline));
  double waits = 0, expected = 0;
  for (const json& event : Events(trace, "X", "wait")) {
    EXPECT_EQ(event["name"], "wait for peers");
    waits += event["dur"].get<double>();
  }
  for (const Track& track : timeline.tracks)
    for (const Span& span : track.spans)
      if (track.program->instructions[static_cast<size_t>(span.instruction)].lane != Lane::kCompute)
        expected += span.begin_us - span.ready_us;
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(waits, expected, 1e-3 * 1e3);
}

/// Ends of arrows, each inside the event of its send or recv.
TEST(TraceJson, HasAnArrowForEveryMessage) {
  const Timeline timeline = StepOf(DegreesOf("412"), 8);
  const json trace = json::parse(TraceJson(timeline));
  size_t sends = 0;
  for (const Track& track : timeline.tracks)
    for (const Instruction& i : track.program->instructions) sends += i.lane == Lane::kPpSend;
  const std::vector<json> from = Events(trace, "s"), to = Events(trace, "f");
  ASSERT_EQ(from.size(), sends);
  ASSERT_EQ(to.size(), sends);
  std::map<int, json> arrivals;
  for (const json& event : to) arrivals[event["id"]] = event;
  const auto inside = [&](const json& arrow, const char* op) {
    for (const json& event : Events(trace, "X"))
      if (event["pid"] == arrow["pid"] && event["tid"] == arrow["tid"] && event["ts"] <= arrow["ts"] &&
          arrow["ts"].get<double>() < event["ts"].get<double>() + event["dur"].get<double>())
        return event["args"].value("op", "") == op;
    return false;
  };
  for (const json& event : from) {
    const json& arrival = arrivals[event["id"]];
    EXPECT_TRUE(inside(event, "send"));
    EXPECT_TRUE(inside(arrival, "recv"));
    EXPECT_LE(event["ts"], arrival["ts"]);
    EXPECT_EQ(arrival["bp"], "e");
  }
}

TEST(TraceJson, SaysTheBytesOfMessages) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("222")), 8, Purpose::kTrain);
  const Timeline timeline = ReplayPipeline(compilation);
  const json trace = json::parse(TraceJson(timeline));
  for (const Track& track : timeline.tracks) {
    std::map<std::string, int64_t> planned, written;
    for (const auto& [lane, count] : CountMessages(*track.program, compilation.mesh.CoordinateOf(track.rank)))
      planned[lane] = count.bytes;
    for (const json& event : Events(trace, "X"))
      if (event["pid"] == track.rank && event["tid"] > 1 && event["cat"] != "wait" && event["args"]["op"] != "recv")
        written[std::string(Name(static_cast<Lane>(event["tid"].get<int>() - 1)))] += event["args"]["bytes"].get<int>();
    EXPECT_EQ(planned, written);
  }
}

TEST(TraceJson, NamesAClassOfRanksOnce) {
  const json trace = json::parse(TraceJson(StepOf(DegreesOf("222"), 8)));
  EXPECT_EQ(trace["traceEvents"][0]["args"]["name"], "rank 0 (of 4 alike), stage 0");
}

}  // namespace
}  // namespace espalier
