// Damaged, missing and swapped files are named; a save that fails on one rank fails on all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <random>

#include "checkpoint/transfer/pieces.hpp"
#include "checkpoint_fixture.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StrEq;

TEST_F(CheckpointTest, DamagedPiecesAreNamed) {
  ASSERT_THAT(SaveState(Dir(), kEight, 4, 2, 3, Dtype::kBf16), Each(StrEq("")));
  const Manifest manifest = ReadManifest(Step(4));
  for (const ManifestTensor& tensor : manifest.tensors) {
    const ManifestPiece& piece = tensor.pieces.back();
    const std::string shard = manifest.files[static_cast<size_t>(piece.file)].name, path = Step(4) + "/" + shard;
    const int64_t at = piece.offset + tensor.BytesOf(piece) / 2;
    FlipByte(path, at);
    EXPECT_THAT(VerifyCheckpoint(Step(4)).damage,
                ElementsAre(AllOf(HasSubstr(shard), HasSubstr(tensor.name), HasSubstr(ToString(piece.box)))));
    for (const Degrees& degrees : {kEight, Degrees{1, 1, 3, 1, 1}}) {
      const std::vector<std::string> errors = LoadState(Step(4), degrees, 2, Dtype::kBf16);
      EXPECT_THAT(errors, Each(AllOf(HasSubstr(shard), HasSubstr(tensor.name), HasSubstr("damaged"))));
      EXPECT_THAT(errors, Each(StrEq(errors[0])));
    }
    FlipByte(path, at);
  }
  EXPECT_THAT(LoadState(Step(4), kEight, 2, Dtype::kBf16), Each(StrEq("")));
}

TEST_F(CheckpointTest, VerifyFindsEveryFlippedByte) {
  SaveAt({1, 1, 2, 1, 1}, 4, 2);
  std::mt19937 random(5);
  for (const std::string& name : Names(Step(4))) {
    const std::string path = Step(4) + "/" + name;
    for (int trial = 0; trial < 20; ++trial) {
      const auto at = static_cast<int64_t>(random() % fs::file_size(path));
      FlipByte(path, at);
      if (name == "MANIFEST") {
        EXPECT_THROW(VerifyCheckpoint(Step(4)), UserError) << at;
      } else {
        EXPECT_THAT(VerifyCheckpoint(Step(4)).damage, Contains(HasSubstr(name))) << at;
      }
      FlipByte(path, at);
    }
  }
  EXPECT_THAT(VerifyCheckpoint(Step(4)).damage, IsEmpty());
}

TEST_F(CheckpointTest, MissingTruncatedAndSwappedFilesAreNamed) {
  SaveAt(kEight, 4, 2);
  SaveAt(kEight, 5, 3);
  const std::string path = Step(4) + "/shard-00001.h5", aside = Dir() + "/aside";
  const auto expect_refused = [&](const std::string& why) {
    EXPECT_THAT(LoadState(Step(4), kEight, 2), Each(AllOf(HasSubstr("shard-00001.h5"), HasSubstr(why)))) << why;
    EXPECT_THAT(VerifyCheckpoint(Step(4)).damage, Contains(HasSubstr("shard-00001.h5"))) << why;
  };
  fs::rename(path, aside);
  expect_refused("No such file");
  fs::create_symlink(aside, path);
  expect_refused("symbolic link");
  fs::remove(path);
  fs::create_directory(path);
  expect_refused("not a regular file");
  fs::remove(path);
  fs::copy_file(aside, path);
  fs::resize_file(path, fs::file_size(path) - 1);
  expect_refused("the MANIFEST says");
  fs::remove(path);
  fs::copy_file(Step(5) + "/shard-00001.h5", path);  // equal shapes and size, but another state
  ASSERT_EQ(fs::file_size(path), fs::file_size(aside));
  expect_refused("of another checkpoint");
  fs::remove(path);
  fs::rename(aside, path);
  fs::copy_file(path, Step(4) + "/shard-00099.h5");
  EXPECT_THAT(VerifyCheckpoint(Step(4)).damage, ElementsAre("shard-00099.h5: not part of this checkpoint"));

  FlipByte(Step(4) + "/deck.toml", 1);
  EXPECT_THAT(LoadState(Step(4), kEight, 2), Each(HasSubstr("deck.toml: 17 bytes with checksum")));
  FlipByte(Step(4) + "/MANIFEST", 1);
  EXPECT_THAT(LoadState(Step(4), kEight, 2), Each(HasSubstr("MANIFEST:1: not a checkpoint's MANIFEST")));
}

TEST_F(CheckpointTest, AFailedWriterFailsTheSaveEverywhere) {
  SaveAt(kEight, 10, 1);
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 500'000;  // enough for every shard except lm_head's
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::vector<std::string> errors = SaveState(Dir(), kEight, 20, 2, 1);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(errors, Each(HasSubstr("step-00000020 is not saved; older checkpoints are untouched")));
  EXPECT_THAT(errors, Each(StrEq(errors[0])));
  EXPECT_THAT(errors[0], HasSubstr("File too large"));
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010"));
  EXPECT_THAT(LoadState(*FindLatest(Dir()), kEight, 1), Each(StrEq("")));
  SaveAt(kEight, 20, 2, 1);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000020"));
}

TEST_F(CheckpointTest, AFailedStartFailsTheSaveEverywhere) {
  WriteBytes(Dir() + "/file", "");
  const std::vector<std::string> errors = SaveState(Dir() + "/file", kEight, 20, 2);
  EXPECT_THAT(errors, SizeIs(8));
  EXPECT_THAT(errors, Each(HasSubstr("file/step-00000020 is not saved")));
  EXPECT_THAT(Refusal([&] {
                try {
                  RequireSpace(Dir(), int64_t{1} << 60);
                } catch (const UserError& error) {
                  throw UserError(ExitStatus::kData, error.messages());
                }
              }),
              AllOf(HasSubstr("1268213655067531673 bytes are needed"), HasSubstr("are free")));
}

TEST_F(CheckpointTest, BrokenCallsAreFound) {
  SelfWorld world;
  std::vector<StateTensor> tensors = TestTensors(kOne);
  RankState state(tensors, Mesh(), 0);
  std::vector<LocalTensor> local = state.Local();
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(kEight), world, 1), InvariantError);
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(), world, 0), InvariantError);
  local.pop_back();
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(), world, 1), UserError);
  EXPECT_THAT(Names(Dir()), IsEmpty());
  tensors.push_back(tensors[0]);
  EXPECT_THROW(PlanPieces(tensors, Mesh()), InvariantError);
}

}  // namespace
}  // namespace espalier
