#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/transfer/destination.hpp"
#include "checkpoint/transfer/pieces.hpp"
#include "checkpoint/transfer/runs.hpp"
#include "checkpoint_testing.hpp"
#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/printable_lines.hpp"

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

const std::string kDead = "0123456789abcdef0123456789abcdef";
constexpr Degrees k111 = {1, 1, 1, 1, 1}, k222 = {2, 2, 1, 1, 2};

void FlipByte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
}

/// The message of the UserError that `work` throws; its status must be kData.
std::string Refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  return "not refused";
}

// --- CRC-32C
// -----------------------------------------------------------------------------------------------------------------

TEST(Crc32c, AgreesWithPublishedVectors) {  // RFC 3720, B.4
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  const std::string zeros(32, '\0'), ones(32, '\xff');
  EXPECT_EQ(Crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), 32), 0x62a8ab43u);
  std::string counting;
  for (int i = 0; i < 32; ++i) counting += static_cast<char>(i);
  EXPECT_EQ(Crc32c(counting.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

TEST(Crc32c, HardwareTableAndPartsAgree) {
  std::mt19937 random(7);
  std::string data(200'003, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t bytes : {0, 1, 7, 8, 9, 4095, 49151, 49152, 49153, 100'001, 200'000}) {
    const char* begin = data.data() + 3;  // unaligned
    const uint32_t whole = Crc32cPortable(begin, bytes);
    EXPECT_EQ(Crc32c(begin, bytes), whole) << bytes;
    const size_t first = bytes / 3;
    EXPECT_EQ(Crc32c(begin + first, bytes - first, Crc32c(begin, first)), whole) << bytes;
    EXPECT_EQ(Crc32cCombine(Crc32c(begin, first), Crc32c(begin + first, bytes - first), bytes - first), whole) << bytes;
  }
}

// --- pieces
// ------------------------------------------------------------------------------------------------------------------

TEST(Pieces, ReplicasAreWrittenOnceAndShared) {
  const Mesh mesh({2, 2, 1, 1, 2});
  const auto tensor = [](const char* name, const char* type, int stage) {
    return StateTensor{name, ParseType(type), stage};
  };
  const std::vector<StateTensor> tensors = {tensor("a", "f32[5{tp},4]", 0), tensor("b", "f32[3]", 0),
                                            tensor("c", "f32[1{tp}]", 1), tensor("d", "f32[2]", 0)};
  // Ranks 0..3 are stage 0: (dp 0, tp 0), (dp 0, tp 1), (dp 1, tp 0), (dp 1, tp 1).
  EXPECT_THAT(PlanPieces(tensors, mesh),
              ElementsAre(Piece{0, {{0, 3}, {0, 4}}, 0}, Piece{0, {{3, 5}, {0, 4}}, 1}, Piece{1, {{0, 3}}, 2},
                          Piece{2, {{0, 1}}, 4}, Piece{3, {{0, 2}}, 3}));
}

TEST(Pieces, WritersShareTheBytes) {
  const Mesh mesh({1, 3, 1, 1, 1});
  std::vector<StateTensor> tensors;
  for (int i = 0; i < 40; ++i) tensors.push_back({fmt::format("t{}", i), MakeType(Dtype::kF32, {i % 7 + 1}), 0});
  std::array<int64_t, 3> elements{};
  for (const Piece& piece : PlanPieces(tensors, mesh))
    elements[static_cast<size_t>(piece.writer)] += piece.box[0].Extent();
  const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
  EXPECT_LE(*most - *least, 7);
}

TEST(Tiling, NamesWhatIsWrong) {
  const auto mistake = [](const Shape& shape, const std::vector<Box>& boxes) { return TilingError(shape, boxes); };
  EXPECT_EQ(mistake({4, 3}, {{{0, 4}, {0, 3}}}), "");
  EXPECT_EQ(mistake({4, 3}, {{{2, 4}, {0, 2}}, {{0, 2}, {0, 2}}, {{0, 2}, {2, 3}}, {{2, 4}, {2, 3}}}), "");
  EXPECT_EQ(mistake({4}, {}), "no pieces");
  EXPECT_EQ(mistake({4}, {{{1, 4}}}), "dim 0 starts at 1");
  EXPECT_THAT(mistake({4}, {{{0, 2}}, {{3, 4}}}), HasSubstr("[0:2] overlaps another one or leaves a gap in dim 0"));
  EXPECT_THAT(mistake({4}, {{{0, 3}}, {{2, 4}}}), HasSubstr("[0:3] overlaps"));
  EXPECT_THAT(mistake({4}, {{{0, 2}}, {{2, 3}}}), HasSubstr("[2:3] overlaps another one or leaves a gap"));
  EXPECT_EQ(mistake({4}, {{{0, 4}}, {{0, 4}}}), "a piece appears twice");
  EXPECT_EQ(mistake({2, 2}, {{{0, 1}, {0, 1}}, {{1, 2}, {1, 2}}}), "2 pieces do not fill a grid");
  EXPECT_EQ(mistake({2, 2}, {{{0, 1}, {0, 1}}, {{0, 1}, {1, 2}}, {{1, 2}, {0, 1}}}), "3 pieces do not fill a grid");
  EXPECT_EQ(mistake({4}, {{{0, 4}, {0, 1}}}), "piece [0:4,0:1] in a tensor of 1 dims");
}

TEST(Runs, CopyEveryCommonElementOnce) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 500; ++trial) {
    Box from, to;
    const size_t dims = 1 + random() % 4;
    for (size_t d = 0; d < dims; ++d) {
      const auto range = [&] {
        const int64_t begin = random() % 4;
        return Range{begin, begin + 1 + static_cast<int64_t>(random() % 5)};
      };
      from.push_back(range());
      to.push_back(random() % 3 == 0 ? from.back() : range());
    }
    std::vector<int> source(static_cast<size_t>(Volume(ExtentsOf(from)))),
        target(static_cast<size_t>(Volume(ExtentsOf(to))), -1);
    const auto number = [](const Box& box, int64_t local) {  // of an element in the whole
      const Shape extents = ExtentsOf(box);
      int64_t element = 0, scale = 1;
      for (size_t d = box.size(); d-- > 0; local /= extents[d], scale *= 100)
        element += (box[d].begin + local % extents[d]) * scale;
      return static_cast<int>(element);
    };
    const auto inside = [](const Box& box, int element) {
      for (size_t d = box.size(); d-- > 0; element /= 100)
        if (element % 100 < box[d].begin || element % 100 >= box[d].end) return false;
      return true;
    };
    for (size_t i = 0; i < source.size(); ++i) source[i] = number(from, static_cast<int64_t>(i));
    int64_t last = -1;
    for (Runs runs(from, to); !runs.Done(); runs.Next()) {
      EXPECT_GT(runs.From(), last);
      last = runs.From();
      std::memcpy(target.data() + runs.To() / 4, source.data() + runs.From() / 4, static_cast<size_t>(runs.Bytes()));
    }
    for (size_t i = 0; i < target.size(); ++i) {
      const int element = number(to, static_cast<int64_t>(i));
      ASSERT_EQ(target[i], inside(from, element) ? element : -1) << ToString(from) << " " << ToString(to);
    }
  }
}

