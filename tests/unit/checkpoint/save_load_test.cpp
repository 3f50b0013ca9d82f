// Any layout saves, any layout loads: the same bits, the same files, and their permissions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "checkpoint_fixture.hpp"
#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/report/text.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StrEq;

TEST_F(CheckpointTest, AnyLayoutLoadsAnyLayout) {
  const std::vector<Degrees> layouts = {
      kOne,           {2, 1, 1, 1, 1}, {1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}, {1, 1, 1, 2, 1}, {1, 1, 1, 1, 2},
      kEight,         {2, 1, 2, 1, 2}, {4, 1, 1, 1, 1}, {1, 1, 4, 1, 1}, {1, 1, 1, 1, 4}, {1, 1, 3, 1, 2},
      {1, 2, 1, 2, 3}};
  for (size_t a = 0; a < layouts.size(); ++a) {
    const auto step = static_cast<int64_t>(a + 1);
    SaveAt(layouts[a], step, a);
    for (const Degrees& to : layouts)
      EXPECT_THAT(LoadState(Step(step), to, a), Each(StrEq("")))
          << Mesh(layouts[a]).ToString() << " -> " << Mesh(to).ToString();
  }
}

TEST_F(CheckpointTest, StatesOnDevicesAreSavedAndLoadedThroughTheHost) {
  int64_t step = 0;
  for (const bool asynchronous : {true, false}) {
    const Mesh mesh(kEight);
    const std::vector<StateTensor> tensors = TestTensors(kEight);
    ThreadMeeting writers(mesh.Ranks());
    ++step;
    EXPECT_THAT(OnRanks(mesh.Ranks(),
                        [&](World& world) {
                          RankState state(tensors, mesh, world.Rank());
                          state.Fill(7);
                          RemoteState remote(state, mesh, world.Rank());
                          remote.Upload();
                          AsyncSaver saver(
                              {Dir(), 3}, tensors, remote.Local(), mesh, world,
                              asynchronous ? std::make_unique<ThreadWorld>(writers, world.Rank()) : nullptr);
                          saver.Save(TestMetadata(step));
                          saver.Wait();
                          if (!saver.Ended().at(0).committed) throw std::runtime_error("not committed");
                        }),
                Each(StrEq("")));
    for (const Degrees& to : {kOne, kEight, Degrees{1, 1, 1, 1, 4}, Degrees{1, 1, 2, 1, 1}}) {
      EXPECT_THAT(LoadState(Step(step), to, 7), Each(StrEq("")));
      const Mesh other(to);
      const std::vector<StateTensor> others = TestTensors(to);
      EXPECT_THAT(OnRanks(other.Ranks(),
                          [&](World& world) {
                            RankState state(others, other, world.Rank());
                            RemoteState remote(state, other, world.Rank());
                            Load(Step(step), others, remote.Local(), other, world);
                            remote.Download();
                            if (const int64_t errors = state.Errors(7); errors > 0)
                              throw std::runtime_error(std::to_string(errors) + " elements differ");
                          }),
                  Each(StrEq("")))
          << other.ToString();
    }
  }
}

