// Heartbeat files, and ranks that end when another rank of their host has died.
#include "espalier/watch/heartbeat.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "espalier/util/error.hpp"
#include "espalier/watch/watchdog.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

class HeartbeatFiles : public testing::Test {
 protected:
  HeartbeatFiles() { std::filesystem::create_directories(folder_); }
  ~HeartbeatFiles() override { std::filesystem::remove_all(folder_); }
  /// Four ranks, two on each node; the files of both are there.
  HeartbeatTable TwoNodes() const {
    const HeartbeatTable table(folder_, {0, 1, 0, 1});
    for (int leader : {0, 1}) table.MakeFile(leader);
    return table;
  }
  const std::string folder_ = testing::TempDir() + "heartbeat." + std::to_string(getpid());
};

TEST_F(HeartbeatFiles, AreReadAsTheyAreWritten) {
  const HeartbeatTable table = TwoNodes();
  const HeartbeatFile beside(table, 1);
  {
    HeartbeatFile file(table, 3);
    file.record().step = 12;
    file.record().activity = Activity::kSaving;
    file.record().training.done[2] = 7;
    EXPECT_EQ(table.Read(3)->step, 0) << "what is not published is not seen";
    ASSERT_TRUE(file.Publish());
    const auto read = table.Read(3);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->rank, 3);
    EXPECT_EQ(read->process, getpid());
    EXPECT_FALSE(read->host.empty());
    EXPECT_TRUE(read->SharesProcesses(Read(file.record())));
    EXPECT_EQ(read->step, 12);
    EXPECT_EQ(read->activity, Activity::kSaving);
    EXPECT_EQ(read->done[2], 7);
    EXPECT_FALSE(table.Read(2).has_value());
    const auto all = table.ReadAll();
    ASSERT_EQ(all.size(), 4U);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(all[rank].has_value(), rank % 2 == 1) << rank;
      if (all[rank]) EXPECT_EQ(all[rank]->rank, int(rank));
    }
  }
  EXPECT_FALSE(table.Read(3).has_value()) << "it goes with its rank";
  EXPECT_TRUE(table.Read(1).has_value()) << "and that of its neighbour stays";
}

TEST_F(HeartbeatFiles, AreOnePerNode) {
  const HeartbeatTable table = TwoNodes();
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  };
  EXPECT_THAT(table.NodeOf(3), testing::ElementsAre(1, 3));
  EXPECT_TRUE(table.IsLeader(1));
  EXPECT_FALSE(table.IsLeader(2));
  {
    const HeartbeatFile first(table, 1), second(table, 3);
    EXPECT_THAT(files(), testing::ElementsAre("node-00000", "node-00001"));
  }
  EXPECT_THAT(files(), testing::ElementsAre("node-00000")) << "the last rank of a node removes its file";
  EXPECT_THROW(table.MakeFile(2), UserError) << "it exists";
  EXPECT_THROW(HeartbeatFile(table, 3), UserError) << "it was not made";
}

/// A rank without work, in a separate process that ends with this one; returns when its heartbeat exists.
pid_t StartNeighbour(const HeartbeatTable& table, int rank) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    HeartbeatFile file(table, rank);
    pause();
  }
  while (!table.Read(rank)) usleep(1000);
  return child;
}

Watchdog::CompilationFinder OfEveryStep(const Compilation& world) {
  return [&world](int64_t) -> const Compilation& { return world; };
}

/// The table of a job on this host alone.
HeartbeatTable OneNode(const std::string& folder, int ranks) {
  HeartbeatTable table(folder, std::vector<int>(static_cast<size_t>(ranks), 0));
  table.MakeFile(0);
  return table;
}

/// Rank 0's behaviour when a rank of its host dies.
void LiveBesideADyingRank(const std::string& folder) {
  const Compilation world = Compile(SmallDeck({"parallel.dp_shard=3", "batch.global=6"}), 3, Purpose::kTrain);
  const HeartbeatTable table = OneNode(folder, 3);
  StartNeighbour(table, 1);
  const pid_t victim = StartNeighbour(table, 2);
  HeartbeatFile mine(table, 0);
  const Watchdog dog({table, 60, 600}, mine, OfEveryStep(world), [] { _exit(99); });
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  for (int patience = 0; patience < 60; ++patience) sleep(1);
}

TEST_F(HeartbeatFiles, ADeadRankOfTheHostEndsTheOthers) {
  EXPECT_EXIT(LiveBesideADyingRank(folder_), testing::ExitedWithCode(1),
              "rank 2 is gone: its process \\([0-9]+ on .*\\) has ended");
  EXPECT_FALSE(HeartbeatTable(folder_, {0}).Read(0).has_value()) << "who ends in order is not taken for dead";
}

