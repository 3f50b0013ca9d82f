// MANIFEST as text: printed, read back, and refused if it is malformed or damaged.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint_testing.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr;

Manifest SmallManifest() {
  Manifest m{"0123456789abcdef0123456789abcdef", TestMetadata(12), 2, "pp 1 x tp 2", {}, {}};
  m.metadata.deck.clear();
  m.files = {{"shard-00000.h5", 4096, 1}, {"shard-00001.h5", 2048, 2}, {"master.h5", 100, 3}, {"deck.toml", 17, 4}};
  m.tensors = {{"parameters/a.weight", {5, 4}, {{0, {{0, 3}, {0, 4}}, 512, 0xabc}, {1, {{3, 5}, {0, 4}}, 600, 0xdef}}},
               {"optimizer/exp_avg/a.weight", {7}, {{0, {{0, 7}}, 560, 7}}}};
  return m;
}

/// Adds the right checksum.
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

TEST(ManifestText, MomentsOfBf16NeedFormat4) {
  Manifest manifest = SmallManifest();
  manifest.metadata.lineage = Lineage{};
  manifest.tensors[1].dtype = Dtype::kBf16;
  const std::string text = Print(manifest);
  EXPECT_THAT(text, testing::StartsWith("espalier-checkpoint 4\n"));
  EXPECT_THAT(text, testing::HasSubstr("tensor optimizer/exp_avg/a.weight bf16 [7]\n"));
  const Manifest read = ParseManifest(text, "M");
  EXPECT_EQ(Print(read), text);
  EXPECT_EQ(read.tensors[0].BytesOf(read.tensors[0].pieces[0]), 48);
  EXPECT_EQ(read.tensors[1].BytesOf(read.tensors[1].pieces[0]), 14);
}

TEST(ManifestText, AWindowOfStepsNeedsFormat3) {
  Manifest manifest = SmallManifest();
  manifest.metadata.lineage = Lineage{};
  EXPECT_THAT(Print(manifest), testing::StartsWith("espalier-checkpoint 2\n"));
  manifest.metadata.window = {{2.5f, 0.1f}, {1.0f / 3, 1e-30f}};
  const std::string text = Print(manifest);
  EXPECT_THAT(text, testing::StartsWith("espalier-checkpoint 3\n"));
  EXPECT_THAT(text, HasSubstr("\nlosses 3.25 3.1 2.875\nwindow 2.5 0.100000001 0.333333343 1e-30\nfile "));
  EXPECT_EQ(ParseManifest(text, "M").metadata.window, manifest.metadata.window) << "to the bit";
}

TEST(ManifestText, AGenerationInMemoryHasNoMaster) {
  Manifest manifest = SmallManifest();
  manifest.in_memory = true;
  std::erase_if(manifest.files, [](const ManifestFile& file) { return file.name == "master.h5"; });
  const std::string text = Print(manifest);
  EXPECT_THAT(text, testing::StartsWith("espalier-memory 1\nid 0123"));
  EXPECT_TRUE(ParseManifest(text, "M").in_memory);
  EXPECT_EQ(Print(ParseManifest(text, "M")), text);
  manifest.in_memory = false;
  EXPECT_THAT([&] { ParseManifest(Print(manifest), "M"); },
              testing::ThrowsMessage<UserError>(HasSubstr("file master.h5 is missing")));
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
      {"espalier-checkpoint 1", "espalier-checkpoint 5", "M:1: format '5' is not known here"},
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
      {"f32 [7]", "f64 [7]", "M:17: optimizer/exp_avg/a.weight: element type is neither f32 nor bf16"},
      {"f32 [5,4]", "bf16 [5,4]", "M:14: parameters/a.weight: element type is not f32"},
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
          ASSERT_LE(piece.offset + tensor.BytesOf(piece), read.files.at(static_cast<size_t>(piece.file)).bytes);
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace espalier
