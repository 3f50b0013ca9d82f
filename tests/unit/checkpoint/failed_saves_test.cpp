// Saves that fail at a stage, are interrupted, or run out of disk: the previous checkpoint stays whole.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <cerrno>
#include <fstream>
#include <random>

#include "checkpoint_fixture.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

TEST_F(Faults, VariableIsChecked) {
  EXPECT_THAT(MessageOf([] { ArmFault("shard-date"); }),
              AllOf(HasSubstr("'shard-date' is no stage"), HasSubstr("shard-data")));
  EXPECT_THAT(MessageOf([] { ArmFault("rename:burn"); }),
              AllOf(HasSubstr("'burn' is no action"), HasSubstr("kill, stop, hold, eio, enospc")));
  EXPECT_THAT(MessageOf([] { ArmFault("rename:eio:0"); }), HasSubstr("'0' is no count"));
  ArmFault("rename:eio:2");
  FaultPoint("latest");
  FaultPoint("rename");
  EXPECT_EQ(MessageOf([] { FaultPoint("rename", "/x"); }), "/x: rename: Input/output error (by ESPALIER_FAULT)");
  FaultPoint("rename");
}

TEST_F(Faults, ErrorsBeforeTheCommitLeaveTheOldOne) {
  ASSERT_THAT(SaveState(Dir(), kTwo, 10, 1), Each(StrEq("")));
  for (const char* stage : {"begin", "make-dir", "shard-open", "shard-layout", "shard-data", "shard-fsync",
                            "shard-check", "gather", "deck", "master", "manifest", "fsync-dir", "announce", "rename"})
    for (const char* action : {"eio", "enospc"}) {
      ArmFault(fmt::format("{}:{}", stage, action));
      EXPECT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(AllOf(HasSubstr("step-00000020 is not saved"), HasSubstr(stage))))
          << stage;
      EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(10))) << stage;
      EXPECT_THAT(LoadState(Step(10), kOne, 1), Each(StrEq(""))) << stage;
    }
  ASSERT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(StrEq("")));
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020"));
}

TEST_F(Faults, ErrorsAfterTheCommitAreWarnings) {
  int64_t step = 10;
  for (const char* stage : {"commit", "latest", "settled", "retention", "remove"}) {
    ASSERT_THAT(SaveState(Dir(), kTwo, step, 1, 1), Each(StrEq("")));
    step += 10;
    ArmFault(fmt::format("{}:eio", stage));
    EXPECT_THAT(SaveState(Dir(), kTwo, step, 2, 1), Each(StrEq(""))) << stage;
    EXPECT_EQ(FindLatest(Dir()), Step(step)) << stage;
    EXPECT_THAT(LoadState(Step(step), kOne, 2), Each(StrEq(""))) << stage;
    SettleCheckpoints(Dir());
    EXPECT_EQ(FindLatest(Dir()), Step(step)) << stage;
    EXPECT_THAT(Names(Dir()), Each(::testing::Not(HasSubstr("del-")))) << stage;
    step += 10;
  }
}

TEST_F(Faults, ADeadReplacementIsUndone) {
  ASSERT_THAT(SaveState(Dir(), kTwo, 10, 1), Each(StrEq("")));
  ASSERT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(StrEq("")));
  // If the file system cannot exchange entries, a run may end between the two renames.
  const std::string id = "0123456789abcdef0123456789abcdef";
  fs::rename(Step(20), Dir() + "/del-00000020-" + id);
  fs::create_directory(Dir() + "/tmp-00000020-" + id);
  fs::create_directory(Dir() + "/del-00000030-" + id);
  SettleCheckpoints(Dir());
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020"));
  EXPECT_THAT(LoadState(Step(20), kOne, 2), Each(StrEq("")));
  // The same for an entry that was moved aside.
  fs::create_directory(Dir() + "/kept-00000030-" + id);
  WriteBytes(Dir() + "/kept-00000030-" + id + "/notes.txt", "x");
  fs::create_directory(Dir() + "/tmp-00000030-" + id);
  SettleCheckpoints(Dir());
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
  EXPECT_THAT(Names(Step(30)), ElementsAre("notes.txt"));
}

/// Numbers of future calls that a signal interrupts; fsync of directories that the file system refuses.
int interrupted_fsyncs = 0, interrupted_fallocates = 0, refused_directories = 0;

