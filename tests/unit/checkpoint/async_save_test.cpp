// Saves during training: the state may change as soon as it is copied, and a failed save is an outcome.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>

#include "checkpoint_fixture.hpp"
#include "espalier/checkpoint/async_saver.hpp"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StrEq;

/// A world whose threads block at their first collective until they are released.
class HeldWorld final : public World {
 public:
  HeldWorld(ThreadMeeting& meeting, int rank, std::latch& gate) : inner_(meeting, rank), gate_(gate) {}
  int Rank() const override { return inner_.Rank(); }
  int Size() const override { return inner_.Size(); }
  void Barrier() override { gate_.wait(), inner_.Barrier(); }
  std::vector<std::string> Gather(const std::string& bytes) override { return gate_.wait(), inner_.Gather(bytes); }
  std::string Broadcast(const std::string& bytes) override { return gate_.wait(), inner_.Broadcast(bytes); }
  int64_t Max(int64_t value) override { return gate_.wait(), inner_.Max(value); }
  uint64_t Or(uint64_t bits) override { return gate_.wait(), inner_.Or(bits); }
  void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
    gate_.wait(), inner_.Exchange(sends, receives);
  }

 private:
  ThreadWorld inner_;
  std::latch& gate_;
};

/// Runs `work` on two ranks, each with its state and a AsyncSaver whose writers wait for `gate`.
std::vector<std::string> WithSavers(const std::string& dir, std::latch& gate,
                                    const std::function<void(World&, RankState&, AsyncSaver&)>& work) {
  const Mesh mesh(kTwo);
  const std::vector<StateTensor> tensors = TestTensors(kTwo);
  ThreadMeeting writers(2);
  return OnRanks(2, [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    AsyncSaver saver({dir, 3}, tensors, state.Local(), mesh, world,
                     std::make_unique<HeldWorld>(writers, world.Rank(), gate));
    work(world, state, saver);
  });
}

/// States as in a run: all in one memory, not ordered by name; adjacent ones whose sizes are whole lines are copied
/// together.
TEST_F(Faults, PiecesThatLieSideBySideAreCopied) {
  const Mesh mesh(kOne);
  std::vector<StateTensor> tensors;
  for (const Shape& shape : {Shape{16, 4}, {5}, {32}, {16}, {3, 3}, {48, 2}, {64}})
    tensors.push_back({fmt::format("parameters/t{}", tensors.size()), MakeType(Dtype::kF32, shape), 0});
  const auto places = [&](std::vector<float>& memory) {
    std::vector<LocalTensor> local(tensors.size());
    float* at = memory.data();
    for (size_t t = tensors.size(); t-- > 0; at += Volume(tensors[t].type.shape)) local[t] = {&tensors[t], at};
    return local;
  };
  std::vector<float> state(286), loaded(286);
  std::iota(state.begin(), state.end(), 1.0f);
  SelfWorld world;
  {
    AsyncSaver saver({Dir(), 3}, tensors, places(state), mesh, world, std::make_unique<SelfWorld>());
    saver.Save(TestMetadata(10));
    saver.Wait();
    EXPECT_TRUE(saver.Ended().at(0).committed);
  }
  Load(Dir() + "/step-00000010", tensors, places(loaded), mesh, world);
  EXPECT_EQ(loaded, state);
}

TEST_F(Faults, TheStateMayChangeAsSoonAsItIsCopied) {
  std::latch gate(1);
  const auto errors = WithSavers(Dir(), gate, [&](World& world, RankState& state, AsyncSaver& saver) {
    ASSERT_TRUE(saver.Asynchronous());
    EXPECT_EQ(saver.staging_bytes(), StagingBytes(TestTensors(kTwo), Mesh(kTwo))[static_cast<size_t>(world.Rank())]);
    state.Fill(1);
    saver.Save(TestMetadata(10));
    EXPECT_TRUE(saver.Busy());
    EXPECT_THAT(saver.Ended(), IsEmpty());
    state.Fill(2);
    world.Barrier();
    EXPECT_EQ(FindLatest(Dir()), std::nullopt);
    if (world.Rank() == 0) gate.count_down();
    saver.Save(TestMetadata(20));  // waits for the previous save
    state.Fill(3);
    saver.Wait();
    const std::vector<SaveOutcome> ended = saver.Ended();
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_TRUE(ended[0].committed && ended[1].committed);
    EXPECT_EQ(ended[1].result.dir, Step(20));
    EXPECT_GT(ended[1].result.blocked_ms, 0);
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  EXPECT_THAT(LoadState(Step(10), kOne, 1), Each(StrEq("")));
  EXPECT_THAT(LoadState(Step(20), kOne, 2), Each(StrEq("")));
}

TEST_F(Faults, AFailedSaveIsAnOutcome) {
  std::latch gate(0);
  const auto errors = WithSavers(Dir(), gate, [&](World& world, RankState& state, AsyncSaver& saver) {
    state.Fill(1);
    saver.Save(TestMetadata(10));
    saver.Wait();
    if (world.Rank() == 0) ArmFault("shard-fsync:enospc");
    world.Barrier();
    saver.Save(TestMetadata(20));
    state.Fill(3);
    saver.Save(TestMetadata(30));
    saver.Wait();
    const std::vector<SaveOutcome> ended = saver.Ended();
    ASSERT_EQ(ended.size(), 3u);
    EXPECT_TRUE(ended[0].committed && !ended[1].committed && ended[2].committed);
    EXPECT_THAT(ended[1].reasons, Contains(HasSubstr("No space left on device")));
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30), Step(10)));
  EXPECT_THAT(LoadState(Step(30), kOne, 3), Each(StrEq("")));
}

TEST_F(Faults, WithoutRoomForTheCopySavesAreSynchronous) {
  std::latch gate(0);
  ArmFault("staging:enospc");
  const auto errors = WithSavers(Dir(), gate, [&](World&, RankState& state, AsyncSaver& saver) {
    EXPECT_FALSE(saver.Asynchronous());
    EXPECT_THAT(saver.refusal(), HasSubstr("staging: No space left on device"));
    state.Fill(1);
    saver.Save(TestMetadata(10));
    EXPECT_FALSE(saver.Busy());
    state.Fill(2);
    EXPECT_TRUE(saver.Ended().at(0).committed);
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  EXPECT_THAT(LoadState(Step(10), kOne, 1), Each(StrEq("")));
}

}  // namespace
}  // namespace espalier
