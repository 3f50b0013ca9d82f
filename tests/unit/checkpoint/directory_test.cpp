// A directory of checkpoints: which are kept, which is the latest, the meaning of names, and entries that are never
// removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_fixture.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StrEq;

TEST_F(CheckpointTest, KeepsTheNewestAndCleansUp) {
  fs::create_directories(Dir() + "/tmp-00000001-" + kDead);
  fs::create_directories(Dir() + "/del-00000001-" + kDead);
  fs::create_directories(Dir() + "/mine");
  for (int64_t step : {10, 20, 30, 40}) SaveAt(kOne, step, static_cast<uint64_t>(step), 2);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "mine", "step-00000030", "step-00000040"));
  EXPECT_EQ(FindLatest(Dir()), Step(40));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(40), Step(30)));

  // After a step back, later checkpoints belong to the abandoned branch and are not counted.
  SaveAt(kOne, 35, 35, 1);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "mine", "step-00000035", "step-00000040"));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(35)));
  SaveAt(kOne, 40, 41, 3);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(40), Step(35)));
  EXPECT_THAT(LoadState(Step(40), kEight, 41), Each(StrEq("")));
}

TEST_F(CheckpointTest, ReplacesAStepByTheNewOne) {
  SaveAt(kEight, 10, 1, 1);
  const std::string id = ReadManifest(Step(10)).id;
  SaveAt(kOne, 10, 2, 1);
  EXPECT_NE(ReadManifest(Step(10)).id, id);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010"));
  EXPECT_THAT(LoadState(Step(10), kEight, 2), Each(StrEq("")));
}

TEST_F(CheckpointTest, LatestIsTheLastOneCommitted) {
  EXPECT_EQ(FindLatest(Dir() + "/nowhere"), std::nullopt);
  EXPECT_EQ(FindLatest(Dir()), std::nullopt);
  SaveAt(kOne, 10, 1);
  SaveAt(kOne, 20, 2);
  fs::create_directories(Step(30));  // no MANIFEST: not committed
  WriteBytes(Dir() + "/latest", "step-00000010\n");
  EXPECT_EQ(FindLatest(Dir()), Step(10));
  for (const char* useless : {"", "step-00000030\n", "../step-00000010\n", "step-00000099\n", "/etc", "step-1"}) {
    WriteBytes(Dir() + "/latest", useless);
    EXPECT_EQ(FindLatest(Dir()), Step(20)) << useless;
  }
  EXPECT_EQ(LatestWithoutManifest(Dir()), std::nullopt);
  WriteBytes(Dir() + "/latest", "step-00000030\n");
  EXPECT_EQ(LatestWithoutManifest(Dir()), Step(30));
  // A run ended between the commit of step 20 and the renewal of `latest`.
  WriteBytes(Dir() + "/latest", "step-00000010\n");
  WriteBytes(Dir() + "/latest-" + ReadManifest(Step(20)).id, "step-00000020\n");
  EXPECT_EQ(FindLatest(Dir()), Step(20));
  // A run ended before it could commit another step 20.
  fs::rename(Dir() + "/latest-" + ReadManifest(Step(20)).id, Dir() + "/latest-00000000000000000000000000000000");
  EXPECT_EQ(FindLatest(Dir()), Step(10));
  SaveAt(kOne, 21, 2);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000021", "step-00000030"));
}

TEST_F(CheckpointTest, ResolvesWhatTheUserMeans) {
  const std::string run = Dir() + "/run", folder = run + "/checkpoints";
  EXPECT_THAT(Refusal([&] { Resolve("latest", folder); }), HasSubstr(folder + ": no committed checkpoint"));
  ASSERT_THAT(SaveState(folder, kOne, 10, 1), Each(StrEq("")));
  EXPECT_EQ(Resolve("latest", folder), folder + "/step-00000010");
  EXPECT_EQ(Resolve(folder + "/step-00000010", "elsewhere"), folder + "/step-00000010");
  EXPECT_EQ(Resolve(folder, "elsewhere"), folder + "/step-00000010");
  EXPECT_EQ(Resolve(run, "elsewhere"), folder + "/step-00000010");
  EXPECT_THAT(Refusal([&] { Resolve(Dir(), folder); }), HasSubstr(Dir() + ": no checkpoint"));
  EXPECT_THAT(Refusal([&] { ReadManifest(Dir()); }), HasSubstr("MANIFEST: cannot open: No such file"));
}

