#include "espalier/util/write_whole.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class WholeFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("write_whole_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    path_ = (folder_ / "file").string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  int64_t Entries() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }

  fs::path folder_;
  std::string path_;
};

TEST_F(WholeFiles, ReplaceOldOnesAndKeepTheirPermissions) {
  WriteWhole(path_, "one");
  fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
  WriteWhole(path_, std::string("t\0wo", 4));
  EXPECT_EQ(ReadFile(path_, {}), std::string("t\0wo", 4));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Entries(), 1);
}

TEST_F(WholeFiles, ReplaceALinkAndNotWhereItLeads) {
  WriteWhole(path_, "of others");
  fs::create_symlink(path_, folder_ / "link");
  WriteWhole((folder_ / "link").string(), "ours");
  EXPECT_EQ(ReadFile(path_, {}), "of others");
  EXPECT_EQ(ReadFile((folder_ / "link").string(), {}), "ours");
}

TEST_F(WholeFiles, LeaveTheOldOneIfTheDiskIsFull) {
  WriteWhole(path_, "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {1000, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  try {
    WriteWhole(path_, std::string(1001, 'x'));
    ADD_FAILURE() << "1001 bytes in a file of at most 1000";
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kFault);
    EXPECT_THAT(error.what(), HasSubstr("file: cannot write: File too large"));
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(ReadFile(path_, {}), "old");
  EXPECT_EQ(Entries(), 1) << "no temporary file stays";
}

}  // namespace
}  // namespace espalier