// --- MANIFEST
// ----------------------------------------------------------------------------------------------------------------

Manifest SmallManifest() {
  Manifest m{"0123456789abcdef0123456789abcdef", TestMetadata(12), 2, "pp 1 x tp 2", {}, {}};
  m.metadata.deck.clear();
  m.files = {{"shard-00000.h5", 4096, 1}, {"shard-00001.h5", 2048, 2}, {"master.h5", 100, 3}, {"deck.toml", 17, 4}};
  m.tensors = {{"parameters/a.weight", {5, 4}, {{0, {{0, 3}, {0, 4}}, 512, 0xabc}, {1, {{3, 5}, {0, 4}}, 600, 0xdef}}},
               {"optimizer/exp_avg/a.weight", {7}, {{0, {{0, 7}}, 560, 7}}}};
  return m;
}

/// With a checksum that fits.
std::string Sealed(std::string body) { return body + fmt::format("end {:08x}\n", Crc32c(body.data(), body.size())); }

TEST(ManifestText, PrintsAndReadsBack) {
  const std::string text = Print(SmallManifest());
  EXPECT_EQ(text, Sealed("espalier-checkpoint 1\n"
                         "id 0123456789abcdef0123456789abcdef\n"
                         "step 12\n"
                         "samples 96\n"
                         "ranks 2\n"
                         "mesh pp 1 x tp 2\n"
                         "version 0.1.0\n"
                         "git 0123abcd\n"
                         "losses 3.25 3.1 2.875\n"
                         "file shard-00000.h5 4096 00000001\n"
                         "file shard-00001.h5 2048 00000002\n"
                         "file master.h5 100 00000003\n"
                         "file deck.toml 17 00000004\n"
                         "tensor parameters/a.weight f32 [5,4]\n"
                         "piece shard-00000.h5 [0:3,0:4] 512 00000abc\n"
                         "piece shard-00001.h5 [3:5,0:4] 600 00000def\n"
                         "tensor optimizer/exp_avg/a.weight f32 [7]\n"
                         "piece shard-00000.h5 [0:7] 560 00000007\n"));
  const Manifest read = ParseManifest(text, "M");
  EXPECT_EQ(Print(read), text);
  EXPECT_EQ(read.Parameters(), 20);
  EXPECT_EQ(read.Bytes(), 4096 + 2048 + 100 + 17);
}