TEST_F(CheckpointTest, TellsWhatItSavedAndLoaded) {
  const Mesh mesh(kEight);
  const std::vector<StateTensor> tensors = TestTensors(kEight);
  std::array<SaveResult, 8> results;
  std::array<Metadata, 8> loaded;
  OnRanks(8, [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(5);
    const auto rank = static_cast<size_t>(world.Rank());
    results[rank] = Save(Dir() + "/new/checkpoints", TestMetadata(1200), tensors, state.Local(), mesh, world, 2);
    loaded[rank] = Load(results[rank].dir, tensors, state.Local(), mesh, world);
  });
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(results[0].dir)) bytes += static_cast<int64_t>(entry.file_size());
  for (size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(results[rank].dir, Dir() + "/new/checkpoints/step-00001200");
    EXPECT_EQ(results[rank].bytes, bytes);
    EXPECT_THAT(results[rank].warnings, IsEmpty());
    EXPECT_GE(results[rank].blocked_ms, results[rank].committed_ms);
    EXPECT_EQ(loaded[rank].step, 1200);
    EXPECT_EQ(loaded[rank].samples, 9600);
    EXPECT_EQ(loaded[rank].deck, TestMetadata(0).deck);
    EXPECT_THAT(loaded[rank].losses, ElementsAre(3.25, 3.1, 2.875));
  }
  EXPECT_THAT(Names(Dir() + "/new/checkpoints"), ElementsAre("latest", "step-00001200"));
  EXPECT_EQ(ReadBytes(Dir() + "/new/checkpoints/latest"), "step-00001200\n");

  const Manifest manifest = ReadManifest(results[0].dir);
  EXPECT_EQ(manifest.ranks, 8);
  EXPECT_EQ(manifest.mesh, mesh.ToString());
  int64_t parameters = 0;
  for (size_t t = 0; t < tensors.size() / 3; ++t) parameters += Volume(tensors[t].type.shape);
  EXPECT_EQ(manifest.Parameters(), parameters);
  std::vector<std::string> names;
  for (const StateTensor& tensor : tensors)
    if (std::find(names.begin(), names.end(), tensor.StoredName()) == names.end()) names.push_back(tensor.StoredName());
  EXPECT_EQ(names.size(), tensors.size() - 3 * 3);  // q, k and v are one weight, and two parts one bias
  ASSERT_EQ(manifest.tensors.size(), names.size());
  for (size_t t = 0; t < names.size(); ++t) EXPECT_EQ(manifest.tensors[t].name, names[t]);

  const std::string text = Describe(results[0].dir, {.tensors = true, .deck = true});
  for (const char* part :
       {"step        1200\n", "samples     9600\n", "ranks       8\n", "losses      3.25 3.1 2.875\n", "shard-00007.h5",
        "lm_head.weight", "[701,600]", "steps = 20"})
    EXPECT_THAT(text, HasSubstr(part));
  const std::string summary = Describe(results[0].dir, {});
  const int64_t size = results[0].bytes;
  EXPECT_EQ(size, manifest.Bytes() + std::ssize(ReadBytes(results[0].dir + "/MANIFEST")));
  EXPECT_THAT(summary, AllOf(HasSubstr(fmt::format("size        {} ({} bytes) in 11 files", HumanBytes(size), size)),
                             ::testing::Not(HasSubstr("lm_head.weight")), ::testing::Not(HasSubstr("steps = 20"))));
  EXPECT_THAT(VerifyCheckpoint(results[0].dir).damage, IsEmpty());
}

TEST_F(CheckpointTest, LargePiecesAreAligned) {
  SaveAt(kOne, 1, 9);
  const Manifest manifest = ReadManifest(Step(1));
  EXPECT_EQ(manifest.Find("parameters/lm_head.weight")->pieces[0].offset % (1 << 20), 0);
  EXPECT_EQ(manifest.files.size(), 3u);  // one shard, master, deck
}

TEST_F(CheckpointTest, EqualStateGivesEqualFiles) {
  const std::string a = Dir() + "/a", b = Dir() + "/b";
  ASSERT_THAT(SaveState(a, kEight, 7, 1), Each(StrEq("")));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a time stamp in seconds would differ
  ASSERT_THAT(SaveState(b, kEight, 7, 1), Each(StrEq("")));
  ASSERT_EQ(Names(a + "/step-00000007"), Names(b + "/step-00000007"));
  for (const std::string& name : Names(a + "/step-00000007")) {
    std::string one = ReadBytes(a + "/step-00000007/" + name), other = ReadBytes(b + "/step-00000007/" + name);
    if (name == "MANIFEST") {  // differs by its id, and so in its last line
      one.replace(one.find("\nid ") + 4, 32, 32, '0').resize(one.size() - 13);
      other.replace(other.find("\nid ") + 4, 32, 32, '0').resize(other.size() - 13);
    }
    EXPECT_TRUE(one == other) << name;
  }
}

