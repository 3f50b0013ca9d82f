// What a damaged, half-written or crowded-out checkpoint does to a run: it is refused with the file named, and the one
// before it is taken. ESPALIER_FAULTS and ESPALIER_FULL_DISKS set how many random faults are tried.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <latch>
#include <numeric>
#include <random>
#include <set>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint_testing.hpp"
#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/checkpoint/run_lock.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StrEq;

constexpr Degrees kOne = {1, 1, 1, 1, 1}, kTwo = {1, 1, 2, 1, 1};

int CountFrom(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// What the UserError of `work` says; "" if there is none.
std::string Refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// --- damage
// ------------------------------------------------------------------------------------------------------------------

/// Tensors of TestTensors but the large one: each load takes a millisecond.
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

/// One fault: what was done, and what the refusal must say.
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

  /// Names the tensor too if the first byte that differs lies in a piece.
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
            piece.offset <= at && at < piece.offset + piece.Bytes())
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
  /// Two pieces of equal size, so that everything but the contents is as before.
  Damage SwapPieces() {
    while (true) {
      const ManifestTensor &a = Pick(manifest_.tensors), &b = Pick(manifest_.tensors);
      const ManifestPiece &p = Pick(a.pieces), &q = Pick(b.pieces);
      if (&p == &q || p.Bytes() != q.Bytes() || p.file != q.file) continue;
      const std::string name = manifest_.files[static_cast<size_t>(p.file)].name;
      std::string bytes = original_.at(name);
      for (int64_t i = 0; i < p.Bytes(); ++i)
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
    // Another run's MANIFEST is whole by itself, its files are not there; another step's belongs in another directory.
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

  /// What the directory holds now: no fault is tried twice.
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

  /// What a restart does: the best checkpoint that is not refused. Returns its step and, by checkpoint, why others
  /// were.
  int64_t Restart(const std::vector<std::string>& candidates, std::string& refusals) {
    const std::vector<StateTensor> tensors = SmallTensors(kOne);
    SelfWorld world;
    for (const std::string& dir : candidates) {
      RankState state(tensors, Mesh(), 0);
      int64_t step = -1;
      const std::string refusal = Refusal([&] { step = Load(dir, tensors, state.Local(), Mesh(), world).step; });
      if (refusal.empty()) return state.Mistakes(static_cast<uint64_t>(step) / 10) == 0 ? step : -1;
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
    // Found by name too: a directory without MANIFEST is no checkpoint, and does not stand before the good one.
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

// --- what ends a save
// --------------------------------------------------------------------------------------------------------

class Faults : public ::testing::Test {
 protected:
  ~Faults() override { ArmFault(""); }
  const std::string& Dir() const { return dir_.path(); }
  std::string Step(int64_t step) const { return Dir() + "/" + StepName(step); }

  TemporaryDirectory dir_;
};

TEST_F(Faults, VariableIsChecked) {
  EXPECT_THAT(Refusal([] { ArmFault("shard-date"); }),
              AllOf(HasSubstr("'shard-date' is no stage"), HasSubstr("shard-data")));
  EXPECT_THAT(Refusal([] { ArmFault("rename:burn"); }),
              AllOf(HasSubstr("'burn' is no action"), HasSubstr("kill, stop, hold, eio, enospc")));
  EXPECT_THAT(Refusal([] { ArmFault("rename:eio:0"); }), HasSubstr("'0' is no count"));
  ArmFault("rename:eio:2");
  FaultPoint("latest");
  FaultPoint("rename");
  EXPECT_EQ(Refusal([] { FaultPoint("rename", "/x"); }), "/x: rename: Input/output error (by ESPALIER_FAULT)");
  FaultPoint("rename");
}

TEST_F(Faults, ErrorsBeforeTheCommitLeaveTheOldOne) {
  ASSERT_THAT(SaveState(Dir(), kTwo, 10, 1), Each(StrEq("")));
  for (const char* stage : {"begin", "make-dir", "shard-open", "shard-layout", "shard-data", "shard-fsync",
                            "shard-check", "gather", "deck", "master", "manifest", "fsync-dir", "announce", "rename"})
    for (const char* action : {"eio", "enospc"}) {
      ArmFault(fmt::format("{}:{}", stage, action));
      EXPECT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(AllOf(HasSubstr("step-00000020 is not saved"), HasSubstr(stage))))
          << stage;
      EXPECT_THAT(FindCheckpoints(Dir()), ElementsAre(Step(10))) << stage;
      EXPECT_THAT(LoadState(Step(10), kOne, 1), Each(StrEq(""))) << stage;
    }
  ASSERT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(StrEq("")));
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020"));
}

TEST_F(Faults, ErrorsAfterTheCommitAreWarnings) {
  int64_t step = 10;
  for (const char* stage : {"commit", "latest", "settled", "retention", "remove"}) {
    ASSERT_THAT(SaveState(Dir(), kTwo, step, 1, 1), Each(StrEq("")));
    step += 10;
    ArmFault(fmt::format("{}:eio", stage));
    EXPECT_THAT(SaveState(Dir(), kTwo, step, 2, 1), Each(StrEq(""))) << stage;
    EXPECT_EQ(FindLatest(Dir()), Step(step)) << stage;
    EXPECT_THAT(LoadState(Step(step), kOne, 2), Each(StrEq(""))) << stage;
    SettleCheckpoints(Dir());
    EXPECT_EQ(FindLatest(Dir()), Step(step)) << stage;
    EXPECT_THAT(Names(Dir()), Each(::testing::Not(HasSubstr("del-")))) << stage;
    step += 10;
  }
}

TEST_F(Faults, ADeadReplacementIsUndone) {
  ASSERT_THAT(SaveState(Dir(), kTwo, 10, 1), Each(StrEq("")));
  ASSERT_THAT(SaveState(Dir(), kTwo, 20, 2), Each(StrEq("")));
  // Where entries cannot be exchanged, a run may end between the two renames.
  const std::string id = "0123456789abcdef0123456789abcdef";
  fs::rename(Step(20), Dir() + "/del-00000020-" + id);
  fs::create_directory(Dir() + "/tmp-00000020-" + id);
  fs::create_directory(Dir() + "/del-00000030-" + id);
  SettleCheckpoints(Dir());
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020"));
  EXPECT_THAT(LoadState(Step(20), kOne, 2), Each(StrEq("")));
  // The same for what was moved aside.
  fs::create_directory(Dir() + "/kept-00000030-" + id);
  WriteBytes(Dir() + "/kept-00000030-" + id + "/notes.txt", "x");
  fs::create_directory(Dir() + "/tmp-00000030-" + id);
  SettleCheckpoints(Dir());
  EXPECT_THAT(Names(Dir()), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
  EXPECT_THAT(Names(Step(30)), ElementsAre("notes.txt"));
}

/// Calls that a signal interrupts, by the number that are still to come; fsync of directories that the file system
/// refuses.
int interrupted_fsyncs = 0, interrupted_fallocates = 0, refused_directories = 0;

TEST_F(Faults, InterruptedCallsAreCalledAgain) {
  interrupted_fsyncs = interrupted_fallocates = 50;
  EXPECT_THAT(SaveState(Dir(), kOne, 10, 1), Each(StrEq("")));
  EXPECT_EQ(interrupted_fsyncs, 0);
  EXPECT_EQ(interrupted_fallocates, 0);
  EXPECT_THAT(LoadState(Step(10), kTwo, 1), Each(StrEq("")));
}

TEST_F(Faults, DirectoriesThatCannotBeSyncedFailNoSave) {
  refused_directories = 1000;
  EXPECT_THAT(SaveState(Dir(), kOne, 10, 1), Each(StrEq("")));
  EXPECT_LT(refused_directories, 1000);
  refused_directories = 0;
  EXPECT_THAT(LoadState(Step(10), kTwo, 1), Each(StrEq("")));
}

// --- full disks
// ---------------------------------------------------------------------------------------------------------------

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::mount("tmpfs", home_.path().c_str(), "tmpfs", 0, "size=48m") != 0)
      GTEST_SKIP() << "no tmpfs can be mounted here: " << std::strerror(errno);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(home_.path().c_str(), MNT_DETACH);
  }
  int64_t Free() const {
    struct statvfs status {};
    ::statvfs(home_.path().c_str(), &status);
    return static_cast<int64_t>(status.f_bavail * status.f_frsize);
  }
  /// Takes room until `left` bytes are free.
  void FillUp(int64_t left) const {
    const int64_t bytes = Free() - left;
    std::ofstream ballast(home_.path() + "/ballast", std::ios::binary | std::ios::app);
    const std::string block(64 << 10, 'x');
    for (int64_t at = 0; at < bytes && ballast; at += static_cast<int64_t>(block.size())) ballast << block;
  }

  TemporaryDirectory home_;
  bool mounted_ = false;
};

