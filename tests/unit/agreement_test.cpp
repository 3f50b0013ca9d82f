// Ranks that were not started alike are told apart by name before anything else happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_testing.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/fault.hpp"
#include "train/startup/same_start.hpp"
#include "train/startup/world_check.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kDeck = SOURCE_ROOT "/tests/decks/small.toml";

/// A source that has files and nothing else.
class Files final : public TokenSource {
 public:
  explicit Files(std::vector<DataFile> files, int64_t tokens = 100) : files_(std::move(files)), tokens_(tokens) {}
  int64_t samples() const override { return 1; }
  int64_t tokens() const override { return tokens_; }
  int64_t seq_len() const override { return 3; }
  const std::vector<DataFile>& files() const override { return files_; }
  void Read(int64_t, std::span<int32_t>) override {}

 private:
  std::vector<DataFile> files_;
  int64_t tokens_;
};

/// What ranks 0 to 3 say whose overrides these are.
std::vector<std::string> Decks(const std::vector<std::vector<std::string>>& overrides,
                               const std::string& restart_of_last = "") {
  return OnRanks(static_cast<int>(overrides.size()), [&](World& world) {
    RunOptions options;
    if (world.Rank() == world.Size() - 1) options.restart = restart_of_last;
    AgreeOnDeck(world, options, LoadDeck(kDeck, overrides[static_cast<size_t>(world.Rank())]));
  });
}

std::vector<std::string> Data(const std::vector<std::vector<DataFile>>& files) {
  return OnRanks(static_cast<int>(files.size()), [&](World& world) {
    AgreeOnData(world, "data.paths", Files(files[static_cast<size_t>(world.Rank())]));
  });
}

TEST(Agreement, H6EqualRanksAgree) {
  EXPECT_THAT(Decks({{"optimizer.lr=0.25"}, {"optimizer.lr=2.5e-1"}, {"optimizer.lr=0.25"}}), Each(IsEmpty()));
  const std::vector<DataFile> files = {{"/a", 3, 7}, {"/b", 5, 11}};
  EXPECT_THAT(Data({files, files, files}), Each(IsEmpty()));
}

TEST(Agreement, H6TheFirstRankWithAnotherDeckIsNamed) {
  const std::vector<std::string> same = {"run.seed=5", "optimizer.lr=0.25"};
  const auto errors = Decks({same, same, {"run.seed=6", "optimizer.lr=0.5"}, {"run.steps=3"}});
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 2 on "), HasSubstr("run.seed = 6 (command line), but rank 0 has 5"),
                                 HasSubstr("optimizer.lr = 0.5 (command line), but rank 0 has 0.25"),
                                 Not(HasSubstr("rank 3")), Not(HasSubstr("run.steps")))));
  EXPECT_THAT(Decks({same, same}, "latest"), Each(HasSubstr("--restart = latest, but rank 0 has (not given)")));
}

TEST(Agreement, H6TheFirstFileThatDiffersIsNamed) {
  const std::vector<DataFile> files = {{"/a", 3, 7}, {"/b", 5, 11}, {"/c", 13, 17}};
  std::vector<DataFile> changed = files;
  changed[1].sample = 12;
  EXPECT_THAT(Data({files, files, changed, changed}),
              Each(AllOf(HasSubstr("data.paths: rank 2 on "), HasSubstr("\"/b\" has other contents"),
                         HasSubstr("in the same 5 bytes"))));
  changed[1].bytes = 6;
  EXPECT_THAT(Data({files, changed}), Each(HasSubstr("\"/b\" has 6 bytes, 5 bytes on rank 0")));
  EXPECT_THAT(Data({files, {files[0], files[2]}}), Each(HasSubstr("does not see \"/b\", which rank 0 sees")));
  EXPECT_THAT(Data({{files[0], files[1]}, files}), Each(HasSubstr("sees \"/c\", which rank 0 does not see")));
}

TEST(WorldCheck, MissionEProvesTheWorldOnRankZero) {
  const Deck deck = LoadDeck(kDeck, {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=1", "model.layers=2"}).deck;
  std::vector<double> took(4);
  const auto errors =
      OnRanks(4, [&](World& world) { took[static_cast<size_t>(world.Rank())] = WorldCheck(deck, world).Await().ms; });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_GT(took[0], 0);
  EXPECT_EQ(took[3], 0);
}

TEST(WorldCheck, MissionEAFailedCheckEndsEveryRank) {
  const Deck deck = LoadDeck(kDeck, {"parallel.dp_shard=2"}).deck;
  ArmFault("world-check:eio");
  const auto errors = OnRanks(2, [&](World& world) { WorldCheck(deck, world).Await(); });
  EXPECT_THAT(errors, Each(HasSubstr("the programs of the ranks do not fit together")));
}

}  // namespace
}  // namespace espalier