TEST(ManifestText, M3NamesTheDataOfTheRun) {
  Manifest manifest = SmallManifest();
  manifest.metadata.data = DataSeen{1901233, 0x004b7c0d7c1f02a9};
  const std::string text = Print(manifest);
  EXPECT_THAT(text, HasSubstr("\ndata 1901233 004b7c0d7c1f02a9\nfile "));
  EXPECT_EQ(ParseManifest(text, "M").metadata.data, manifest.metadata.data);
  EXPECT_EQ(ParseManifest(Print(SmallManifest()), "M").metadata.data, std::nullopt);
  std::string changed = text.substr(0, text.size() - 13);
  changed.replace(changed.find("004b7c0d"), 8, "4b7c0d");
  EXPECT_THAT(Refusal([&] { ParseManifest(Sealed(changed), "M"); }), HasSubstr("is not a checksum of 16 hex digits"));
}

TEST(ManifestText, RefusesWhatIsMalformed) {
  struct Case {
    const char *from, *to, *says;
  };
  const std::vector<Case> cases = {
      {"espalier-checkpoint 1", "espalier-checkpoint 3", "M:1: format '3' is not known here"},
      {"espalier-checkpoint 1", "espalier-checkpoint 2", "M:3: expected 'parent'"},
      {"version 0.1.0", "version 0.2.0", "M:10: the proof is missing, which version 0.2.0 always writes"},
      {"version 0.1.0", "version 1.0", "the proof is missing, which version 1.0 always writes"},
      {"espalier-checkpoint", "espalier", "M:1: not a checkpoint's MANIFEST"},
      {"id 0123", "id 012", "M:2: id is not 32 hex digits"},
      {"id 0123", "id 012X", "id is not 32 hex digits"},
      {"step 12", "step -1", "M:3: expected a number from 0"},
      {"step 12", "step 012", "M:3: expected a number"},
      {"step 12", "step 99999999999999999999", "M:3: expected a number from 0 to 2147483647"},
      {"step 12", "step 12 ", "M:3: expected the end of the line"},
      {"step 12\n", "", "M:3: expected 'step'"},
      {"ranks 2", "ranks 0", "M:5: expected a number from 1 to 16777216"},
      {"3.25", "3.25x", "M:9: '3.25x' is not a number"},
      {"mesh pp 1", "mesh \x01p 1", "M:6: unprintable character"},
      {"git 0123abcd", "git ", "M:8: expected 1 to 255 characters"},
      {"file shard-00001.h5", "file ../shard-00001.h5", "M:11: '../shard-00001.h5' is no file of a checkpoint"},
      {"file shard-00001.h5", "file shard-0001.h5", "M:11: 'shard-0001.h5' is no file of a checkpoint"},
      {"file shard-00001.h5", "file /etc/passwd", "is no file of a checkpoint"},
      {"file shard-00001.h5", "file shard-00000.h5", "M:11: file shard-00000.h5 appears twice"},
      {"file master.h5 100 00000003\n", "", "file master.h5 is missing"},
      {"file deck.toml 17 00000004\n", "", "file deck.toml is missing"},
      {"2048", "9223372036854775807", "M:11: expected a number from 0 to 288230376151711744"},
      {"2048", "600", "M:16: parameters/a.weight [3:5,0:4] ends at byte 632 of shard-00001.h5, which has 600"},
      {"00000003", "0000003", "M:12: '0000003' is not a checksum of 8 hex digits"},
      {"00000003", "0000000A", "'0000000A' is not a checksum"},
      {"tensor parameters/a.weight", "tensor parameters/../a", "M:14: 'parameters/../a' is no tensor name"},
      {"tensor parameters/a.weight", "tensor /parameters/a", "is no tensor name"},
      {"tensor parameters/a.weight", "tensor parameters//a", "is no tensor name"},
      {"tensor parameters/a.weight", "tensor optimizer/exp_avg/a.weight",
       "M:17: tensor optimizer/exp_avg/a.weight appears twice"},
      {"f32 [7]", "f64 [7]", "M:17: optimizer/exp_avg/a.weight: element type is not f32"},
      {"f32 [7]", "f32 []", "M:17: expected a number from 1"},
      {"f32 [7]", "f32 [7", "expected one of ',]'"},
      {"f32 [7]", "f32 [0]", "expected a number from 1"},
      {"f32 [7]", "f32 [1099511627776,1099511627776]", "tensor too large"},
      {"f32 [7]", "f32 [7,1,1,1,1,1,1,1,1]", "more than 8 dims"},
      {"f32 [7]", "f32 [8]",
       "M:17: optimizer/exp_avg/a.weight: piece [0:7] overlaps another one or leaves a gap in dim 0"},
      {"[3:5,0:4]", "[2:5,0:4]", "M:14: parameters/a.weight: piece [0:3,0:4] overlaps"},
      {"[3:5,0:4]", "[3:6,0:4]", "M:16: expected a number from 4 to 5"},
      {"[3:5,0:4]", "[3:3,0:4]", "expected a number from 4 to 5"},
      {"[3:5,0:4]", "[3:5]", "fewer than the tensor's 2 dims"},
      {"[3:5,0:4]", "[3:5,0:4,0:1]", "more than the tensor's 2 dims"},
      {"[3:5,0:4]", "[3:5,-0:4]", "expected a number from 0 to 3"},
      {"piece shard-00001.h5", "piece shard-00002.h5", "M:16: 'shard-00002.h5' is no shard of this checkpoint"},
      {"piece shard-00001.h5", "piece master.h5", "'master.h5' is no shard of this checkpoint"},
      {"] 560", "] 559", "parameters/a.weight and optimizer/exp_avg/a.weight share bytes of shard-00000.h5"},
      {"piece shard-00000.h5 [0:7] 560 00000007\n", "", "M:17: optimizer/exp_avg/a.weight: no pieces"},
      {"tensor optimizer", "extra 1\ntensor optimizer", "M:17: expected 'end'"},
  };
  const std::string text = Print(SmallManifest());
  const std::string body = text.substr(0, text.size() - 13);
  for (const Case& c : cases) {
    std::string changed = body;
    const size_t at = changed.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    changed.replace(at, std::strlen(c.from), c.to);
    EXPECT_THAT(Refusal([&] { ParseManifest(Sealed(changed), "M"); }), HasSubstr(c.says)) << c.from << " -> " << c.to;
  }
}

