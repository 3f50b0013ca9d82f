// When a run stops by itself: the time limit's decision with given times, signals, and the file `checkpoint_now`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "espalier/deck/time_limit.hpp"
#include "espalier/train/stop_signals.hpp"
#include "test_decks.hpp"
#include "train/state/checkpoint_now.hpp"
#include "train/stopping/time_limit.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

TEST(TimeLimits, AreTimesAboveZero) {
  EXPECT_EQ(TimeLimitSeconds("00:00:01"), 1);
  EXPECT_EQ(TimeLimitSeconds("1:02:03"), 3723);
  EXPECT_EQ(TimeLimitSeconds("999999:59:59"), int64_t{1000000} * 3600 - 1);
  for (const char* wrong : {"", "00:00:00", "00:60:00", "00:00:60", "-1:00:00", "00:00:-1", "00:00:1 ", ":00:01",
                            "1000000:00:00", "00:00:01x", "0x:00:01", "00-00-01"})
    EXPECT_EQ(TimeLimitSeconds(wrong), std::nullopt) << wrong;
}

TEST(TimeLimits, MarginFollowsTheLimit) {
  const auto margin = [](const std::vector<std::string>& overrides) {
    return FindTimeLimit(SmallDeck(overrides), "", 0).end().margin_s;
  };
  EXPECT_DOUBLE_EQ(margin({"run.time_limit=00:01:40"}), 15);
  EXPECT_DOUBLE_EQ(margin({"run.time_limit=00:10:00"}), 90);
  EXPECT_DOUBLE_EQ(margin({"run.time_limit=48:00:00"}), 90);
  EXPECT_DOUBLE_EQ(margin({"run.time_limit=48:00:00", "run.stop_margin_s=300"}), 300);
  EXPECT_DOUBLE_EQ(margin({"run.time_limit=00:00:10", "run.stop_margin_s=0"}), 0);
}

TEST(TimeLimits, TheEarlierEndCounts) {
  const Deck hour = SmallDeck({"run.time_limit=01:00:00"});
  EXPECT_FALSE(FindTimeLimit(SmallDeck(), "", 5000).Set());
  EXPECT_DOUBLE_EQ(FindTimeLimit(hour, "", 5000).end().at_s, 3600);
  EXPECT_DOUBLE_EQ(FindTimeLimit(hour, "5060", 5000).end().at_s, 60);
  EXPECT_DOUBLE_EQ(FindTimeLimit(hour, "9000", 5000).end().at_s, 3600);
  EXPECT_DOUBLE_EQ(FindTimeLimit(SmallDeck(), "9000", 5000).end().at_s, 4000);
  EXPECT_EQ(FindTimeLimit(SmallDeck(), "9000", 5000).end().what, "the end of the job");
  for (const char* wrong : {"soon", "9000x", "0", "-9000", "N/A"})
    EXPECT_FALSE(FindTimeLimit(SmallDeck(), wrong, 5000).Set()) << wrong;
}

TEST(TimeLimits, AStepThatIsLongerThanWhatIsLeftNeverStarts) {
  TimeLimit limit({100, 10, "test"});
  EXPECT_FALSE(limit.Reached(90, 0, 0));
  EXPECT_TRUE(limit.Reached(90.1, 0, 0));
  limit.StepTook(20);
  limit.StepTook(5);
  EXPECT_FALSE(limit.Reached(70, 0, 0));
  EXPECT_TRUE(limit.Reached(70.1, 0, 0));
  EXPECT_FALSE(limit.Reached(40, 0, 20)) << "a save counts 1.5 times";
  EXPECT_TRUE(limit.Reached(40.1, 0, 20));
  EXPECT_TRUE(limit.Reached(65, 6, 0)) << "a validation comes beside the step";
  for (int step = 0; step < 20; ++step) limit.StepTook(1);
  EXPECT_FALSE(limit.Reached(89, 0, 0)) << "the slow step is long past";
  EXPECT_FALSE(TimeLimit().Reached(1e9, 1e9, 1e9));
}

/// Exit status of a child that runs `work`, or minus the signal that ended it.
template <typename Work>
int Child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGHUP, SIG_DFL);  // nohup ignores it
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(StopSignals, LeaveANote) {
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU})
    EXPECT_EQ(Child([&] {
                CatchStopSignals();
                if (StopSignal() != 0) _exit(1);
                raise(signal);
                raise(SIGUSR1);
                CatchStopSignals();
                _exit(StopSignal() == signal ? 42 : 2);
              }),
              42);
  EXPECT_EQ(StopSignalName(SIGTERM) + StopSignalName(SIGINT) + StopSignalName(SIGUSR1) + StopSignalName(SIGUSR2),
            "SIGTERMSIGINTSIGUSR1SIGUSR2");
}

