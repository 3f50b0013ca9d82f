// Faults drawn at random in a checkpoint: each is refused by name, and the previous checkpoint is loaded.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>

#include "checkpoint_fixture.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StrEq;

/// The tensors of TestTensors except the large one: each load takes a millisecond.
std::vector<StateTensor> SmallTensors(const Degrees& degrees) {
  std::vector<StateTensor> tensors = TestTensors(degrees);
  std::erase_if(tensors, [](const StateTensor& t) { return t.name.ends_with("lm_head.weight"); });
  return tensors;
}

void SaveSmall(const std::string& dir, int64_t step, uint64_t salt) {
  const Mesh mesh(kTwo);
  const std::vector<StateTensor> tensors = SmallTensors(kTwo);
  const auto errors = OnRanks(2, [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(salt);
    Metadata metadata = TestMetadata(step);
    metadata.deck = fmt::format("[run]\nsteps = {}\n", salt);
    metadata.proof = Proof{2.5f, "fp32", static_cast<uint32_t>(salt)};
    Save(dir, metadata, tensors, state.Local(), mesh, world, 9);
  });
  ASSERT_THAT(errors, Each(StrEq("")));
}

/// One fault: the change, and the expected refusal.
struct Damage {
  std::string what;
  std::vector<std::string> named;
};

class Campaign : public ::testing::Test {
 protected:
  void SetUp() override {
    SaveSmall(Dir(), 10, 1);
    SaveSmall(Dir(), 20, 2);
    SaveSmall(home_.path() + "/other", 20, 3);
    for (const std::string& name : Names(Target())) original_[name] = ReadBytes(Target() + "/" + name);
    manifest_ = ReadManifest(Target());
  }

  std::string Dir() const { return home_.path() + "/checkpoints"; }
  std::string Target() const { return Dir() + "/step-00000020"; }

  void PutBack() const {
    fs::remove_all(Target());
    fs::create_directory(Target());
    for (const auto& [name, bytes] : original_) WriteBytes(Target() + "/" + name, bytes);
  }

  template <typename List>
  const auto& Pick(const List& list) {
    return *std::next(list.begin(), static_cast<std::ptrdiff_t>(random_() % list.size()));
  }
  std::string PickFile() { return Pick(original_).first; }
  std::string PickShard() { return random_() % 2 == 0 ? "shard-00000.h5" : "shard-00001.h5"; }

  /// Also names the tensor if the first byte that differs is in a stored box.
  Damage Replace(const std::string& what, const std::string& name, const std::string& bytes) {
    const std::string& before = original_.at(name);
    WriteBytes(Target() + "/" + name, bytes);
    Damage damage{what + " in " + name, {name}};
    const size_t least = std::min(before.size(), bytes.size());
    const auto at =
        std::mismatch(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(least), bytes.begin()).first -
        before.begin();
    for (const ManifestTensor& tensor : manifest_.tensors)
      for (const ManifestPiece& piece : tensor.pieces)
        if (before.size() == bytes.size() && manifest_.files[static_cast<size_t>(piece.file)].name == name &&
            piece.offset <= at && at < piece.offset + tensor.BytesOf(piece))
          damage.named.push_back(tensor.name);
    return damage;
  }

