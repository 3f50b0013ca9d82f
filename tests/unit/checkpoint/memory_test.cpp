// Copies in memory: ranks are threads, and each node is a directory of its own. Runs that are killed:
// tests/restart/memory.py.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_fixture.hpp"
#include "espalier/checkpoint/memory_copies.hpp"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StrEq;

const std::string kRun = "0123456789abcdef0123456789abcdef";

class MemoryCopies : public Faults {
 protected:
  std::string NodeDir(int node) const { return fmt::format("{}/node{}", Dir(), node); }

  /// Runs `work` on ranks that are spread over nodes, as evenly as possible, in order.
  std::vector<std::string> OnNodes(int ranks, int nodes, const std::function<void(World&, const MemoryNodes&)>& work,
                                   const std::string& run = kRun) {
    return OnRanks(ranks, [&](World& world) {
      const int node = world.Rank() * nodes / ranks;
      std::filesystem::create_directories(NodeDir(node));
      world.Barrier();
      work(world, MemoryNodes(NodeDir(node), Dir() + "/run", run, world));
    });
  }

  void SaveOn(const Degrees& degrees, int nodes, int64_t step, uint64_t salt) {
    const Mesh mesh(degrees);
    const std::vector<StateTensor> tensors = TestTensors(degrees);
    ASSERT_THAT(OnNodes(mesh.Ranks(), nodes,
                        [&](World& world, const MemoryNodes& memory) {
                          RankState state(tensors, mesh, world.Rank());
                          state.Fill(salt);
                          SaveInMemory(memory, TestMetadata(step), tensors, state.Local(), mesh, world);
                        }),
                Each(StrEq("")));
  }

  /// Finds, brings and loads; the step, or -1 if nothing complete is there. `notes`: why newer ones are not taken.
  int64_t LoadOn(const Degrees& degrees, int nodes, uint64_t salt, std::vector<std::string>* notes = nullptr) {
    const Mesh mesh(degrees);
    const std::vector<StateTensor> tensors = TestTensors(degrees);
    std::vector<int64_t> steps(static_cast<size_t>(mesh.Ranks()), -1);
    EXPECT_THAT(OnNodes(mesh.Ranks(), nodes,
                        [&](World& world, const MemoryNodes& memory) {
                          const FoundInMemory found = FindInMemory(memory, world);
                          if (world.Rank() == 0 && notes != nullptr) *notes = found.incomplete;
                          if (!found.newest) return;
                          RankState state(tensors, mesh, world.Rank());
                          const std::string dir = BringGeneration(memory, *found.newest, state.Local(), mesh, world);
                          const Metadata loaded = Load(dir, tensors, state.Local(), mesh, world);
                          SettleGeneration(memory, *found.newest, world);
                          EXPECT_EQ(state.Errors(salt), 0);
                          steps[static_cast<size_t>(world.Rank())] = loaded.step;
                        }),
                Each(StrEq("")));
    EXPECT_THAT(steps, Each(steps[0]));
    return steps[0];
  }

  /// The files of the generations on a node: "step-00000010/MANIFEST".
  std::vector<std::string> FilesOf(int node) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(NodeDir(node))) {
      const std::filesystem::path& path = entry.path();
      if (entry.is_regular_file() && path.filename() != "run")
        names.push_back(path.parent_path().filename().string() + "/" + path.filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  std::string PathOf(int node, const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(NodeDir(node)))
      if (entry.path().filename() == name) return entry.path().string();
    return "";
  }
};

TEST_F(MemoryCopies, EachNodeHasItsShardsAndThoseOfTheNodeBefore) {
  SaveOn(kTwo, 2, 10, 1);
  SaveOn(kTwo, 2, 20, 2);
  for (int node : {0, 1})
    EXPECT_THAT(FilesOf(node), ElementsAre("step-00000020/MANIFEST", "step-00000020/deck.toml",
                                           "step-00000020/shard-00000.h5", "step-00000020/shard-00001.h5"));
  SaveOn(kEight, 3, 30, 3);
  EXPECT_EQ(LoadOn(kEight, 3, 3), 30);
}

TEST_F(MemoryCopies, ALostNodeIsMadeFromItsPartner) {
  for (int lost = 0; lost < 3; ++lost) {
    const auto salt = static_cast<uint64_t>(lost);
    SaveOn(kEight, 3, 10 + lost, salt);
    std::filesystem::remove_all(NodeDir(lost));
    EXPECT_EQ(LoadOn(kEight, 3, salt), 10 + lost) << lost;
    EXPECT_EQ(LoadOn(kEight, 3, salt), 10 + lost) << "what was brought stays as planned";
  }
}

TEST_F(MemoryCopies, AnyLayoutOnAnyNodesLoadsThem) {
  SaveOn(kEight, 2, 10, 7);
  EXPECT_EQ(LoadOn(kTwo, 2, 7), 10);
  SaveOn(kTwo, 2, 20, 8);
  EXPECT_EQ(LoadOn(kEight, 3, 8), 20) << "the third node is new";
  SaveOn(kEight, 4, 30, 9);
  std::vector<std::string> notes;
  EXPECT_EQ(LoadOn(kTwo, 2, 9, &notes), -1) << "nodes 2 and 3 are gone, and with them both copies of node 2's shards";
  EXPECT_THAT(notes, ElementsAre("step 30 in memory lacks shard-00004.h5, shard-00005.h5"));
}