TEST_F(CheckpointTest, H5OnlyExactNamesAreRemoved) {
  const std::vector<std::string> mine = {"latest-best",
                                         "tmp-notes.txt",
                                         "del-me",
                                         "tmp-mine",
                                         "tmp-00000001-dead",
                                         "del-1-" + kDead,
                                         "latest-" + kDead + ".txt",
                                         "tmp-000000001-" + kDead,
                                         "kept-" + kDead,
                                         "step-000000004",
                                         "step-4",
                                         "step-00000004.bak"};
  for (const std::string& name : mine) {
    fs::create_directories(Dir() + "/" + name + "/deep");
    WriteBytes(Dir() + "/" + name + "/deep/shard-00000.h5", name);
  }
  fs::create_directories(Dir() + "/elsewhere");
  WriteBytes(Dir() + "/elsewhere/shard-00000.h5", "x");
  fs::create_directory_symlink(Dir() + "/elsewhere", Dir() + "/tmp-00000002-" + kDead);
  fs::create_directories(Dir() + "/tmp-00000001-" + kDead + "/mine");
  WriteBytes(Dir() + "/tmp-00000001-" + kDead + "/shard-00000.h5", "x");
  for (int64_t step : {10, 20, 30}) SaveAt(kOne, step, 1, 1);
  for (const std::string& name : mine) EXPECT_EQ(ReadBytes(Dir() + "/" + name + "/deep/shard-00000.h5"), name);
  EXPECT_TRUE(fs::exists(Dir() + "/tmp-00000002-" + kDead + "/shard-00000.h5"));
  // Leftovers of a dead save are removed, but not files that somebody put there.
  EXPECT_THAT(Names(Dir() + "/tmp-00000001-" + kDead), ElementsAre("mine"));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30)));
}

/// Warnings of a save.
std::vector<std::string> WarningsAt(const std::string& dir, int64_t step, int64_t keep) {
  const std::vector<StateTensor> tensors = TestTensors(kOne);
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  state.Fill(static_cast<uint64_t>(step));
  return Save(dir, TestMetadata(step), tensors, state.Local(), Mesh(), world, keep).warnings;
}

TEST_F(CheckpointTest, H5RetentionLeavesWhatIsNotOurs) {
  for (int64_t step : {10, 20, 30, 40}) SaveAt(kOne, step, 1, 9);
  fs::create_directory(Step(10) + "/results");
  WriteBytes(Step(10) + "/results/eval.csv", "4.2");
  FlipByte(Step(20) + "/MANIFEST", 300);  // its owner cannot be determined
  fs::rename(Step(30), Dir() + "/archive");
  fs::create_directory_symlink(Dir() + "/archive", Step(30));
  const std::vector<std::string> warnings = WarningsAt(Dir(), 50, 1);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("step-00000030 is not removed"), HasSubstr("not a directory")),
                                    AllOf(HasSubstr("step-00000020 is not removed"), HasSubstr("damaged")),
                                    AllOf(HasSubstr("step-00000010 is not removed"), HasSubstr("it holds results"))));
  EXPECT_THAT(Names(Dir()),
              ElementsAre("archive", "latest", "step-00000010", "step-00000020", "step-00000030", "step-00000050"));
  EXPECT_EQ(ReadBytes(Step(10) + "/results/eval.csv"), "4.2");
  EXPECT_THAT(LoadState(Dir() + "/archive", kOne, 1), Each(StrEq("")));
}

TEST_F(CheckpointTest, H5ANameThatIsTakenIsMovedAside) {
  fs::create_directories(Step(10) + "/results");  // no MANIFEST
  WriteBytes(Step(10) + "/results/eval.csv", "4.2");
  SaveAt(kOne, 20, 1, 9);
  fs::create_directory(Step(20) + "/results");  // a checkpoint with an additional folder
  fs::create_directories(Step(30));
  WriteBytes(Step(30) + "/MANIFEST", "of another program\n");
  fs::create_symlink(Dir() + "/nowhere", Step(40));
  fs::create_directory(Dir() + "/latest-old");
  fs::remove(Dir() + "/latest");
  fs::create_directory(Dir() + "/latest");
  std::vector<std::string> aside;
  for (int64_t step : {10, 20, 30, 40}) {
    const std::vector<std::string> warnings = WarningsAt(Dir(), step, 1);
    ASSERT_FALSE(warnings.empty());
    EXPECT_THAT(warnings.front(),
                AllOf(HasSubstr(StepName(step) + " is now kept-"), HasSubstr("a checkpoint has taken its name")));
    EXPECT_EQ(warnings.size(), step == 10 ? 2u : 1u) << warnings.back();  // `latest` too
    EXPECT_EQ(FindLatest(Dir()), Step(step));
    EXPECT_THAT(LoadState(Step(step), kOne, static_cast<uint64_t>(step)), Each(StrEq("")));
    aside.push_back(Dir() + "/kept-" + StepName(step).substr(5) + "-" + ReadManifest(Step(step)).id);
  }
  EXPECT_EQ(ReadBytes(aside[0] + "/results/eval.csv"), "4.2");
  EXPECT_THAT(LoadState(aside[1], kOne, 1), Each(StrEq("")));
  EXPECT_EQ(ReadBytes(aside[2] + "/MANIFEST"), "of another program\n");
  EXPECT_TRUE(fs::is_symlink(aside[3]));
  EXPECT_TRUE(fs::is_directory(Dir() + "/latest-old"));
  EXPECT_EQ(ReadBytes(Dir() + "/latest"), "step-00000040\n");
}

