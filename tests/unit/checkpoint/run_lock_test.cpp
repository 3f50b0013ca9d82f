// One run per directory.
#include "espalier/checkpoint/run_lock.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint_fixture.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(Faults, ASecondRunIsRefusedAndADeadOnesLockTakenOver) {
  const std::string dir = Dir() + "/run";
  {
    const RunLock lock(dir);
    EXPECT_EQ(lock.left_by(), "");
    EXPECT_THAT(MessageOf([&] { RunLock second(dir); }), AllOf(HasSubstr("another run is in this directory (host "),
                                                               HasSubstr(fmt::format("process {}", ::getpid()))));
  }
  EXPECT_EQ(RunLock(dir).left_by(), "");
  const pid_t child = ::fork();
  if (child == 0) {
    RunLock* lock = new RunLock(dir);
    ::_exit(lock->left_by().empty() ? 0 : 1);  // without releasing the lock
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(RunLock(dir).left_by(), HasSubstr(fmt::format("process {}", child)));
}

TEST_F(Faults, ALockThatIsTakenAwayIsLost) {
  const std::string dir = Dir() + "/run";
  EXPECT_FALSE(RunLock::HeldBy(dir));
  RunLock zombie(dir);
  EXPECT_THAT(RunLock::HeldBy(dir).value_or(""), HasSubstr(fmt::format("process {}", ::getpid())));
  EXPECT_NO_THROW(RunLock(dir, kLockOfSupervisor));
  RunLock::TakeAway(dir);
  const RunLock next(dir);
  EXPECT_THAT(zombie.WhyLost(), HasSubstr("another run has taken the directory"));
}

TEST_F(Faults, ARemovedLockIsNoticed) {
  const std::string dir = Dir() + "/run";
  RunLock first(dir);
  EXPECT_EQ(first.WhyLost(), "");
  fs::remove(dir + "/run.lock");
  EXPECT_EQ(first.WhyLost(), "");  // nobody holds it: it is made again
  EXPECT_THAT(MessageOf([&] { RunLock second(dir); }), HasSubstr("another run is in this directory"));
  fs::remove(dir + "/run.lock");
  {
    RunLock second(dir);
    EXPECT_THAT(first.WhyLost(),
                AllOf(HasSubstr("another run has taken the directory (host "), HasSubstr("this one ends")));
    EXPECT_EQ(second.WhyLost(), "");
  }
  EXPECT_EQ(first.WhyLost(), "");  // it has ended
  EXPECT_THAT(MessageOf([&] { RunLock third(dir); }), HasSubstr("another run is in this directory"));
}

}  // namespace
}  // namespace espalier