TEST_F(FullDisk, LosesNothing) {
  const std::string dir = home_.path() + "/checkpoints";
  std::mt19937 random(7);
  ASSERT_THAT(SaveState(dir, kTwo, 10, 1, 1), Each(StrEq("")));
  constexpr int64_t kAlmost = 12 << 20;  // a checkpoint fits, and little more
  int64_t kept = 10, failed = 0;
  for (int i = 0; i < CountFrom("ESPALIER_FULL_DISKS", 5); ++i) {
    const int64_t step = kept + 10, left = static_cast<int64_t>(random() % (12 << 20));
    // Either the disk is full before the save, or it fills while the save writes.
    const bool before = random() % 3 == 0;
    FillUp(before ? left : kAlmost);
    std::jthread filler([&](std::stop_token stop) {
      while (!before && !stop.stop_requested() && Names(dir).size() < 3) std::this_thread::yield();
      if (!before) FillUp(left / 8);
    });
    const std::vector<std::string> errors = SaveState(dir, kTwo, step, static_cast<uint64_t>(step), 1);
    filler.request_stop();
    filler.join();
    EXPECT_THAT(errors, Each(StrEq(errors[0])));
    if (errors[0].empty()) kept = step;
    failed += !errors[0].empty();
    EXPECT_EQ(FindLatest(dir), dir + "/" + StepName(kept)) << errors[0];
    EXPECT_THAT(LoadState(dir + "/" + StepName(kept), kOne, kept == 10 ? 1 : static_cast<uint64_t>(kept)),
                Each(StrEq("")));
    fs::remove(home_.path() + "/ballast");
  }
  EXPECT_GT(failed, 0);
  ASSERT_THAT(SaveState(dir, kTwo, kept + 10, 9, 1), Each(StrEq("")));
  fmt::print("{} saves failed for want of room\n", failed);
}