/// Saves as a run does; returns the id.
std::string SaveAfter(const std::string& dir, int64_t step, const std::string& parent, int64_t keep = 9,
                      const std::string& branch = "") {
  const std::vector<StateTensor> tensors = TestTensors(kOne);
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  state.Fill(static_cast<uint64_t>(step));
  Metadata metadata = TestMetadata(step);
  metadata.lineage = Lineage{parent, branch};
  const SaveResult saved = Save(dir, metadata, tensors, state.Local(), Mesh(), world, keep);
  EXPECT_THAT(saved.warnings, IsEmpty());
  return saved.id;
}

TEST_F(CheckpointTest, H7RetentionAndFallbackFollowTheLine) {
  std::string id;
  std::map<int64_t, std::string> ids;
  for (int64_t step : {10, 20, 30, 40, 50}) ids[step] = id = SaveAfter(Dir(), step, id);
  const std::string on_28 = SaveAfter(Dir(), 28, ids[20], 2, ids[20]);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(28), Step(20)));
  EXPECT_THAT(FindAbandoned(Dir(), on_28), ElementsAre(Step(30), Step(40), Step(50)));
  const std::string on_35 = SaveAfter(Dir(), 35, on_28, 2, ids[20]);
  EXPECT_THAT(FindCheckpoints(Dir()),
              ElementsAre(Step(35), Step(28)));  // and not 30, which belongs to the abandoned branch
  EXPECT_THAT(FindAbandoned(Dir(), on_35), ElementsAre(Step(30), Step(40), Step(50)));
  EXPECT_THAT(FindLine(Dir(), ids[50]), ElementsAre(Step(50), Step(40), Step(30)));
  EXPECT_THAT(FindLine(Dir(), kDead), IsEmpty());
  // Damage after the first lines of the latest MANIFEST leaves its line known.
  FlipByte(Step(35) + "/MANIFEST", 400);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(35), Step(28)));
  // If its line is lost too, or `latest`, the program does not guess.
  FlipByte(Step(35) + "/MANIFEST", 1);
  EXPECT_THAT(Refusal([&] { FindCheckpoints(Dir()); }),
              AllOf(HasSubstr("step-00000035 is the latest and its MANIFEST cannot be read"),
                    HasSubstr("step-00000050, step-00000028"), HasSubstr("-r " + Dir() + "/STEP")));
  fs::remove(Dir() + "/latest");
  EXPECT_THAT(Refusal([&] { FindCheckpoints(Dir()); }), HasSubstr("`latest` names no checkpoint"));
  fs::remove_all(Step(28));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(50), Step(40), Step(30)));
}

TEST_F(CheckpointTest, H7OneLineNeedsNoLatest) {
  std::string id;
  for (int64_t step : {10, 20, 30}) id = SaveAfter(Dir(), step, id);
  fs::remove(Dir() + "/latest");
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30), Step(20), Step(10)));
  WriteBytes(Dir() + "/latest", "step-00000030\n");
  FlipByte(Step(30) + "/MANIFEST", 25);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30), Step(20), Step(10)));
}

TEST_F(CheckpointTest, H7CheckpointsOfOlderVersionsAreOneLineByStep) {
  for (int64_t step : {10, 20, 30}) SaveAt(kOne, step, 1, 9);  // format 1
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30), Step(20), Step(10)));
  const std::string after = SaveAfter(Dir(), 25, ReadManifest(Step(20)).id);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(25), Step(20), Step(10)));
  EXPECT_THAT(FindAbandoned(Dir(), after), ElementsAre(Step(30)));
  SaveAfter(Dir(), 40, after, 2);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(40), Step(25)));
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000025", "step-00000030", "step-00000040"));
}

TEST_F(CheckpointTest, H7ARunThatBeginsAnewDoesNotCountTheOldOnes) {
  for (int64_t step : {10, 20}) SaveAfter(Dir(), step, "", 1);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020"));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(20)));
}

}  // namespace
}  // namespace espalier
