// Layouts for fewer hosts, and the ledger of a supervisor.
#include "supervise/fallback.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "source_tree.hpp"
#include "supervise/ledger.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeckArguments Small(std::vector<std::string> keys) {
  keys.emplace_back("run.device=cpu");
  return {InTree("tests/decks/small.toml"), std::move(keys)};
}

TEST(Fallback, DataParallelRanksAreDroppedFirst) {
  const DeckArguments deck = Small({"parallel.dp_shard=4", "parallel.tp=2", "batch.global=16"});
  const auto three = FindFallback(deck, 8, 6, 0);  // three copies do not divide 16 sequences
  ASSERT_TRUE(three);
  EXPECT_EQ(three->ranks, 4);
  EXPECT_THAT(three->keys, ElementsAre("parallel.dp_replicate=1", "parallel.dp_shard=2"));
  EXPECT_THAT(three->promise, HasSubstr("up to rounding"));
  EXPECT_EQ(FindFallback(deck, 8, 2, 0)->ranks, 2);
  EXPECT_FALSE(FindFallback(deck, 8, 1, 0));
}

TEST(Fallback, OnlyStagesThatAreJoinedChangeNoBit) {
  const DeckArguments deck =
      Small({"parallel.pp=2", "parallel.dp_shard=1", "parallel.tp=1", "parallel.reduce=step", "parallel.zero=1"});
  const auto one = FindFallback(deck, 2, 1, 0);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->ranks, 1);
  EXPECT_THAT(one->promise, HasSubstr("bitwise"));
}

TEST(Fallback, ALayoutThatNeedsMoreMemoryThanThereIsIsNotOffered) {
  const DeckArguments deck = Small({"parallel.dp_shard=2"});
  EXPECT_TRUE(FindFallback(deck, 2, 1, int64_t{1} << 30));
  EXPECT_FALSE(FindFallback(deck, 2, 1, 1000));
}

TEST(Fallback, AreFoundAhead) {
  Fallbacks fallbacks({Small({"parallel.dp_shard=-1"}), 4, 1, 0, std::nullopt});
  EXPECT_EQ(fallbacks.On(3)->ranks, 2);
  EXPECT_EQ(fallbacks.On(1)->ranks, 1);
  fallbacks.Refuse(3);
  EXPECT_FALSE(fallbacks.On(3));
}

TEST(Fallback, ATunedDeckIsReadAsKeys) {
  const std::string deck = "[parallel]\ntp = 2\n\n[recompute]\nmode = \"full\"\n";
  EXPECT_THAT(KeysOf(deck), ElementsAre("parallel.tp=2", "recompute.mode=\"full\""));
}

TEST(Fallback, KeysReplaceThoseOfTheCommandLine) {
  EXPECT_THAT(WithKeys({"run.steps=3", "parallel.dp_shard = 4"}, {"parallel.dp_shard=2"}),
              ElementsAre("run.steps=3", "parallel.dp_shard=2"));
}

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() { std::filesystem::create_directories(dir_); }
  ~LedgerTest() override { std::filesystem::remove_all(dir_); }
  const std::string dir_ = testing::TempDir() + "/ledger";
};

TEST_F(LedgerTest, TellsWhatASupervisorLeftThatWasKilled) {
  EXPECT_FALSE(ReadLedger(dir_).orphan);
  Ledger ledger(dir_);
  ledger.Write({{"event", "start"}, {"start", 1}, {"on", "a"}, {"launcher", 77}, {"launcher_ticks", 5}});
  ledger.Write({{"event", "failure"}, {"hosts", {"b", "c"}}, {"excluded", {"c"}}});
  ledger.Write({{"event", "start"}, {"start", 2}, {"on", "a"}, {"launcher", 78}, {"launcher_ticks", 6}});
  std::ofstream(LedgerFile(dir_), std::ios::app) << "{\"event\":\"fai";  // torn
  const LedgerPast past = ReadLedger(dir_);
  ASSERT_TRUE(past.orphan);
  EXPECT_EQ(past.orphan->process, 78);
  EXPECT_EQ(past.orphan->ticks, 6);
  EXPECT_EQ(past.starts, 2);
  EXPECT_THAT(past.failures, ElementsAre(ElementsAre("b", "c")));
  EXPECT_THAT(past.excluded, ElementsAre("c"));
}

TEST_F(LedgerTest, AnOrderlyEndForgivesAllHosts) {
  Ledger ledger(dir_);
  ledger.Write({{"event", "start"}, {"start", 1}, {"on", "a"}, {"launcher", 77}, {"launcher_ticks", 5}});
  ledger.Write({{"event", "failure"}, {"hosts", {"b"}}, {"excluded", {"b"}}});
  ledger.Write({{"event", "end"}, {"status", 0}});
  const LedgerPast past = ReadLedger(dir_);
  EXPECT_FALSE(past.orphan);
  EXPECT_EQ(past.starts, 1);
  EXPECT_THAT(past.failures, IsEmpty());
  EXPECT_THAT(past.excluded, IsEmpty());
}

}  // namespace
}  // namespace espalier