  Damage FlipBit() {
    const std::string name = PickFile();
    std::string bytes = original_.at(name);
    bytes[random_() % bytes.size()] ^= static_cast<char>(1 << random_() % 8);
    return Replace("a flipped bit", name, bytes);
  }
  Damage ZeroPage() {
    while (true) {
      const std::string name = PickFile();
      std::string bytes = original_.at(name);
      const size_t page = random_() % (bytes.size() / 4096 + 1) * 4096;
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(std::min(page, bytes.size())),
                bytes.begin() + static_cast<std::ptrdiff_t>(std::min(page + 4096, bytes.size())), '\0');
      if (bytes != original_.at(name)) return Replace("a zeroed page", name, bytes);
    }
  }
  Damage Truncate() {
    const std::string name = PickFile();
    return Replace("a truncation", name, original_.at(name).substr(0, random_() % original_.at(name).size()));
  }
  Damage Grow() {
    const std::string name = PickFile();
    return Replace("bytes too many", name, original_.at(name) + std::string(1 + random_() % 5000, '\0'));
  }
  Damage Lose() {
    const std::string name = PickFile();
    fs::remove(Target() + "/" + name);
    return {"loss of " + name, {name}};
  }
  Damage AddFile() {
    const std::string name = Pick(std::array<std::string, 3>{"shard-00002.h5", "shard-99999.h5", "master-old.h5"});
    WriteBytes(Target() + "/" + name, original_.at(PickShard()));
    return {"an extra file", {name}};
  }
  Damage SwapShards() {
    fs::rename(Target() + "/shard-00000.h5", Target() + "/x");
    fs::rename(Target() + "/shard-00001.h5", Target() + "/shard-00000.h5");
    fs::rename(Target() + "/x", Target() + "/shard-00001.h5");
    return {"swapped shards", {"shard-00000.h5", "shard-00001.h5"}};
  }
  /// Two boxes of equal size, so that only the contents change.
  Damage SwapPieces() {
    while (true) {
      const ManifestTensor &a = Pick(manifest_.tensors), &b = Pick(manifest_.tensors);
      const ManifestPiece &p = Pick(a.pieces), &q = Pick(b.pieces);
      if (&p == &q || a.BytesOf(p) != b.BytesOf(q) || p.file != q.file) continue;
      const std::string name = manifest_.files[static_cast<size_t>(p.file)].name;
      std::string bytes = original_.at(name);
      for (int64_t i = 0; i < a.BytesOf(p); ++i)
        std::swap(bytes[static_cast<size_t>(p.offset + i)], bytes[static_cast<size_t>(q.offset + i)]);
      Damage damage = Replace("swapped pieces", name, bytes);
      damage.named = {name, a.name, b.name};
      return damage;
    }
  }
  Damage Stale(const std::string& from, const std::string& what) {
    const std::string name = PickFile();
    const std::string bytes = ReadBytes(from + "/" + name);
    if (bytes == original_.at(name)) return Stale(from, what);  // the same in both
    WriteBytes(Target() + "/" + name, bytes);
    // Another run's MANIFEST is whole by itself, but its files do not exist here; another step's belongs in another
    // directory.
    return {name + " of another " + what, {name == "MANIFEST" && what == "run" ? "deck.toml" : name}};
  }
  Damage NoFile() {
    const std::string name = PickFile(), path = Target() + "/" + name;
    fs::remove(path);
    switch (random_() % 3) {
      case 0:
        WriteBytes(home_.path() + "/aside", original_.at(name));
        fs::create_symlink(home_.path() + "/aside", path);
        return {"a link instead of " + name, {name}};
      case 1:
        fs::create_directory(path);
        return {"a directory instead of " + name, {name}};
      default:
        EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
        return {"a pipe instead of " + name, {name}};
    }
  }

  Damage Inject() {
    switch (random_() % 13) {
      case 0:
        return ZeroPage();
      case 1:
      case 11:
        return Truncate();
      case 2:
        return Lose();
      case 3:
        return AddFile();
      case 4:
        return SwapShards();
      case 5:
        return SwapPieces();
      case 6:
        return Stale(Dir() + "/step-00000010", "step");
      case 7:
        return Stale(home_.path() + "/other/step-00000020", "run");
      case 8:
        return NoFile();
      case 9:
        return Grow();
      default:
        return FlipBit();
    }
  }

  /// The current content of the directory: no fault is tried twice.
  std::string State() const {
    std::string state;
    for (const std::string& name : Names(Target())) {
      const fs::file_status status = fs::symlink_status(Target() + "/" + name);
      const std::string bytes = fs::is_regular_file(status) ? ReadBytes(Target() + "/" + name) : "";
      state += fmt::format("{} {} {} {:08x}\n", name, static_cast<int>(status.type()), bytes.size(),
                           Crc32c(bytes.data(), bytes.size()));
    }
    return state;
  }
  Damage InjectAnother() {
    while (true) {
      Damage damage = Inject();
      if (tried_.insert(State()).second) return damage;
      PutBack();
    }
  }

  /// The choice of a restart: the best checkpoint that is not refused. Returns its step and, by checkpoint, why others
  /// were refused.
  int64_t Restart(const std::vector<std::string>& candidates, std::string& refusals) {
    const std::vector<StateTensor> tensors = SmallTensors(kOne);
    SelfWorld world;
    for (const std::string& dir : candidates) {
      RankState state(tensors, Mesh(), 0);
      int64_t step = -1;
      const std::string refusal = MessageOf([&] { step = Load(dir, tensors, state.Local(), Mesh(), world).step; });
      if (refusal.empty()) return state.Errors(static_cast<uint64_t>(step) / 10) == 0 ? step : -1;
      refusals += refusal + "\n";
    }
    return -1;
  }

  TemporaryDirectory home_;
  std::map<std::string, std::string> original_;
  Manifest manifest_;
  std::set<std::string> tried_;
  std::mt19937 random_{20260101};
};