TEST(ManifestText, H7NamesParentAndBranch) {
  Manifest manifest = SmallManifest();
  manifest.metadata.lineage = Lineage{kDead, ""};
  manifest.metadata.version = "0.3.1";
  manifest.metadata.proof = Proof{2.5f, "bf16", 0x17c94d01};
  const std::string text = Print(manifest), body = text.substr(0, text.size() - 13);
  EXPECT_THAT(text, ::testing::StartsWith("espalier-checkpoint 2\nid 0123456789abcdef0123456789abcdef\nparent " +
                                          kDead + "\nbranch none\nstep 12\n"));
  EXPECT_EQ(Print(ParseManifest(text, "M")), text);
  EXPECT_EQ(ParseManifest(text, "M").metadata.lineage, (Lineage{kDead, ""}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = body;
    return Sealed(other.replace(other.find(from), from.size(), to));
  };
  EXPECT_EQ(ParseManifest(changed("branch none", "branch " + kDead), "M").metadata.lineage->branch, kDead);
  EXPECT_THAT(Refusal([&] { ParseManifest(changed("parent 0", "parent x"), "M"); }),
              HasSubstr("M:3: parent is neither 32 hex digits nor none"));
  EXPECT_THAT(Refusal([&] { ParseManifest(changed("branch none", "branch nobody"), "M"); }),
              HasSubstr("M:4: branch is neither"));
  EXPECT_THAT(Refusal([&] { ParseManifest(changed("branch none\n", ""), "M"); }), HasSubstr("M:4: expected 'branch'"));
  EXPECT_THAT(Refusal([&] { ParseManifest(changed("proof 2.5 bf16 17c94d01\n", ""), "M"); }),
              HasSubstr("the proof is missing"));
  for (const std::string& whole : {text, Print(SmallManifest())}) {
    const ManifestHead head = ParseManifestHead(whole.substr(0, kMaxHeadBytes), "M");
    EXPECT_EQ(head.id, manifest.id);
    EXPECT_EQ(head.step, 12);
    EXPECT_EQ(head.lineage, ParseManifest(whole, "M").metadata.lineage);
    EXPECT_THROW(ParseManifestHead(whole.substr(0, 60), "M"), UserError);
  }
}

TEST(ManifestText, RefusesEveryDamage) {
  const std::string text = Print(SmallManifest());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_THROW(ParseManifest(changed, "M"), UserError) << at;
    EXPECT_THROW(ParseManifest(text.substr(0, at), "M"), UserError) << at;
  }
  EXPECT_THROW(ParseManifest(text + "\n", "M"), UserError);
  EXPECT_THAT(Refusal([&] { ParseManifest(text.substr(0, text.size() - 13), "M"); }), HasSubstr("incomplete"));
}