TEST_F(Faults, InterruptedCallsAreCalledAgain) {
  interrupted_fsyncs = interrupted_fallocates = 50;
  EXPECT_THAT(SaveState(Dir(), kOne, 10, 1), Each(StrEq("")));
  EXPECT_EQ(interrupted_fsyncs, 0);
  EXPECT_EQ(interrupted_fallocates, 0);
  EXPECT_THAT(LoadState(Step(10), kTwo, 1), Each(StrEq("")));
}

TEST_F(Faults, DirectoriesThatCannotBeSyncedFailNoSave) {
  refused_directories = 1000;
  EXPECT_THAT(SaveState(Dir(), kOne, 10, 1), Each(StrEq("")));
  EXPECT_LT(refused_directories, 1000);
  refused_directories = 0;
  EXPECT_THAT(LoadState(Step(10), kTwo, 1), Each(StrEq("")));
}

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::mount("tmpfs", home_.path().c_str(), "tmpfs", 0, "size=48m") != 0)
      GTEST_SKIP() << "no tmpfs can be mounted here: " << std::strerror(errno);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(home_.path().c_str(), MNT_DETACH);
  }
  int64_t Free() const {
    struct statvfs status {};
    ::statvfs(home_.path().c_str(), &status);
    return static_cast<int64_t>(status.f_bavail * status.f_frsize);
  }
  /// Writes files until only `left` bytes are free.
  void FillUp(int64_t left) const {
    const int64_t bytes = Free() - left;
    std::ofstream ballast(home_.path() + "/ballast", std::ios::binary | std::ios::app);
    const std::string block(64 << 10, 'x');
    for (int64_t at = 0; at < bytes && ballast; at += static_cast<int64_t>(block.size())) ballast << block;
  }

  TemporaryDirectory home_;
  bool mounted_ = false;
};

TEST_F(FullDisk, LosesNothing) {
  const std::string dir = home_.path() + "/checkpoints";
  std::mt19937 random(7);
  ASSERT_THAT(SaveState(dir, kTwo, 10, 1, 1), Each(StrEq("")));
  constexpr int64_t kAlmost = 12 << 20;  // room for a checkpoint, and little more
  int64_t kept = 10, failed = 0;
  for (int i = 0; i < CountFrom("ESPALIER_FULL_DISKS", 5); ++i) {
    const int64_t step = kept + 10, left = static_cast<int64_t>(random() % (12 << 20));
    // Either the disk is full before the save, or it fills while the save writes.
    const bool before = random() % 3 == 0;
    FillUp(before ? left : kAlmost);
    std::jthread filler([&](std::stop_token stop) {
      while (!before && !stop.stop_requested() && Names(dir).size() < 3) std::this_thread::yield();
      if (!before) FillUp(left / 8);
    });
    const std::vector<std::string> errors = SaveState(dir, kTwo, step, static_cast<uint64_t>(step), 1);
    filler.request_stop();
    filler.join();
    EXPECT_THAT(errors, Each(StrEq(errors[0])));
    if (errors[0].empty()) kept = step;
    failed += !errors[0].empty();
    EXPECT_EQ(FindLatest(dir), dir + "/" + StepName(kept)) << errors[0];
    EXPECT_THAT(LoadState(dir + "/" + StepName(kept), kOne, kept == 10 ? 1 : static_cast<uint64_t>(kept)),
                Each(StrEq("")));
    fs::remove(home_.path() + "/ballast");
  }
  EXPECT_GT(failed, 0);
  ASSERT_THAT(SaveState(dir, kTwo, kept + 10, 9, 1), Each(StrEq("")));
  fmt::print("{} saves failed for want of room\n", failed);
}

}  // namespace
}  // namespace espalier

// The linker uses these in place of the C library's.
extern "C" int fsync(int file) {
  struct stat status {};
  if (espalier::interrupted_fsyncs > 0) return --espalier::interrupted_fsyncs, errno = EINTR, -1;
  if (espalier::refused_directories > 0 && ::fstat(file, &status) == 0 && S_ISDIR(status.st_mode))
    return --espalier::refused_directories, errno = EINVAL, -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (espalier::interrupted_fallocates > 0) return --espalier::interrupted_fallocates, errno = EINTR, -1;
  return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
}
