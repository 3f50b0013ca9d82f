// The console output of a run besides its steps: warnings, the effect of verbosity, and the lines at its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "espalier/report/text.hpp"
#include "report/reporter_testing.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Text, CountedIsExactBelowAMillion) {
  EXPECT_EQ(Counted(1, "file"), "1 file");
  EXPECT_EQ(Counted(0, "token"), "0 tokens");
  EXPECT_EQ(Counted(999'999, "token"), "999999 tokens");
  EXPECT_EQ(Counted(1'901'233, "token"), "1.90M tokens");
  EXPECT_EQ(Counted(16, "microbatch"), "16 microbatches");
}

TEST(Text, ExactCountHasBothForms) {
  EXPECT_EQ(ExactCount(803'968), "803968 (0.804 M)");
  EXPECT_EQ(ExactCount(124'439'808), "124439808 (124.4 M)");
  EXPECT_EQ(ExactCount(8'030'261'248), "8030261248 (8.03 B)");
  EXPECT_EQ(ExactCount(1'200'000'000'001), "1200000000001 (1.2 T)");
}

TEST(Text, Flops) {
  EXPECT_EQ(HumanFlops(750), "750 FLOP");
  EXPECT_EQ(HumanFlops(5'014'272), "5.01 MFLOP");
  EXPECT_EQ(HumanFlops(4.49e11), "449 GFLOP");
}

class ConsoleTest : public ReporterTest {
 protected:
  /// The texts of the "warning" events.
  std::vector<std::string> Warnings() const {
    std::vector<std::string> texts;
    for (const std::string& line : Lines())
      if (const json event = json::parse(line); event.value("event", "") == "warning") texts.push_back(event["text"]);
    return texts;
  }
};

TEST_F(ConsoleTest, WarningsOfTheLogAreEventsAfterTheStart) {
  testing::internal::CaptureStdout();
  RunLog log(0, Verbosity::kNormal);
  log.SetActivity("not shown in a file");
  spdlog::warn("before there is a {}", "reporter");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "warning: before there is a reporter\n");
  ReportOptions options = Options();
  options.log = &log;
  {
    Reporter reporter(options);
    spdlog::warn("before the start");
    reporter.Start({});
    spdlog::warn("the {}th", 9);
    spdlog::info("is said only");
    spdlog::debug("is a routine");
  }
  EXPECT_EQ(json::parse(Lines().at(0))["event"], "start");
  EXPECT_THAT(Warnings(), ElementsAre("before there is a reporter", "before the start", "the 9th"));
  EXPECT_THAT(Console(), ElementsAre("warning: before the start\n", "warning: the 9th\n", "is said only\n"));
  testing::internal::CaptureStdout();
  spdlog::warn("after the reporter");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "warning: after the reporter\n");
  EXPECT_THAT(Warnings(), SizeIs(3));
}

TEST_F(ConsoleTest, OtherRanksLogWarningsOnly) {
  testing::internal::CaptureStdout();
  RunLog log(3, Verbosity::kVerbose);
  spdlog::info("nothing to see");
  spdlog::warn("rank 3 is in trouble");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "warning: rank 3 is in trouble\n");
}

TEST_F(ConsoleTest, AFullDiskIsSaidOnceAndEndsNothing) {
  std::signal(SIGXFSZ, SIG_IGN);
  RunLog log(0, Verbosity::kNormal);
  ReportOptions options = Options();
  options.log = &log;
  Reporter reporter(options);
  reporter.Start({});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = fs::file_size(MetricsPath());
  // The limit is larger than the console, which is a file of this test.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  spdlog::warn("cannot be recorded");
  spdlog::warn("nor this");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  spdlog::warn("there is room again");
  EXPECT_THAT(Warnings(), ElementsAre("there is room again"));
  EXPECT_THAT(Console(), ElementsAre("warning: cannot be recorded\n",
                                     testing::MatchesRegex("warning: .*metrics.jsonl: cannot write: .*; lines will be "
                                                           "missing\n"),
                                     "warning: nor this\n", "warning: there is room again\n"));
}

TEST_F(ConsoleTest, AnEventFileThatCannotBeWrittenIsAWarning) {
  ReportOptions options = Options();
  fs::create_directories(folder_ + "/run");
  std::ofstream(folder_ + "/run/tensorboard") << "a file where the folder should be";
  options.events_folder = folder_ + "/run/tensorboard";
  Reporter reporter(options);
  reporter.Start({});
  reporter.Step(Record(1));
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("TensorBoard will miss this run")));
  EXPECT_EQ(json::parse(Lines().at(0))["event"], "start");
}