TEST(ManifestText, MutantsWithFittingChecksumsAreReadOrRefused) {
  const std::string text = Print(SmallManifest());
  const std::string body = text.substr(0, text.size() - 13);
  std::mt19937 random(3);
  const std::string letters = "0123456789abcdef[]:, -\n./x";
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string changed = body;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % changed.size();
      switch (random() % 3) {
        case 0:
          changed[at] = letters[random() % letters.size()];
          break;
        case 1:
          changed.insert(at, 1, letters[random() % letters.size()]);
          break;
        default:
          changed.erase(at, 1 + random() % 4);
      }
    }
    try {
      const Manifest read = ParseManifest(Sealed(changed), "M");
      for (const ManifestTensor& tensor : read.tensors)
        for (const ManifestPiece& piece : tensor.pieces)
          ASSERT_LE(piece.offset + piece.Bytes(), read.files.at(static_cast<size_t>(piece.file)).bytes);
    } catch (const UserError&) {
    }
  }
}

// --- save and load
// -----------------------------------------------------------------------------------------------------------

class CheckpointTest : public ::testing::Test {
 protected:
  const std::string& Dir() const { return dir_.path(); }
  std::string Step(int64_t step) const { return Dir() + "/" + StepName(step); }
  void SaveAt(const Degrees& degrees, int64_t step, uint64_t salt, int64_t keep = 3) {
    ASSERT_THAT(SaveState(Dir(), degrees, step, salt, keep), Each(StrEq("")));
  }

 private:
  TemporaryDirectory dir_;
};

TEST_F(CheckpointTest, AnyLayoutLoadsAnyLayout) {
  const std::vector<Degrees> layouts = {
      k111,           {2, 1, 1, 1, 1}, {1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}, {1, 1, 1, 2, 1}, {1, 1, 1, 1, 2},
      k222,           {2, 1, 2, 1, 2}, {4, 1, 1, 1, 1}, {1, 1, 4, 1, 1}, {1, 1, 1, 1, 4}, {1, 1, 3, 1, 2},
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
    const Mesh mesh(k222);
    const std::vector<StateTensor> tensors = TestTensors(k222);
    Meeting writers(mesh.Ranks());
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
    for (const Degrees& to : {k111, k222, Degrees{1, 1, 1, 1, 4}, Degrees{1, 1, 2, 1, 1}}) {
      EXPECT_THAT(LoadState(Step(step), to, 7), Each(StrEq("")));
      const Mesh other(to);
      const std::vector<StateTensor> others = TestTensors(to);
      EXPECT_THAT(OnRanks(other.Ranks(),
                          [&](World& world) {
                            RankState state(others, other, world.Rank());
                            RemoteState remote(state, other, world.Rank());
                            Load(Step(step), others, remote.Local(), other, world);
                            remote.Download();
                            if (const int64_t mistakes = state.Mistakes(7); mistakes > 0)
                              throw std::runtime_error(std::to_string(mistakes) + " elements differ");
                          }),
                  Each(StrEq("")))
          << other.ToString();
    }
  }
}

TEST(Destination, StridedRunsLeaveWhatLiesBetween) {
  constexpr int64_t kRows = 3000, kColumns = 1000, kBegin = 100, kEnd = 350;  // 12 MB: several windows
  std::vector<float> expected(kRows * kColumns), run(kEnd - kBegin);
  std::iota(expected.begin(), expected.end(), 0.0f);
  RemoteArena arena(kRows * kColumns * int64_t{sizeof(float)});
  arena.Write(arena.At(0, 0), expected.data(), arena.bytes());
  const LocalTensor tensor{nullptr, arena.At(0, 0), &arena};
  Destination out(tensor);
  for (int64_t r = 0; r < kRows; ++r) {
    std::fill(run.begin(), run.end(), static_cast<float>(-r));
    std::copy(run.begin(), run.end(), expected.begin() + r * kColumns + kBegin);
    out.Put((r * kColumns + kBegin) * int64_t{sizeof(float)}, reinterpret_cast<const char*>(run.data()),
            std::ssize(run) * int64_t{sizeof(float)});
  }
  out.Flush();
  std::vector<float> found(expected.size());
  arena.Read(tensor.data, found.data(), arena.bytes());
  EXPECT_TRUE(found == expected);
}

TEST_F(CheckpointTest, TellsWhatItSavedAndLoaded) {
  const Mesh mesh(k222);
  const std::vector<StateTensor> tensors = TestTensors(k222);
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
  EXPECT_THAT(summary, AllOf(HasSubstr(fmt::format("size        {} ({} bytes) in 10 files",
                                                   HumanBytes(manifest.Bytes()), manifest.Bytes())),
                             ::testing::Not(HasSubstr("lm_head.weight")), ::testing::Not(HasSubstr("steps = 20"))));
  EXPECT_THAT(VerifyCheckpoint(results[0].dir).damage, IsEmpty());
}