TEST_F(Campaign, EveryFaultIsRefusedAndTheOneBeforeIsTaken) {
  const int faults = CountFrom("ESPALIER_FAULTS", 300);
  std::map<std::string, int> kinds;
  const std::vector<std::string> both = {Target(), Dir() + "/step-00000010"};
  std::string refusals;
  ASSERT_EQ(Restart(both, refusals), 20) << refusals;
  for (int i = 0; i < faults; ++i) {
    const Damage damage = InjectAnother();
    ++kinds[damage.what.substr(
        0, damage.what.find(" in ") == std::string::npos ? damage.what.size() : damage.what.find(" in "))];
    refusals.clear();
    ASSERT_EQ(Restart(both, refusals), 10) << "fault " << i << ": " << damage.what << "\n" << refusals;
    for (const std::string& name : damage.named)
      ASSERT_THAT(refusals, HasSubstr(name)) << "fault " << i << ": " << damage.what;
    // Also found by name: a directory without MANIFEST is no checkpoint, and does not come before the good one.
    const std::vector<std::string> found = FindCheckpoints(Dir());
    ASSERT_THAT(found, Contains(both[1])) << damage.what;
    ASSERT_EQ(Restart(found, refusals), 10) << damage.what;
    PutBack();
  }
  refusals.clear();
  ASSERT_EQ(Restart(both, refusals), 20) << refusals;
  for (const auto& [kind, count] : kinds) fmt::print("{:>6}  {}\n", count, kind);
}

TEST_F(Campaign, LoadTakesLittleBesideTheState) {
  constexpr int64_t kRows = 24'000, kColumns = 1'000, kState = kRows * kColumns * 4;
  const auto tensors_for = [&](const Degrees& degrees) {
    Type type = MakeType(Dtype::kF32, {kRows, kColumns});
    if (degrees[2] > 1) type.placements.dims[1].push_back(Axis::kDpShard);
    return std::vector<StateTensor>{{"parameters/large", type, 0}};
  };
  const std::string dir = home_.path() + "/large";
  ASSERT_THAT(OnRanks(2,
                      [&](World& world) {
                        const std::vector<StateTensor> tensors = tensors_for(kTwo);
                        RankState state(tensors, Mesh(kTwo), world.Rank());
                        Save(dir, TestMetadata(1), tensors, state.Local(), Mesh(kTwo), world, 1);
                      }),
              Each(StrEq("")));
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<float> memory(kRows * kColumns, 1.0f);
    const std::vector<StateTensor> tensors = tensors_for(kOne);
    SelfWorld world;
    const int64_t before = PeakResidentMemory();
    Load(dir + "/step-00000001", tensors, {{&tensors[0], memory.data()}}, Mesh(), world);
    ::_exit(PeakResidentMemory() - before <= kState / 4 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the load took more than 0.25 x the state beside it";
}

}  // namespace
}  // namespace espalier