TEST_F(ConsoleTest, VerbosityChoosesTheLines) {
  for (const Verbosity verbosity : {Verbosity::kQuiet, Verbosity::kNormal, Verbosity::kVerbose}) {
    ReportOptions options = Options();
    options.verbosity = verbosity;
    Reporter reporter(options);
    reporter.SayLine({"result", "of level " + std::to_string(static_cast<int>(verbosity)), Worth::kResult});
    reporter.SayLine({"normal", "line"});
    reporter.SayLine({"routine", "line", Worth::kRoutine});
    reporter.Step(Record(1));
    reporter.Skipped(1, "a reason");
    reporter.Warn("something");
  }
  const std::string header = "     step       loss  grad norm         lr  tokens/s         ms  time left\n",
                    row = "     1/12    5.54321     0.3333  3.000e-04     4.00k      250.0         3s\n",
                    skipped = "        1  skipped: a reason\n", warning = "warning: something\n";
  EXPECT_THAT(Console(), ElementsAre("result     of level 0\n", skipped, warning,                                    //
                                     "result     of level 1\n", "normal     line\n", header, row, skipped, warning,  //
                                     "result     of level 2\n", "normal     line\n", "routine    line\n", header, row,
                                     skipped, warning));
}

TEST_F(ConsoleTest, LabelsAndWarningsHaveColours) {
  ReportOptions options = Options();
  options.colours = Colours::kYes;
  Reporter reporter(options);
  reporter.SayLine({"model", "llama"});
  reporter.Warn("careful");
  EXPECT_THAT(Console(), ElementsAre("\x1b[1mmodel     \x1b[0m llama\n", "\x1b[1;33mwarning:\x1b[0m careful\n"));
}

// A file is not a terminal.
TEST_F(ConsoleTest, WhatIsShownOnTerminalsIsNotInFiles) {
  Reporter reporter(Options());
  reporter.SetActivity(3, "saving");
  EXPECT_THAT(Console(), IsEmpty());
}

TEST_F(ConsoleTest, TheEndSaysWhatWasDone) {
  ReportOptions options = Options();
  options.every_steps = 100;
  options.peak_flops = 8e13;
  Reporter reporter(options);
  reporter.SaySummary();  // before the first step there is nothing to print
  EXPECT_THAT(Console(), IsEmpty());
  for (int64_t step = 3; step <= 5; ++step) {
    StepRecord r = Record(step);
    r.step_ms = step == 3 ? 1000 : 250;
    r.loss = step == 4 ? 1.25f : 1.5f;
    r.comm.reset();
    reporter.Step(r);
  }
  reporter.Validation(4, 1.75);
  reporter.Validation(5, std::numeric_limits<double>::quiet_NaN());
  reporter.Checkpoint({4, "a", 1 << 20, 0, 0, 0});
  reporter.Checkpoint({5, "b", 3 << 20, 0, 0, 0});
  reporter.CheckpointFailed(5, {"no room"});
  for (int i = 0; i < 2; ++i) reporter.Skipped(4, "x");
  reporter.RolledBack(5, 4, "y");
  reporter.Spike(5, "z");
  reporter.End(ExitStatus::kDone, {10, 3 << 20, 30}, 77 << 10);
  const size_t before = Console().size();
  reporter.SaySummary();
  std::vector<std::string> lines = Console();
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(before));
  EXPECT_THAT(lines,
              ElementsAre("done       steps 3 to 5: 6006 tokens in 1.50s, 4.00k tokens/s, mfu 10 %\n",
                          "loss       1.50000 (step 5), lowest 1.25000 (step 4)\n",
                          "validation nan (step 5), lowest 1.75000 (step 4)\n",
                          "guard      2 steps skipped, rolled back 1 time, 1 spike accepted\n",
                          "saved      2 checkpoints, 4.00 MiB, 1 failed\n",
                          "waits      of the time of all steps, training waited 1.4 % for saves\n",
                          "memory     3.00 MiB on rank 1, which used most; at most 77.0 KiB of a rank besides\n"));
}

}  // namespace
}  // namespace espalier