// --- asynchronous saves
// -------------------------------------------------------------------------------------------------------

/// A world whose threads stand still at their first meeting until they are let go.
class HeldWorld final : public World {
 public:
  HeldWorld(Meeting& meeting, int rank, std::latch& gate) : inner_(meeting, rank), gate_(gate) {}
  int Rank() const override { return inner_.Rank(); }
  int Size() const override { return inner_.Size(); }
  void Barrier() override { gate_.wait(), inner_.Barrier(); }
  std::vector<std::string> Gather(const std::string& bytes) override { return gate_.wait(), inner_.Gather(bytes); }
  std::string Broadcast(const std::string& bytes) override { return gate_.wait(), inner_.Broadcast(bytes); }
  int64_t Max(int64_t value) override { return gate_.wait(), inner_.Max(value); }
  uint64_t Or(uint64_t bits) override { return gate_.wait(), inner_.Or(bits); }

 private:
  ThreadWorld inner_;
  std::latch& gate_;
};

/// Runs `work` on two ranks, each with its state and a AsyncSaver whose writers wait for `gate`.
std::vector<std::string> WithSavers(const std::string& dir, std::latch& gate,
                                    const std::function<void(World&, RankState&, AsyncSaver&)>& work) {
  const Mesh mesh(kTwo);
  const std::vector<StateTensor> tensors = TestTensors(kTwo);
  Meeting writers(2);
  return OnRanks(2, [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    AsyncSaver saver({dir, 3}, tensors, state.Local(), mesh, world,
                     std::make_unique<HeldWorld>(writers, world.Rank(), gate));
    work(world, state, saver);
  });
}

/// States as a run has them: all in one memory, in another order than by name; where sizes are whole lines, copied at
/// once.
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
    saver.Save(TestMetadata(20));  // waits for the one before it
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

// --- one run at a time
// --------------------------------------------------------------------------------------------------------

TEST_F(Faults, ASecondRunIsRefusedAndADeadOnesLockTakenOver) {
  const std::string dir = Dir() + "/run";
  {
    const RunLock lock(dir);
    EXPECT_EQ(lock.left_by(), "");
    EXPECT_THAT(Refusal([&] { RunLock second(dir); }), AllOf(HasSubstr("another run is in this directory (host "),
                                                             HasSubstr(fmt::format("process {}", ::getpid()))));
  }
  EXPECT_EQ(RunLock(dir).left_by(), "");
  const pid_t child = ::fork();
  if (child == 0) {
    RunLock* lock = new RunLock(dir);
    ::_exit(lock->left_by().empty() ? 0 : 1);  // without letting go
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(RunLock(dir).left_by(), HasSubstr(fmt::format("process {}", child)));
}

TEST_F(Faults, ARemovedLockIsNoticed) {
  const std::string dir = Dir() + "/run";
  RunLock first(dir);
  EXPECT_EQ(first.WhyLost(), "");
  fs::remove(dir + "/run.lock");
  EXPECT_EQ(first.WhyLost(), "");  // nobody else: it is made again
  EXPECT_THAT(Refusal([&] { RunLock second(dir); }), HasSubstr("another run is in this directory"));
  fs::remove(dir + "/run.lock");
  {
    RunLock second(dir);
    EXPECT_THAT(first.WhyLost(),
                AllOf(HasSubstr("another run has taken the directory (host "), HasSubstr("this one ends")));
    EXPECT_EQ(second.WhyLost(), "");
  }
  EXPECT_EQ(first.WhyLost(), "");  // it has ended
  EXPECT_THAT(Refusal([&] { RunLock third(dir); }), HasSubstr("another run is in this directory"));
}

}  // namespace
}  // namespace espalier

// The linker takes these in place of the C library's.
extern "C" int fsync(int file) {
  struct stat status {};
  if (espalier::interrupted_fsyncs > 0) return --espalier::interrupted_fsyncs, errno = EINTR, -1;
  if (espalier::refused_directories > 0 && ::fstat(file, &status) == 0 && S_ISDIR(status.st_mode))
    return --espalier::refused_directories, errno = EINVAL, -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (espalier::interrupted_fallocates > 0) return --espalier::interrupted_fallocates, errno = EINTR, -1;
  return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
}