/// Rank 0's behaviour in a step in which it waits for a rank of its host whose heartbeat is removed or cut.
void WaitForARankWithoutHeartbeat(const std::string& folder, const std::function<void(const std::string&)>& spoil) {
  PrepareHeartbeatFolder(folder);
  const Compilation world = Compile(SmallDeck({"parallel.dp_shard=2"}), 2, Purpose::kTrain);
  const HeartbeatTable table = OneNode(folder, 2);
  StartNeighbour(table, 1);
  HeartbeatFile mine(table, 0);
  mine.record().step = 3;
  mine.record().activity = Activity::kStep;
  const Watchdog dog({table, 1, 600}, mine, OfEveryStep(world), [] { _exit(99); });
  spoil(table.PathOf(1));
  for (int patience = 0; patience < 60; ++patience) sleep(1);
}

TEST_F(HeartbeatFiles, H2AMissingOneIsNoExcuse) {
  const auto remove = [](const std::string& path) { std::filesystem::remove(path); };
  EXPECT_EXIT(WaitForARankWithoutHeartbeat(folder_, remove), testing::ExitedWithCode(99),
              "rank 1 has no heartbeat any more: the file was removed, while");
  const auto cut = [](const std::string& path) { std::filesystem::resize_file(path, 7); };
  EXPECT_EXIT(WaitForARankWithoutHeartbeat(folder_, cut), testing::ExitedWithCode(99),
              "rank 1 has no heartbeat any more");
}

/// A rank of its host stays in its start for ever.
TEST_F(HeartbeatFiles, H2NothingIsExcusedForEver) {
  const auto wait = [&] {
    const Compilation world = Compile(SmallDeck({"parallel.dp_shard=2"}), 2, Purpose::kTrain);
    const HeartbeatTable table = OneNode(folder_, 2);
    StartNeighbour(table, 1);
    HeartbeatFile mine(table, 0);
    mine.record().step = 1;
    mine.record().activity = Activity::kAgreeing;
    const Watchdog dog({table, 1, 2}, mine, OfEveryStep(world), [] { _exit(99); });
    for (int patience = 0; patience < 60; ++patience) sleep(1);
  };
  EXPECT_EXIT(wait(), testing::ExitedWithCode(99), "rank 1 is starting, step 0");
}

TEST_F(HeartbeatFiles, LATruncatedOneIsWrittenAgain) {
  const HeartbeatTable table = TwoNodes();
  HeartbeatFile file(table, 3);
  std::filesystem::resize_file(table.PathOf(3), 0);
  file.record().step = 8;
  EXPECT_FALSE(table.Read(3).has_value());
  ASSERT_TRUE(file.Publish());
  EXPECT_EQ(table.Read(3)->step, 8);
}

TEST_F(HeartbeatFiles, H5OnlyHeartbeatsAreRemoved) {
  for (const char* name : {"node-00000", "node-123456", "node-1", "node-00001.csv", "notes"})
    std::ofstream(folder_ + "/" + name) << name;
  const std::string theirs = folder_ + ".theirs";
  std::ofstream(theirs) << "theirs";
  std::filesystem::create_symlink(theirs, folder_ + "/node-00002");
  PrepareHeartbeatFolder(folder_);
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) left.insert(entry.path().filename());
  EXPECT_THAT(left, testing::ElementsAre("node-00001.csv", "node-1", "notes"));
  EXPECT_EQ(std::filesystem::file_size(theirs), 6U) << "the link goes, not what it names";
  std::filesystem::create_symlink(theirs, folder_ + "/node-00003");
  EXPECT_THROW(HeartbeatTable(folder_, {0, 1, 2, 3}).MakeFile(3), UserError);
  std::filesystem::remove(theirs);
  const std::string link = folder_ + ".link";
  std::filesystem::create_directory_symlink(folder_, link);
  EXPECT_THROW(PrepareHeartbeatFolder(link), UserError);
  std::filesystem::remove(link);
}

TEST_F(HeartbeatFiles, OtherFilesAreNone) {
  std::ofstream(folder_ + "/node-00000") << "short";
  std::ofstream(folder_ + "/node-00001") << std::string(4096, 'x');
  const HeartbeatTable table(folder_, {0, 1});
  EXPECT_FALSE(table.Read(0).has_value());
  EXPECT_FALSE(table.Read(1).has_value());
}

}  // namespace
}  // namespace espalier
