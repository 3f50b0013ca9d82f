// How ranks agree: all continue or all throw the same error, and ranks that were started with other settings are named.
#include "espalier/comm/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_testing.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/fault.hpp"
#include "source_tree.hpp"
#include "train/startup/same_start.hpp"
#include "train/startup/world_check.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kDeck = InTree("tests/decks/small.toml");

/// A source that only has files.
class Files final : public TokenSource {
 public:
  explicit Files(std::vector<DataFile> files, int64_t tokens = 100) : files_(std::move(files)), tokens_(tokens) {}
  int64_t samples() const override { return 1; }
  int64_t tokens() const override { return tokens_; }
  int64_t seq_len() const override { return 3; }
  const std::vector<DataFile>& files() const override { return files_; }
  void Read(int64_t, Sample&) override {}

 private:
  std::vector<DataFile> files_;
  int64_t tokens_;
};

/// The items of ranks 0 to 3 with these overrides.
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

TEST(OnAllRanks, TheFirstOfTheWorstFailuresIsThrownEverywhere) {
  const auto errors = OnRanks(4, [](World& world) {
    OnAllRanks(world, [&] {
      if (world.Rank() == 1) throw UserError(ExitStatus::kDeck, "deck of rank 1");
      if (world.Rank() > 1)
        throw UserError(ExitStatus::kData, {"data of rank " + std::to_string(world.Rank()), "more"});
    });
  });
  EXPECT_THAT(errors, Each(testing::StrEq("data of rank 2\nmore")));
}

TEST(OnAllRanks, WithAnyFailureEveryMessageIsThrownOnce) {
  const auto errors = OnRanks(3, [](World& world) {
    const auto work = [&] {
      if (world.Rank() > 0) throw std::runtime_error("damaged\nrank " + std::to_string(world.Rank()));
    };
    try {
      OnAllRanks(world, work, AnyFailureIs(ExitStatus::kData));
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      throw;
    }
  });
  EXPECT_THAT(errors, Each(testing::StrEq("damaged\nrank 1\nrank 2")));
}

TEST(OnAllRanks, WithoutFailuresAllContinue) {
  EXPECT_THAT(OnRanks(3, [](World& world) { OnAllRanks(world, [] {}); }), Each(IsEmpty()));
}

TEST(OnRankZero, ItsResultOrItsErrorIsEverywhere) {
  const auto results = OnRanks(3, [](World& world) {
    const std::string text = OnRankZero(world, [] { return std::string("a\0b", 3); });
    EXPECT_EQ(text, std::string("a\0b", 3));
    OnRankZero(world, []() -> std::string { throw UserError(ExitStatus::kFault, "no room"); });
  });
  EXPECT_THAT(results, Each(testing::StrEq("no room")));
}

TEST(GatherAttempts, TheMessagesOfAllFailedRanksAreThrownOnRankZero) {
  const auto errors = OnRanks(3, [](World& world) {
    const auto attempts = GatherAttempts(
        world,
        [&] {
          if (world.Rank() == 2) throw std::runtime_error("rank 2 failed");
          return std::to_string(world.Rank());
        },
        ExitStatus::kFault);
    if (world.Rank() == 0) ResultsOf(attempts, ExitStatus::kFault);
  });
  EXPECT_THAT(errors, testing::ElementsAre("rank 2 failed", "", ""));
}

TEST(Shorten, ListsAreShortenedOnce) {
  const std::vector<std::string> many(50, "m");
  const auto once = Shorten(many);
  EXPECT_EQ(once.size(), kMaxMessages + 1);
  EXPECT_EQ(once.back(), "... and 30 more");
  EXPECT_EQ(Shorten(once), once);
}

struct Packed {
  ExitStatus status = ExitStatus::kDone;
  std::string text;
  std::vector<std::pair<int, double>> pairs;

  bool operator==(const Packed&) const = default;
  auto Fields() { return std::tie(status, text, pairs); }
};

TEST(Pack, UnpackIsItsInverse) {
  const std::vector<Packed> values = {{ExitStatus::kData, std::string("a\0b", 3), {{1, 0.5}, {-7, 1e300}}}, {}};
  EXPECT_EQ(Unpack<std::vector<Packed>>(Pack(values)), values);
}

TEST(Pack, IncompleteBytesAreRefused) {
  const std::string bytes = Pack(std::string("abc"));
  EXPECT_THROW(Unpack<std::string>(bytes.substr(0, bytes.size() - 1)), InvariantError);
  EXPECT_THROW(Unpack<std::string>(bytes + "x"), InvariantError);
}

TEST(WorldCheck, MissionEProvesTheWorldOnRankZero) {
  const Deck deck = LoadDeck(kDeck, {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=1", "model.layers=2"}).deck;
  std::vector<double> took(4);
  const auto errors = OnRanks(4, [&](World& world) {
    took[static_cast<size_t>(world.Rank())] = WorldCheck(deck, DeviceKind::kCpu, world).Await().ms;
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_GT(took[0], 0);
  EXPECT_EQ(took[3], 0);
}

TEST(WorldCheck, MissionEAFailedCheckEndsEveryRank) {
  const Deck deck = LoadDeck(kDeck, {"parallel.dp_shard=2"}).deck;
  ArmFault("world-check:eio");
  const auto errors = OnRanks(2, [&](World& world) { WorldCheck(deck, DeviceKind::kCpu, world).Await(); });
  EXPECT_THAT(errors, Each(HasSubstr("the programs of the ranks do not fit together")));
}

}  // namespace
}  // namespace espalier