TEST_F(CheckpointTest, LargePiecesAreAligned) {
  SaveAt(k111, 1, 9);
  const Manifest manifest = ReadManifest(Step(1));
  EXPECT_EQ(manifest.Find("parameters/lm_head.weight")->pieces[0].offset % (1 << 20), 0);
  EXPECT_EQ(manifest.files.size(), 3u);  // one shard, master, deck
}

TEST_F(CheckpointTest, EqualStateGivesEqualFiles) {
  const std::string a = Dir() + "/a", b = Dir() + "/b";
  ASSERT_THAT(SaveState(a, k222, 7, 1), Each(StrEq("")));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a time stamp of seconds would show
  ASSERT_THAT(SaveState(b, k222, 7, 1), Each(StrEq("")));
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
    expect(prefix + std::string("h.0.c_attn.weight"), 5, 21);  // three pieces in each shard
  }
  dump("-d /deck");
  EXPECT_THAT(ReadBytes(Dir() + "/dump"), HasSubstr("steps = 20"));

  // A view over a missing shard must not look like weights.
  const Manifest manifest = ReadManifest(Step(3));
  const ManifestPiece& first = manifest.Find("parameters/model.layers.0.self_attn.o_proj.weight")->pieces.front();
  fs::remove(Step(3) + "/" + manifest.files[static_cast<size_t>(first.file)].name);
  EXPECT_EQ(dump("-d /parameters/model.layers.0.self_attn.o_proj.weight").front(), "nan");
}

TEST_F(CheckpointTest, RefusesWhatDoesNotFitTheDeck) {
  SaveAt(k222, 4, 2);
  std::vector<StateTensor> tensors = TestTensors(k111);
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
  SaveAt(k222, 4, 2);
  std::vector<StateTensor> tensors = TestTensors(k111);
  tensors.resize(tensors.size() / 3);
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  EXPECT_THAT(Refusal([&] { Load(Step(4), tensors, state.Local(), Mesh(), world); }), HasSubstr("unknown to the deck"));
  EXPECT_EQ(Load(Step(4), tensors, state.Local(), Mesh(), world, Coverage::kSome).step, 4);
  EXPECT_EQ(state.Mistakes(2), 0);
}

TEST_F(CheckpointTest, DamagedPiecesAreNamed) {
  SaveAt(k222, 4, 2);
  const Manifest manifest = ReadManifest(Step(4));
  for (const ManifestTensor& tensor : manifest.tensors) {
    const ManifestPiece& piece = tensor.pieces.back();
    const std::string shard = manifest.files[static_cast<size_t>(piece.file)].name, path = Step(4) + "/" + shard;
    const int64_t at = piece.offset + piece.Bytes() / 2;
    FlipByte(path, at);
    EXPECT_THAT(VerifyCheckpoint(Step(4)).damage,
                ElementsAre(AllOf(HasSubstr(shard), HasSubstr(tensor.name), HasSubstr(ToString(piece.box)))));
    for (const Degrees& degrees : {k222, Degrees{1, 1, 3, 1, 1}}) {
      const std::vector<std::string> errors = LoadState(Step(4), degrees, 2);
      EXPECT_THAT(errors, Each(AllOf(HasSubstr(shard), HasSubstr(tensor.name), HasSubstr("damaged"))));
      EXPECT_THAT(errors, Each(StrEq(errors[0])));
    }
    FlipByte(path, at);
  }
  EXPECT_THAT(LoadState(Step(4), k222, 2), Each(StrEq("")));
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
  SaveAt(k222, 4, 2);
  SaveAt(k222, 5, 3);
  const std::string path = Step(4) + "/shard-00001.h5", aside = Dir() + "/aside";
  const auto expect_refused = [&](const std::string& why) {
    EXPECT_THAT(LoadState(Step(4), k222, 2), Each(AllOf(HasSubstr("shard-00001.h5"), HasSubstr(why)))) << why;
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
  fs::copy_file(Step(5) + "/shard-00001.h5", path);  // equal shapes and size, another state
  ASSERT_EQ(fs::file_size(path), fs::file_size(aside));
  expect_refused("of another checkpoint");
  fs::remove(path);
  fs::rename(aside, path);
  fs::copy_file(path, Step(4) + "/shard-00099.h5");
  EXPECT_THAT(VerifyCheckpoint(Step(4)).damage, ElementsAre("shard-00099.h5: not part of this checkpoint"));

  FlipByte(Step(4) + "/deck.toml", 1);
  EXPECT_THAT(LoadState(Step(4), k222, 2), Each(HasSubstr("deck.toml: 17 bytes with checksum")));
  FlipByte(Step(4) + "/MANIFEST", 1);
  EXPECT_THAT(LoadState(Step(4), k222, 2), Each(HasSubstr("MANIFEST:1: not a checkpoint's MANIFEST")));
}

// --- the directory of checkpoints
// --------------------------------------------------------------------------------------------

TEST_F(CheckpointTest, KeepsTheNewestAndCleansUp) {
  fs::create_directories(Dir() + "/tmp-00000001-" + kDead);
  fs::create_directories(Dir() + "/del-00000001-" + kDead);
  fs::create_directories(Dir() + "/mine");
  for (int64_t step : {10, 20, 30, 40}) SaveAt(k111, step, static_cast<uint64_t>(step), 2);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "mine", "step-00000030", "step-00000040"));
  EXPECT_EQ(FindLatest(Dir()), Step(40));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(40), Step(30)));

  // Going back and on again: what lies ahead belongs to the abandoned way and is not counted.
  SaveAt(k111, 35, 35, 1);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "mine", "step-00000035", "step-00000040"));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(35)));
  SaveAt(k111, 40, 41, 3);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(40), Step(35)));
  EXPECT_THAT(LoadState(Step(40), k222, 41), Each(StrEq("")));
}