TEST_F(MemoryCopies, ADamagedShardIsReplacedByItsSecondCopy) {
  SaveOn(kTwo, 2, 10, 1);
  std::filesystem::resize_file(PathOf(0, "shard-00000.h5"), 64);
  std::vector<std::string> notes;
  EXPECT_EQ(LoadOn(kTwo, 2, 1, &notes), 10);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("shard-00000.h5: 64 bytes, the MANIFEST says")));
  EXPECT_EQ(LoadOn(kTwo, 2, 1, &notes), 10);
  EXPECT_THAT(notes, IsEmpty()) << "it was replaced";
  for (int node : {0, 1}) std::filesystem::resize_file(PathOf(node, "shard-00000.h5"), 64);
  EXPECT_EQ(LoadOn(kTwo, 2, 1, &notes), -1);
  EXPECT_THAT(notes, Contains("step 10 in memory lacks shard-00000.h5"));
}

TEST_F(MemoryCopies, AnIncompleteGenerationLeavesTheOneBefore) {
  SaveOn(kTwo, 2, 10, 1);
  for (int node : {0, 1}) {
    const std::filesystem::path old = std::filesystem::path(PathOf(node, "MANIFEST")).parent_path();
    std::filesystem::copy(old, old.parent_path() / "kept");
  }
  SaveOn(kTwo, 2, 20, 2);
  for (int node : {0, 1}) {
    const std::filesystem::path dir = std::filesystem::path(PathOf(node, "run")).parent_path();
    std::filesystem::rename(dir / "kept", dir / "step-00000010");
    std::filesystem::remove(dir / "step-00000020/shard-00001.h5");
  }
  std::vector<std::string> notes;
  EXPECT_EQ(LoadOn(kTwo, 2, 1, &notes), 10);
  EXPECT_THAT(notes, ElementsAre("step 20 in memory lacks shard-00001.h5"));
  EXPECT_THAT(FilesOf(0), Each(testing::StartsWith("step-00000010/"))) << "the other one is removed";
}

TEST_F(MemoryCopies, AFailedCopyLeavesTheOneBefore) {
  const Mesh mesh(kTwo);
  const std::vector<StateTensor> tensors = TestTensors(kTwo);
  SaveOn(kTwo, 2, 10, 1);
  ArmFault("memory-manifest:enospc");
  const auto errors = OnNodes(2, 2, [&](World& world, const MemoryNodes& memory) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(2);
    SaveInMemory(memory, TestMetadata(20), tensors, state.Local(), mesh, world);
  });
  EXPECT_THAT(errors, Each(HasSubstr("step 20 is not copied in memory; the copies before are untouched")));
  EXPECT_EQ(LoadOn(kTwo, 2, 1), 10);
  EXPECT_THAT(FilesOf(1), Each(testing::StartsWith("step-00000010/")));
}

TEST_F(MemoryCopies, DataThatChangedSinceTheProofAreRefused) {
  const Mesh mesh(kOne);
  const std::vector<StateTensor> tensors = TestTensors(kOne);
  const auto errors = OnNodes(1, 1, [&](World& world, const MemoryNodes& memory) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(2);
    std::vector<LocalTensor> local = state.Local();
    local[3].crc = 1;
    SaveInMemory(memory, TestMetadata(20), tensors, local, mesh, world);
  });
  EXPECT_THAT(errors, Each(HasSubstr("has checksum")));
  EXPECT_EQ(LoadOn(kOne, 1, 2), -1);
}

TEST_F(MemoryCopies, CopiesOfAnotherRunDirectoryAreRemoved) {
  SaveOn(kTwo, 2, 10, 1);
  const auto none = OnNodes(
      2, 2, [](World& world, const MemoryNodes& memory) { EXPECT_FALSE(FindInMemory(memory, world).newest); },
      "f123456789abcdef0123456789abcdef");
  EXPECT_THAT(none, Each(StrEq("")));
  EXPECT_THAT(FilesOf(0), IsEmpty());
}

TEST_F(MemoryCopies, TheDirectoryIsRemovedAtTheEnd) {
  SaveOn(kTwo, 2, 10, 1);
  OnNodes(2, 2, [](World& world, const MemoryNodes& memory) { memory.RemoveAll(world); });
  for (int node : {0, 1}) EXPECT_TRUE(std::filesystem::is_empty(NodeDir(node)));
}

TEST_F(MemoryCopies, NodesAreThoseThatSeeOneDirectory) {
  const auto errors = OnNodes(7, 3, [](World& world, const MemoryNodes& memory) {
    EXPECT_EQ(memory.Count(), 3);
    EXPECT_THAT(memory.MembersOf(0), ElementsAre(0, 1, 2));
    EXPECT_THAT(memory.MembersOf(2), ElementsAre(5, 6));
    EXPECT_EQ(memory.KeeperOf(0), 3);
    EXPECT_EQ(memory.KeeperOf(2), 3) << "node 1 has two ranks";
    EXPECT_EQ(memory.KeeperOf(6), 1);
    EXPECT_EQ(memory.Keeps(world.Rank()), true);
    const std::vector<int64_t> bytes = {1, 10, 100, 1000, 10000, 100000, 1000000};
    if (world.Rank() == 4) {
      EXPECT_EQ(memory.PlannedBytes(bytes), 2 * (11000 + 111));
    }
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  OnNodes(3, 1, [](World&, const MemoryNodes& memory) {
    EXPECT_EQ(memory.Count(), 1);
    EXPECT_EQ(memory.KeeperOf(1), -1);
  });
}

}  // namespace
}  // namespace espalier