TEST_F(CheckpointTest, MasterShowsWholeTensorsToOtherPrograms) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed (hdf5-tools)";
  const Degrees degrees = {2, 1, 2, 1, 2};
  const Mesh mesh(degrees);
  const std::vector<StateTensor> tensors = TestTensors(degrees);
  ASSERT_THAT(OnRanks(8,
                      [&](World& world) {
                        RankState state(tensors, mesh, world.Rank());
                        // Numbers that text shows exactly: 1000 x row + column.
                        for (const LocalTensor& local : state.Local()) {
                          const Box box = local.tensor->StoredBox(mesh, mesh.CoordinateOf(world.Rank()));
                          const int64_t columns = box.size() == 2 ? box[1].Extent() : 1;
                          for (int64_t i = 0; i < Volume(ExtentsOf(box)); ++i)
                            static_cast<float*>(local.data)[i] =
                                static_cast<float>(1000 * (box[0].begin + i / columns) +
                                                   (box.size() == 2 ? box[1].begin + i % columns : 0));
                        }
                        Save(Dir(), TestMetadata(3), tensors, state.Local(), mesh, world, 3);
                      }),
              Each(StrEq("")));

  const auto dump = [&](const std::string& what) {
    const std::string command =
        "cd / && h5dump -y -o " + Dir() + "/dump " + what + " " + Step(3) + "/master.h5 > " + Dir() + "/out 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << ReadBytes(Dir() + "/out");
    std::string text = ReadBytes(Dir() + "/dump");
    std::replace(text.begin(), text.end(), ',', ' ');
    std::vector<std::string> numbers;
    std::istringstream in(text);
    for (std::string number; in >> number;) numbers.push_back(number);
    return numbers;
  };
  const auto expect = [&](const std::string& name, size_t rows, size_t columns) {
    const std::vector<std::string> numbers = dump("-d " + name);
    ASSERT_EQ(numbers.size(), rows * columns);
    for (size_t i = 0; i < numbers.size(); ++i)
      EXPECT_EQ(numbers[i], std::to_string(1000 * (i / columns) + i % columns));
  };
  for (const char* prefix : {"/parameters/", "/optimizer/exp_avg_sq/"}) {
    expect(prefix + std::string("model.layers.0.self_attn.o_proj.weight"), 7, 13);
    expect(prefix + std::string("h.0.c_attn.weight"), 5, 21);  // three boxes in each shard file
  }
  dump("-d /deck");
  EXPECT_THAT(ReadBytes(Dir() + "/dump"), HasSubstr("steps = 20"));

  // A view over a missing shard must not look like weights.
  const Manifest manifest = ReadManifest(Step(3));
  const ManifestPiece& first = manifest.Find("parameters/model.layers.0.self_attn.o_proj.weight")->pieces.front();
  fs::remove(Step(3) + "/" + manifest.files[static_cast<size_t>(first.file)].name);
  EXPECT_EQ(dump("-d /parameters/model.layers.0.self_attn.o_proj.weight").front(), "nan");
}

TEST_F(CheckpointTest, MomentsOfBf16InAnyLayout) {
  const std::vector<Degrees> layouts = {kOne, {1, 1, 3, 1, 2}, {2, 1, 2, 1, 2}, {1, 2, 1, 2, 3}};
  for (size_t a = 0; a < layouts.size(); ++a) {
    const auto step = static_cast<int64_t>(a + 1);
    ASSERT_THAT(SaveState(Dir(), layouts[a], step, a, 9, Dtype::kBf16), Each(StrEq("")));
    for (const Degrees& to : layouts)
      EXPECT_THAT(LoadState(Step(step), to, a, Dtype::kBf16), Each(StrEq(""))) << a << " to " << Mesh(to).ToString();
    EXPECT_THAT(VerifyCheckpoint(Step(step)).damage, IsEmpty());
  }
  int64_t bytes = 0;
  for (const ManifestTensor& tensor : ReadManifest(Step(1)).tensors)
    for (const ManifestPiece& piece : tensor.pieces) bytes += tensor.BytesOf(piece);
  int64_t elements = 0;
  for (const StateTensor& tensor : TestTensors(kOne)) elements += Volume(tensor.type.shape);
  EXPECT_EQ(bytes, elements / 3 * (4 + 2 + 2));
  EXPECT_THAT(Describe(Step(1), {.tensors = true}), HasSubstr("bf16  [701,600]"));
}

// A box of several chunks, strided boxes, host and device.
TEST_F(CheckpointTest, MomentsOfAnotherTypeAreConverted) {
  struct Way {
    Dtype from, to;
    std::function<uint32_t(uint32_t)> bits;
  };
  const std::vector<Way> ways = {
      {Dtype::kF32, Dtype::kBf16, [](uint32_t x) { return uint32_t{ToBf16(std::bit_cast<float>(x)).bits}; }},
      {Dtype::kBf16, Dtype::kF32,
       [](uint32_t x) { return std::bit_cast<uint32_t>(ToFloat(Bf16{static_cast<uint16_t>(x)})); }}};
  for (size_t w = 0; w < ways.size(); ++w) {
    const auto step = static_cast<int64_t>(w + 1);
    ASSERT_THAT(SaveState(Dir(), kEight, step, w, 9, ways[w].from), Each(StrEq("")));
    for (const Degrees& to : {kOne, kEight, Degrees{1, 1, 3, 1, 2}})
      for (bool on_device : {false, true}) {
        const Mesh mesh(to);
        const std::vector<StateTensor> tensors = TestTensors(to, ways[w].to);
        const auto expected = [&](const StateTensor& tensor, int64_t element) {
          const uint32_t bits = TestBits(tensor.name, element, w);
          return tensor.name.starts_with("parameters/") ? bits : ways[w].bits(bits);
        };
        EXPECT_THAT(OnRanks(mesh.Ranks(),
                            [&](World& world) {
                              RankState state(tensors, mesh, world.Rank());
                              RemoteState remote(state, mesh, world.Rank());
                              Load(Step(step), tensors, on_device ? remote.Local() : state.Local(), mesh, world);
                              if (on_device) remote.Download();
                              EXPECT_EQ(state.Differences(expected), 0) << "rank " << world.Rank();
                            }),
                    Each(StrEq("")));
      }
  }
}