TEST_F(CheckpointTest, ReplacesAStepByTheNewOne) {
  SaveAt(k222, 10, 1, 1);
  const std::string id = ReadManifest(Step(10)).id;
  SaveAt(k111, 10, 2, 1);
  EXPECT_NE(ReadManifest(Step(10)).id, id);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010"));
  EXPECT_THAT(LoadState(Step(10), k222, 2), Each(StrEq("")));
}

TEST_F(CheckpointTest, LatestIsTheLastOneCommitted) {
  EXPECT_EQ(FindLatest(Dir() + "/nowhere"), std::nullopt);
  EXPECT_EQ(FindLatest(Dir()), std::nullopt);
  SaveAt(k111, 10, 1);
  SaveAt(k111, 20, 2);
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
  SaveAt(k111, 21, 2);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000021", "step-00000030"));
}

TEST_F(CheckpointTest, ResolvesWhatTheUserMeans) {
  const std::string run = Dir() + "/run", folder = run + "/checkpoints";
  EXPECT_THAT(Refusal([&] { Resolve("latest", folder); }), HasSubstr(folder + ": no committed checkpoint"));
  ASSERT_THAT(SaveState(folder, k111, 10, 1), Each(StrEq("")));
  EXPECT_EQ(Resolve("latest", folder), folder + "/step-00000010");
  EXPECT_EQ(Resolve(folder + "/step-00000010", "elsewhere"), folder + "/step-00000010");
  EXPECT_EQ(Resolve(folder, "elsewhere"), folder + "/step-00000010");
  EXPECT_EQ(Resolve(run, "elsewhere"), folder + "/step-00000010");
  EXPECT_THAT(Refusal([&] { Resolve(Dir(), folder); }), HasSubstr(Dir() + ": no checkpoint"));
  EXPECT_THAT(Refusal([&] { ReadManifest(Dir()); }), HasSubstr("MANIFEST: cannot open: No such file"));
}

TEST_F(CheckpointTest, AFailedWriterFailsTheSaveEverywhere) {
  SaveAt(k222, 10, 1);
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 500'000;  // enough for every shard but those of lm_head
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::vector<std::string> errors = SaveState(Dir(), k222, 20, 2, 1);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(errors, Each(HasSubstr("step-00000020 is not saved; older checkpoints are untouched")));
  EXPECT_THAT(errors, Each(StrEq(errors[0])));
  EXPECT_THAT(errors[0], HasSubstr("File too large"));
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010"));
  EXPECT_THAT(LoadState(*FindLatest(Dir()), k222, 1), Each(StrEq("")));
  SaveAt(k222, 20, 2, 1);
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000020"));
}

TEST_F(CheckpointTest, AFailedStartFailsTheSaveEverywhere) {
  WriteBytes(Dir() + "/file", "");
  const std::vector<std::string> errors = SaveState(Dir() + "/file", k222, 20, 2);
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
  std::vector<StateTensor> tensors = TestTensors(k111);
  RankState state(tensors, Mesh(), 0);
  std::vector<LocalTensor> local = state.Local();
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(k222), world, 1), InvariantError);
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(), world, 0), InvariantError);
  local.pop_back();
  EXPECT_THROW(Save(Dir(), TestMetadata(1), tensors, local, Mesh(), world, 1), UserError);
  EXPECT_THAT(Names(Dir()), IsEmpty());
  tensors.push_back(tensors[0]);
  EXPECT_THROW(PlanPieces(tensors, Mesh()), InvariantError);
}

// --- only our own files
// -------------------------------------------------------------------------------------------------------

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
  for (int64_t step : {10, 20, 30}) SaveAt(k111, step, 1, 1);
  for (const std::string& name : mine) EXPECT_EQ(ReadBytes(Dir() + "/" + name + "/deep/shard-00000.h5"), name);
  EXPECT_TRUE(fs::exists(Dir() + "/tmp-00000002-" + kDead + "/shard-00000.h5"));
  // What a dead save left goes, but not what somebody put there.
  EXPECT_THAT(Names(Dir() + "/tmp-00000001-" + kDead), ElementsAre("mine"));
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(30)));
}