TEST(StopSignals, M5M6AFileLimitAndALostReaderAreErrorsOfTheCall) {
  EXPECT_EQ(Child([] { CatchStopSignals(), raise(SIGPIPE), raise(SIGXFSZ), _exit(StopSignal() == 0 ? 42 : 1); }), 42);
  EXPECT_EQ(Child([] { CatchStopSignals(), ReleaseStopSignals(), raise(SIGPIPE); }), -SIGPIPE)
      << "a command that prints into head";
}

TEST(StopSignals, M6AHangupThatIsIgnoredStaysIgnored) {
  EXPECT_EQ(Child([] {
              signal(SIGHUP, SIG_IGN), CatchStopSignals(), CatchStopSignals(), raise(SIGHUP),
                  _exit(StopSignal() == 0 ? 42 : 1);
            }),
            42);
  EXPECT_EQ(Child([] { CatchStopSignals(), raise(SIGHUP), _exit(StopSignal() == SIGHUP ? 42 : 1); }), 42);
}

TEST(StopSignals, M6AHardLimitOfProcessorTimeLeavesTimeToSave) {
  const auto soft = [](rlim_t soft, rlim_t hard) {
    return Child([=] {
      const rlimit limit{soft, hard};
      setrlimit(RLIMIT_CPU, &limit);
      CatchStopSignals();
      rlimit now{};
      getrlimit(RLIMIT_CPU, &now);
      _exit(static_cast<int>(now.rlim_cur));
    });
  };
  EXPECT_EQ(soft(200, 200), 180);
  EXPECT_EQ(soft(4, 4), 3);
  EXPECT_EQ(soft(100, 200), 100);
}

TEST(StopSignals, ThatAreHeldComeLater) {
  EXPECT_EQ(Child([] {
              CatchStopSignals(), HoldStopSignals(), raise(SIGTERM);
              if (StopSignal() != 0) _exit(1);
              CatchStopSignals();
              _exit(StopSignal() == SIGTERM ? 42 : 2);
            }),
            42);
}

TEST(StopSignals, ASecondInterruptEndsAtOnce) {
  const auto twice = [](int first, int second) {
    return Child([=] {
      CatchStopSignals();
      raise(first);
      raise(second);
    });
  };
  EXPECT_EQ(twice(SIGINT, SIGINT), -SIGINT);
  EXPECT_EQ(twice(SIGTERM, SIGINT), 0);
  EXPECT_EQ(twice(SIGTERM, SIGTERM), 0);
}

TEST(StopSignals, EndACommandThatHasNothingToSave) {
  EXPECT_EQ(Child([] { CatchStopSignals(), raise(SIGTERM), ReleaseStopSignals(); }), -SIGTERM);
  EXPECT_EQ(Child([] { CatchStopSignals(), ReleaseStopSignals(), raise(SIGINT); }), -SIGINT);
}

class CheckpointNowTest : public ::testing::Test {
 protected:
  ~CheckpointNowTest() override { fs::remove(file_); }
  void Touch(int seconds) {
    std::ofstream{file_};
    fs::last_write_time(file_, fs::file_time_type{} + std::chrono::seconds(seconds));
  }
  const fs::path file_ = fs::temp_directory_path() / fmt::format("checkpoint_now.{}", getpid());
  CheckpointNow now_{file_};
};

TEST_F(CheckpointNowTest, TheFileGoesWithTheCommit) {
  EXPECT_FALSE(now_.Wanted());
  Touch(1);
  EXPECT_TRUE(now_.Wanted());
  now_.Begun(7);
  EXPECT_FALSE(now_.Wanted());
  now_.Committed(6);
  EXPECT_TRUE(fs::exists(file_)) << "the save of step 6 began before it";
  now_.Committed(7);
  EXPECT_FALSE(fs::exists(file_));
  Touch(2);
  EXPECT_TRUE(now_.Wanted());
}

TEST_F(CheckpointNowTest, AFailedSaveIsNotTriedAgainUntilTheFileIsTouched) {
  Touch(1);
  now_.Begun(7);
  EXPECT_FALSE(now_.Wanted());
  Touch(2);
  EXPECT_TRUE(now_.Wanted());
  now_.Committed(7);
  EXPECT_TRUE(fs::exists(file_)) << "touched since";
  now_.Begun(9);
  now_.Committed(9);
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(CheckpointNowTest, AnyLaterSaveAnswersIt) {
  Touch(1);
  now_.Begun(7);
  now_.Begun(8);
  now_.Committed(8);
  EXPECT_FALSE(fs::exists(file_));
}

}  // namespace
}  // namespace espalier
