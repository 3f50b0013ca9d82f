// metrics.jsonl read back: which steps count after restarts and rollbacks, and the handling of bad lines.
#include "espalier/history/run_history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunHistory Read(const std::string& text) { return ParseHistory(text, "x/metrics.jsonl"); }

std::string Start(int64_t first_step) {
  return fmt::format("{{\"event\":\"start\",\"first_step\":{},\"ranks\":3}}\n", first_step);
}

/// Steps with a loss each.
std::string Steps(int64_t first, const std::vector<double>& losses) {
  std::string text;
  for (const double loss : losses) text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", first++, loss);
  return text;
}

std::string MessageOf(const std::string& text) {
  try {
    Read(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  return "";
}

TEST(RunHistory, HasFieldsAsColumns) {
  const RunHistory history = Read(Start(1) +
                                  "{\"step\":1,\"loss\":5.5,\"mfu\":null,\"exposed_ms\":{\"tp\":0.25,\"pp\":3},"
                                  "\"time\":1700000000.5}\n"
                                  "{\"step\":2,\"loss\":4.5,\"exposed_ms\":null,\"time\":1700000002}\n");
  EXPECT_THAT(history.steps.steps(), ElementsAre(1, 2));
  EXPECT_THAT(history.steps.Column("loss"), ElementsAre(5.5, 4.5));
  EXPECT_EQ(history.steps.Column("exposed_ms.pp")[0], 3);
  EXPECT_TRUE(std::isnan(history.steps.Column("exposed_ms.pp")[1]));
  EXPECT_FALSE(history.steps.Has("mfu"));
  EXPECT_EQ(history.steps.Column("mfu").size(), 2U) << "a column of NaN";
  EXPECT_EQ(history.first_time, 1700000000.5);
  EXPECT_EQ(history.last_time, 1700000002);
}

TEST(RunHistory, GivesUpTheStepsAfterARestart) {
  const RunHistory history = Read(Start(1) + Steps(1, {5, 4, 3, 2.5}) + Start(3) + Steps(3, {3.25, 2.75}));
  EXPECT_THAT(history.steps.steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(history.steps.Column("loss"), ElementsAre(5, 4, 3.25, 2.75));
  EXPECT_THAT(history.given_up.steps(), ElementsAre(3, 4));
  EXPECT_THAT(history.given_up.Column("loss"), ElementsAre(3, 2.5));
  ASSERT_EQ(history.resumptions.size(), 1U);
  EXPECT_EQ(history.resumptions[0].first_step, 3);
  EXPECT_EQ(history.resumptions[0].given_up, 2);
  EXPECT_EQ(history.resumptions[0].kind, Resumption::Kind::kRestart);
}

TEST(RunHistory, GivesUpTheStepsAfterARollback) {
  const RunHistory history =
      Read(Start(1) + Steps(1, {5, 4, 9}) + "{\"event\":\"rollback\",\"step\":3,\"to\":1,\"reason\":\"a spike\"}\n" +
           Steps(2, {4.5, 4.25, 4.125}));
  EXPECT_THAT(history.steps.Column("loss"), ElementsAre(5, 4.5, 4.25, 4.125));
  EXPECT_THAT(history.given_up.Column("loss"), ElementsAre(4, 9));
  ASSERT_EQ(history.resumptions.size(), 1U);
  EXPECT_EQ(history.resumptions[0].first_step, 2);
  EXPECT_EQ(history.resumptions[0].kind, Resumption::Kind::kRollback);
}

TEST(RunHistory, OfEqualStepsTheLastCounts) {
  const RunHistory history = Read(Steps(1, {5, 4}) + Steps(2, {3.5}));
  EXPECT_THAT(history.steps.Column("loss"), ElementsAre(5, 3.5));
  EXPECT_THAT(history.given_up.Column("loss"), ElementsAre(4));
  EXPECT_TRUE(history.resumptions.empty());
}

/// The example of tests/python/read_runs.py, which expects the same from espalier.read_metrics.
TEST(RunHistory, AgreesWithThePythonPackage) {
  const RunHistory history = Read(R"({"event":"start","first_step":1,"steps":9}
{"step":1,"loss":5.5,"grad_norm":null,"note":"grad_norm is inf","step_ms":2000,"exposed_ms":null}
{"step":2,"loss":5.0,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":1.5,"cp":0.000}}
{"step":2,"val_loss":4.75}
{"step":3,"loss":4.5,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"event":"rollback","step":4,"to":2,"reason":"loss is nan"}
{"step":3,"loss":4.4,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"step":4,"loss":4.2,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"step":4,"val_loss":4.1}
{"event":"start","first_step":3,"steps":9}
{"step":2,"val_loss":4.75}
{"step":3,"loss":4.3,"grad_norm":3,"step_ms":null,"exposed_ms":{"tp":3.5,"cp":0.000}}
{"step":4,"loss":4.1,"grad_)");
  EXPECT_THAT(history.steps.steps(), ElementsAre(1, 2, 3));
  EXPECT_THAT(history.steps.Column("loss"), ElementsAre(5.5, 5.0, 4.3));
  EXPECT_THAT(history.steps.Column("grad_norm"), ElementsAre(testing::IsNan(), 2, 3));
  EXPECT_THAT(history.steps.Column("val_loss"), ElementsAre(testing::IsNan(), 4.75, testing::IsNan()));
  EXPECT_THAT(history.steps.Column("exposed_ms.tp"), ElementsAre(testing::IsNan(), 1.5, 3.5));
  EXPECT_THAT(history.steps.Column("step_ms"), ElementsAre(2000, 1000, testing::IsNan()));
  EXPECT_THAT(history.given_up.steps(), ElementsAre(3, 3, 4));
  EXPECT_THAT(history.given_up.Column("loss"), ElementsAre(4.5, 4.4, 4.2));
  EXPECT_EQ(history.given_up.Column("val_loss")[2], 4.1);
  EXPECT_EQ(history.unread.size(), 1U);
}

TEST(RunHistory, HasValidationsInTheRowOfTheirStep) {
  const RunHistory history =
      Read(Steps(1, {5, 4}) + "{\"step\":2,\"val_loss\":4.5}\n" + Start(3) + "{\"step\":2,\"val_loss\":4.25}\n");
  EXPECT_EQ(history.steps.Column("val_loss")[1], 4.25);
  EXPECT_EQ(history.steps.Column("loss")[1], 4) << "the step stays";
  EXPECT_EQ(history.given_up.Rows(), 0U);
}

std::string Loads(int64_t step, const std::string& loads) {
  return fmt::format("{{\"step\":{},\"loss\":3,\"experts_loads\":{}}}\n", step, loads);
}

TEST(RunHistory, KeepsTheLastLoadsOfExpertsThatCount) {
  const std::string text = Start(1) + Loads(1, "[[1,2],[3,0]]") + Loads(2, "[[4,5],[6,7]]") + Steps(3, {2});
  const auto loads = Read(text).loads;
  ASSERT_TRUE(loads.has_value());
  EXPECT_EQ(loads->step, 2);
  EXPECT_THAT(loads->by_layer, ElementsAre(ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_EQ(Read(text + Start(2) + Steps(2, {3})).loads->step, 1) << "step 2 is given up";
  EXPECT_EQ(Read(text + Start(2) + Loads(2, "[[8,9],[1,1]]")).loads->by_layer[0][1], 9);
  EXPECT_FALSE(Read(text + Start(1)).loads.has_value());
}

TEST(RunHistory, LeavesOutLoadsThatNoRunWrites) {
  for (const char* loads : {"7", "[]", "[[]]", "[1,2]", "[[1,2],[3]]", "[[1,null]]", "[[1,-2]]", "[[1,1e200]]", "{}"}) {
    const RunHistory history = Read(Loads(1, loads));
    EXPECT_FALSE(history.loads.has_value()) << loads;
    EXPECT_EQ(history.steps.Rows(), 1U) << "the step stays";
  }
}

TEST(RunHistory, NotesWhatIsNotFinite) {
  const RunHistory history = Read(
      "{\"step\":7,\"loss\":null,\"grad_norm\":null,\"note\":\"loss is nan, grad_norm is -inf\"}\n"
      "{\"step\":8,\"loss\":null}\n");
  ASSERT_EQ(history.not_finite.size(), 2U) << "a null without a note is only not there";
  EXPECT_EQ(history.not_finite[0].field, "loss");
  EXPECT_EQ(history.not_finite[1].value, "-inf");
  EXPECT_EQ(history.not_finite[1].step, 7);
}

TEST(RunHistory, ListsLinesThatCannotBeRead) {
  const RunHistory history = Read(Steps(1, {5}) +
                                  "{\"step\":2,\"lo\n[1,2]\n{\"loss\":3}\n{\"event\":\"start\"}\n"
                                  "{\"event\":\"rollback\",\"step\":2}\n{\"event\":7,\"step\":2}\n" +
                                  Steps(3, {4}) + "{\"step\":4,\"loss\":3");
  EXPECT_THAT(history.steps.steps(), ElementsAre(1, 3));
  std::vector<int64_t> lines;
  for (const UnreadLine& line : history.unread) lines.push_back(line.line);
  EXPECT_THAT(lines, ElementsAre(2, 3, 4, 5, 6, 7, 9));
  EXPECT_EQ(history.unread[0].why, "is no JSON");
  EXPECT_THAT(history.unread[6].why, HasSubstr("not complete"));
}

TEST(RunHistory, ReadsALastLineWithoutItsEnd) {
  EXPECT_THAT(Read(Steps(1, {5}) + "{\"step\":2,\"loss\":3}").steps.Column("loss"), ElementsAre(5, 3));
}

TEST(RunHistory, KnowsTheEndOfTheLastStartOnly) {
  const std::string end = "{\"event\":\"end\",\"status\":75}\n";
  EXPECT_NE(Read(Start(1) + end).End(), nullptr);
  EXPECT_EQ(Read(Start(1) + end + Start(2)).End(), nullptr) << "the second start goes on";
  EXPECT_EQ(Read(Steps(1, {5})).LastStart(), nullptr);
}

TEST(RunHistory, FieldsOfOtherTypesAreMissing) {
  const nlohmann::json fields = {{"text", "a"}, {"number", 1.5}, {"integer", 3}};
  EXPECT_TRUE(std::isnan(NumberOf(fields, "text")));
  EXPECT_EQ(NumberOf(fields, "integer"), 3);
  EXPECT_EQ(IntegerOf(fields, "number"), std::nullopt);
  EXPECT_EQ(TextOf(fields, "number"), "");
  EXPECT_EQ(TextOf(fields, "absent"), "");
}

TEST(RunHistory, LeavesOutNumbersThatNoRunWrites) {
  const RunHistory history = Read(Steps(1, {5, 1e308, -1e101, 1e99, 4}) +
                                  "{\"step\":6,\"loss\":3,\"exposed_ms\":{\"tp\":2e100}}\n"
                                  "{\"event\":\"checkpoint\",\"seconds\":-1e300}\n");
  EXPECT_THAT(history.steps.steps(), ElementsAre(1, 4, 5));
  EXPECT_EQ(history.unread_lines, 4);
  EXPECT_EQ(history.unread[0].why, "has a number beyond 1e+100");
  EXPECT_TRUE(history.events.empty());
}

TEST(RunHistory, ListsTheFirstOfManyBadLines) {
  std::string text = Steps(1, {5});
  for (int i = 0; i < 1003; ++i) text += "no line\n";
  const RunHistory history = Read(text);
  EXPECT_EQ(history.unread_lines, 1003);
  EXPECT_EQ(history.unread.size(), kMaxUnread);
  EXPECT_EQ(history.unread.back().line, 101);
}

/// If every line has a new field, the table of all steps and fields grows with the square of the file.
TEST(StepColumns, HaveALimitOnTheirNumbers) {
  StepColumns columns(12);
  for (int64_t step = 1; step <= 3; ++step) columns.Set(columns.AddRow(step), {{fmt::format("f{}", step), 7.5}});
  EXPECT_THROW(columns.Set(2, {{"g", 1}, {"h", 1}}), std::length_error) << "3 rows of 5 columns";
  EXPECT_THAT(columns.Column("g"), ElementsAre(testing::IsNan(), testing::IsNan(), 1)) << "3 rows of 4 columns";
  EXPECT_THROW(columns.AddRow(4), std::length_error) << "4 rows of 4 columns";
}

TEST(RunHistory, RefusesFilesWithoutALine) {
  EXPECT_EQ(MessageOf(""), "x/metrics.jsonl: is empty: the run has not begun yet");
  EXPECT_THAT(MessageOf("a\nb\n"), HasSubstr("none of its 2 lines can be read; line 1 is no JSON"));
  EXPECT_THROW(ReadHistory("/nonexistent"), UserError);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "run_history_test";
  std::filesystem::create_directories(folder / "metrics.jsonl");
  EXPECT_THROW(ReadHistory(folder.string()), UserError) << "a folder is no file";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace espalier
