// Copies of the state that differ are found, and the ranks are named.
#include "espalier/checkpoint/copies.hpp"

#include <fmt/ranges.h>

#include <set>

#include "checkpoint_fixture.hpp"
#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/util/crc32c.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// The memory of one tensor of a rank.
LocalTensor& Find(std::vector<LocalTensor>& local, const std::string& name) {
  for (LocalTensor& tensor : local)
    if (tensor.tensor->name == name) return tensor;
  throw std::runtime_error(name + " is not here");
}

/// The result of every rank after `change` has changed the memory of some ranks; the texts must be equal on all ranks.
using Change = std::function<void(int rank, std::vector<LocalTensor>& local)>;
std::optional<Corruption> FindCorruption(const Degrees& degrees, const Change& before, const Change& during = {}) {
  const Mesh mesh(degrees);
  const std::vector<StateTensor> tensors = TestTensors(degrees);
  std::vector<std::optional<Corruption>> found(static_cast<size_t>(mesh.Ranks()));
  const auto errors = OnRanks(mesh.Ranks(), [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(11);
    std::vector<LocalTensor> local = state.Local();
    Copies copies(tensors, local, mesh, world);
    before(world.Rank(), local);
    copies.SumWritten();
    if (during) during(world.Rank(), local);
    copies.SumOthers();
    found[static_cast<size_t>(world.Rank())] = copies.Compare();
  });
  EXPECT_THAT(errors, Each(""));
  for (const auto& other : found) {
    EXPECT_EQ(other.has_value(), found[0].has_value());
    if (other) EXPECT_EQ(other->text, found[0]->text);
  }
  return found[0];
}

Change Flip(std::set<int> ranks, const std::string& tensor, size_t byte = 2) {
  return [=](int rank, std::vector<LocalTensor>& local) {
    if (ranks.contains(rank)) static_cast<unsigned char*>(Find(local, tensor).data)[byte] ^= 0x10;
  };
}

void Nothing(int, std::vector<LocalTensor>&) {}

TEST(Copies, EqualCopiesAreNoCorruption) {
  for (const Degrees& degrees : {Degrees{1, 1, 1, 1, 1}, Degrees{1, 3, 1, 1, 1}, Degrees{2, 2, 1, 1, 2}})
    EXPECT_FALSE(FindCorruption(degrees, Nothing));
}

TEST(Copies, TheRankThatDiffersFromTheMajorityIsNamed) {
  const auto found = FindCorruption({1, 3, 1, 1, 1}, Flip({1}, "parameters/model.layers.1.mlp.cube"));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->ranks, ElementsAre(1));
  EXPECT_THAT(found->text,
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("holds other values than ranks 0 and 2 of "),
                    HasSubstr("parameters/model.layers.1.mlp.cube [0:3,0:5,0:7]"), Not(HasSubstr("majority"))));
}

TEST(Copies, WithoutAMajorityAllAreNamed) {
  const auto two = FindCorruption({1, 2, 1, 1, 1}, Flip({1}, "optimizer/exp_avg/model.norm.weight"));
  ASSERT_TRUE(two);
  EXPECT_THAT(two->ranks, ElementsAre(0, 1));
  EXPECT_THAT(two->text, AllOf(HasSubstr("ranks 0 and 1 (host"), HasSubstr("without a majority"),
                               HasSubstr("optimizer/exp_avg/model.norm.weight [0:11]")));
  const auto tie = FindCorruption({1, 4, 1, 1, 1}, Flip({1, 2}, "parameters/model.norm.weight"));
  ASSERT_TRUE(tie);
  EXPECT_THAT(tie->ranks, ElementsAre(0, 1, 2, 3));
}

TEST(Copies, TensorParallelRanksHoldCopiesOfNorms) {
  // Stage 1, tp 2: ranks 4 to 7 hold model.norm.weight, which no axis shards.
  const auto found = FindCorruption({2, 2, 1, 1, 2}, Flip({6}, "parameters/model.norm.weight"));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->ranks, ElementsAre(6));
  EXPECT_THAT(found->text, HasSubstr("than ranks 4, 5 and 7 of"));
}

TEST(Copies, ManyTensorsAreCounted) {
  const auto found = FindCorruption({1, 3, 1, 1, 1}, [](int rank, std::vector<LocalTensor>& local) {
    if (rank == 2)
      for (LocalTensor& tensor : local) static_cast<unsigned char*>(tensor.data)[0] ^= 1;
  });
  ASSERT_TRUE(found);
  EXPECT_THAT(found->ranks, ElementsAre(2));
  EXPECT_THAT(found->text, HasSubstr("and 33 more"));
}

TEST(Copies, ACopyThatChangesDuringTheProofIsFound) {
  const Degrees degrees = {1, 3, 1, 1, 1};
  // Whichever rank writes the tensor, the two others hold copies.
  int found = 0;
  for (int rank = 0; rank < 3; ++rank)
    found += FindCorruption(degrees, Nothing, Flip({rank}, "parameters/lm_head.weight")).has_value();
  EXPECT_EQ(found, 2);
}

/// The rank that writes the tensor finds that its data differ from the summed ones.
TEST(Copies, DataThatChangeBeforeTheyAreWrittenAreNotCommitted) {
  const Degrees degrees = {1, 1, 2, 1, 1};
  const Mesh mesh(degrees);
  const std::vector<StateTensor> tensors = TestTensors(degrees);
  TemporaryDirectory folder;
  for (const bool change : {true, false}) {
    std::vector<SaveOutcome> outcomes(2);
    const auto errors = OnRanks(2, [&](World& world) {
      RankState state(tensors, mesh, world.Rank());
      state.Fill(12);
      std::vector<LocalTensor> local = state.Local();
      AsyncSaver saver({folder.path(), 1}, tensors, local, mesh, world, nullptr);
      Copies copies(tensors, local, mesh, world);
      copies.SumWritten();
      if (change) Flip({1}, "parameters/model.layers.0.self_attn.q_proj.weight")(world.Rank(), local);
      saver.Save({7, 70, "1", "a", {}, "deck", Proof{2.5f, "fp32", 1}}, 1, copies.written());
      saver.Wait();
      outcomes[static_cast<size_t>(world.Rank())] = saver.Ended().front();
    });
    EXPECT_THAT(errors, Each(""));
    for (const SaveOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.committed, !change);
      if (change)
        EXPECT_THAT(fmt::format("{}", fmt::join(outcome.reasons, "\n")),
                    AllOf(HasSubstr("shard-00001.h5: parameters/model.layers.0.self_attn.q_proj.weight"),
                          HasSubstr("this rank's memory changed in between")));
    }
    EXPECT_EQ(FindCheckpoints(folder.path()).size(), change ? 0u : 1u);
  }
}

}  // namespace
}  // namespace espalier