/// Warnings of a save.
std::vector<std::string> WarningsAt(const std::string& dir, int64_t step, int64_t keep) {
  const std::vector<StateTensor> tensors = TestTensors(k111);
  SelfWorld world;
  RankState state(tensors, Mesh(), 0);
  state.Fill(static_cast<uint64_t>(step));
  return Save(dir, TestMetadata(step), tensors, state.Local(), Mesh(), world, keep).warnings;
}

TEST_F(CheckpointTest, H5RetentionLeavesWhatIsNotOurs) {
  for (int64_t step : {10, 20, 30, 40}) SaveAt(k111, step, 1, 9);
  fs::create_directory(Step(10) + "/results");
  WriteBytes(Step(10) + "/results/eval.csv", "4.2");
  FlipByte(Step(20) + "/MANIFEST", 300);  // ours? nobody can tell
  fs::rename(Step(30), Dir() + "/archive");
  fs::create_directory_symlink(Dir() + "/archive", Step(30));
  const std::vector<std::string> warnings = WarningsAt(Dir(), 50, 1);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("step-00000030 is not removed"), HasSubstr("not a directory")),
                                    AllOf(HasSubstr("step-00000020 is not removed"), HasSubstr("damaged")),
                                    AllOf(HasSubstr("step-00000010 is not removed"), HasSubstr("it holds results"))));
  EXPECT_THAT(Names(Dir()),
              ElementsAre("archive", "latest", "step-00000010", "step-00000020", "step-00000030", "step-00000050"));
  EXPECT_EQ(ReadBytes(Step(10) + "/results/eval.csv"), "4.2");
  EXPECT_THAT(LoadState(Dir() + "/archive", k111, 1), Each(StrEq("")));
}

TEST_F(CheckpointTest, H5ANameThatIsTakenIsMovedAside) {
  fs::create_directories(Step(10) + "/results");  // no MANIFEST
  WriteBytes(Step(10) + "/results/eval.csv", "4.2");
  SaveAt(k111, 20, 1, 9);
  fs::create_directory(Step(20) + "/results");  // a checkpoint with something else in it
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
    EXPECT_THAT(LoadState(Step(step), k111, static_cast<uint64_t>(step)), Each(StrEq("")));
    aside.push_back(Dir() + "/kept-" + StepName(step).substr(5) + "-" + ReadManifest(Step(step)).id);
  }
  EXPECT_EQ(ReadBytes(aside[0] + "/results/eval.csv"), "4.2");
  EXPECT_THAT(LoadState(aside[1], k111, 1), Each(StrEq("")));
  EXPECT_EQ(ReadBytes(aside[2] + "/MANIFEST"), "of another program\n");
  EXPECT_TRUE(fs::is_symlink(aside[3]));
  EXPECT_TRUE(fs::is_directory(Dir() + "/latest-old"));
  EXPECT_EQ(ReadBytes(Dir() + "/latest"), "step-00000040\n");
}

TEST(PrintableLines, NoCommandReachesATerminal) {
  EXPECT_EQ(PrintableLines("a\x1b]0;b\x07\x7f\r\n\tc\xc2\x9b"
                           "3\xc3\xa4\xc2\xa9"),
            "a?]0;b???\n\tc?3\xc3\xa4\xc2\xa9");
  EXPECT_EQ(PrintableLines("\xc2"), "\xc2");
}

// --- lineage
// ------------------------------------------------------------------------------------------------------------------

/// Saves as a run does; returns the id.
std::string SaveAfter(const std::string& dir, int64_t step, const std::string& parent, int64_t keep = 9,
                      const std::string& branch = "") {
  const std::vector<StateTensor> tensors = TestTensors(k111);
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
              ElementsAre(Step(35), Step(28)));  // and not 30, which is of the branch that was left
  EXPECT_THAT(FindAbandoned(Dir(), on_35), ElementsAre(Step(30), Step(40), Step(50)));
  EXPECT_THAT(FindLine(Dir(), ids[50]), ElementsAre(Step(50), Step(40), Step(30)));
  EXPECT_THAT(FindLine(Dir(), kDead), IsEmpty());
  // Damage beyond the first lines of the latest MANIFEST leaves its line known.
  FlipByte(Step(35) + "/MANIFEST", 400);
  EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(35), Step(28)));
  // Where its line is lost too, or `latest`, nobody guesses.
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
  for (int64_t step : {10, 20, 30}) SaveAt(k111, step, 1, 9);  // format 1
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