// As in an import.
TEST_F(CheckpointTest, MomentsThatStep0LacksAreZero) {
  const Mesh mesh(kTwo);
  std::vector<StateTensor> weights = TestTensors(kTwo);
  weights.resize(weights.size() / 3);
  EXPECT_THAT(OnRanks(2,
                      [&](World& world) {
                        RankState state(weights, mesh, world.Rank());
                        state.Fill(6);
                        Save(Dir(), TestMetadata(0), weights, state.Local(), mesh, world, 3);
                      }),
              Each(StrEq("")));
  for (Dtype moments : {Dtype::kF32, Dtype::kBf16}) {
    const std::vector<StateTensor> tensors = TestTensors(kTwo, moments);
    EXPECT_THAT(OnRanks(2,
                        [&](World& world) {
                          RankState state(tensors, mesh, world.Rank());
                          Load(Step(0), tensors, state.Local(), mesh, world);
                          EXPECT_EQ(state.Differences([](const StateTensor& tensor, int64_t element) {
                            return tensor.name.starts_with("parameters/") ? TestBits(tensor.name, element, 6) : 0u;
                          }),
                                    0);
                        }),
                Each(StrEq("")));
  }
}

TEST_F(CheckpointTest, MasterShowsMomentsOfBf16ToOtherPrograms) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed (hdf5-tools)";
  const std::vector<StateTensor> tensors = TestTensors(kOne, Dtype::kBf16);
  const std::string name = "optimizer/exp_avg/model.layers.0.self_attn.o_proj.weight";
  RankState state(tensors, Mesh(), 0);
  for (const LocalTensor& local : state.Local())
    if (local.tensor->name == name)
      for (int i = 0; i < 7 * 13; ++i) static_cast<Bf16*>(local.data)[i] = ToBf16(static_cast<float>(i - 40) / 8);
  SelfWorld world;
  Metadata metadata = TestMetadata(3);
  metadata.lineage = Lineage{};
  Save(Dir(), metadata, tensors, state.Local(), Mesh(), world, 3);
  const std::string command =
      "cd / && h5dump -y -o " + Dir() + "/dump -d /" + name + " " + Step(3) + "/master.h5 > " + Dir() + "/out 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << ReadBytes(Dir() + "/out");
  std::string text = ReadBytes(Dir() + "/dump");
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream in(text);
  for (int i = 0; i < 7 * 13; ++i) {
    double number = 99;
    ASSERT_TRUE(in >> number);
    EXPECT_EQ(number, (i - 40) / 8.0);
  }
}

TEST_F(CheckpointTest, RefusesWhatDoesNotFitTheDeck) {
  SaveAt(kEight, 4, 2);
  std::vector<StateTensor> tensors = TestTensors(kOne);
  tensors[0].type.shape = {38, 10};
  tensors.erase(tensors.begin() + 1);
  tensors.push_back({"parameters/model.layers.9.new", MakeType(Dtype::kF32, {2}), 0});
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  const std::string refusal = Refusal([&] { Load(Step(4), tensors, state.Local(), Mesh(), world); });
  EXPECT_THAT(
      refusal,
      AllOf(HasSubstr("step-00000004 does not fit the deck"),
            HasSubstr("parameters/model.embed_tokens.weight: f32[38,10] by the deck, f32[37,10] in the checkpoint"),
            HasSubstr("parameters/model.layers.9.new: the deck asks for it, the checkpoint has none"),
            HasSubstr("parameters/model.layers.0.self_attn.q_proj.weight: in the checkpoint, unknown to the deck")));
}

TEST_F(CheckpointTest, SamplingLoadsParametersAlone) {
  SaveAt(kEight, 4, 2);
  std::vector<StateTensor> tensors = TestTensors(kOne);
  tensors.resize(tensors.size() / 3);
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  EXPECT_THAT(Refusal([&] { Load(Step(4), tensors, state.Local(), Mesh(), world); }), HasSubstr("unknown to the deck"));
  EXPECT_EQ(Load(Step(4), tensors, state.Local(), Mesh(), world, Coverage::kSome).step, 4);
  EXPECT_EQ(state.Errors(2), 0);
}

}  // namespace
}  // namespace espalier
