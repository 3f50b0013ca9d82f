// The cost of saving, loading and copying a state, each beside the same bytes moved barely, for
// tests/bench/checkpoint.py:
//   [mpirun -n RANKS] checkpoint_bench DIR MEGABYTES PAIRS
// The state is that of a model of square matrices, cut over dp_shard. Each rank writes and reads one bare file in DIR,
// as large as its shard, in blocks of 1 MiB, with fsync. Pairs follow one another closely and change order. Before a
// read the files leave the page cache (posix_fadvise; files on the disk only). Prints one line of JSON a pair: seconds,
// the slowest rank's.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>

#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/comm/mpi_world.hpp"
#include "espalier/executor/arena.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDim = 1024, kBlock = int64_t{1} << 20, kMatrix = kDim * kDim * 4;

std::vector<StateTensor> StateOf(int64_t bytes, const Mesh& mesh) {
  std::vector<StateTensor> tensors;
  for (int64_t i = 0; i < bytes / kMatrix / 3; ++i)
    for (const char* prefix : {"parameters", "optimizer/exp_avg", "optimizer/exp_avg_sq"}) {
      StateTensor tensor{fmt::format("{}/model.layers.{}.weight", prefix, i), MakeType(Dtype::kF32, {kDim, kDim}), 0};
      if (mesh.Degree(Axis::kDpShard) > 1) tensor.type.placements.dims[0] = {Axis::kDpShard};
      tensors.push_back(std::move(tensor));
    }
  return tensors;
}

void Require(bool done, const char* what) {
  if (!done) throw UserError(ExitStatus::kFault, fmt::format("{}: {}", what, std::strerror(errno)));
}

class Bench {
 public:
  Bench(World& world, std::unique_ptr<World> writers, const std::string& dir, int64_t megabytes)
      : world_(world),
        mesh_({1, 1, world.Size(), 1, 1}),
        dir_(dir),
        bare_(fmt::format("{}/bare-{}", dir, world.Rank())),
        tensors_(StateOf(megabytes << 20, mesh_)),
        state_(static_cast<int64_t>(tensors_.size()) * kMatrix / world.Size()),
        copy_(state_.bytes()),
        read_(state_.bytes()) {
    for (int64_t at = 0; at < state_.bytes(); at += 8)
      *reinterpret_cast<int64_t*>(state_.At(at, 8)) = at * 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < tensors_.size(); ++i)
      local_.push_back(
          {&tensors_[i], state_.At(static_cast<int64_t>(i) * kMatrix / world.Size(), kMatrix / world.Size())});
    saver_.emplace(AsyncSaver::Options{dir + "/beside", 1}, tensors_, local_, mesh_, world, std::move(writers));
    CHECK(saver_->Asynchronous(), "{}", saver_->refusal());
    copies_.emplace(tensors_, local_, mesh_, world);
  }

  void Pair(int number) {
    double save = 0, write = 0, load = 0, read = 0, warm_load = 0, warm_read = 0, blocked = 0, copy = 0;
    InTurn(
        number, [&] { save = SaveState(); }, [&] { write = Seconds([&] { WriteBare(); }); });
    InTurn(
        number, [&] { ColdAndWarm(load, warm_load, [&] { LoadState(); }); },
        [&] { ColdAndWarm(read, warm_read, [&] { ReadBare(); }); });
    InTurn(
        number, [&] { blocked = Blocked(); }, [&] { copy = Seconds([&] { CopyBare(); }); });
    const double compare = Seconds([&] {
      copies_->SumWritten();
      copies_->SumOthers();
      CHECK(!copies_->Compare(), "copies differ");
    });
    const double agree = Seconds([&] {
      for (int i = 0; i < 100; ++i) world_.Or(0);
    });
    if (world_.Rank() == 0)
      fmt::print(
          "{{\"bytes\": {}, \"save\": {}, \"write\": {}, \"load\": {}, \"read\": {}, \"warm_load\": {}, \"warm_read\": "
          "{}, \"blocked\": {}, \"copy\": {}, \"compare\": {}, \"agree\": {}}}\n",
          state_.bytes() * world_.Size(), save, write, load, read, warm_load, warm_read, blocked, copy, compare,
          agree / 100);
    std::fflush(stdout);
  }

 private:
  static void InTurn(int number, const std::function<void()>& one, const std::function<void()>& other) {
    number % 2 == 0 ? one() : other();
    number % 2 == 0 ? other() : one();
  }
  /// The time of the slowest rank.
  double Slowest(double seconds) { return static_cast<double>(world_.Max(static_cast<int64_t>(seconds * 1e9))) / 1e9; }
  double Seconds(const std::function<void()>& work) {
    world_.Barrier();
    const auto start = std::chrono::steady_clock::now();
    work();
    return Slowest(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  void ColdAndWarm(double& cold, double& warm, const std::function<void()>& work) {
    ForgetFiles();
    cold = Seconds(work);
    warm = Seconds(work);
  }

  double SaveState() {
    return Slowest(
        Save(dir_ + "/checkpoints", {step_++, 0, "bench", "bench", {}, ""}, tensors_, local_, mesh_, world_, 1)
            .committed_ms /
        1e3);
  }
  void LoadState() { Load(dir_ + "/checkpoints/" + StepName(step_ - 1), tensors_, local_, mesh_, world_); }
  /// Alone, then waited for, so that it is the copy that is measured.
  double Blocked() {
    world_.Barrier();
    saver_->Save({step_, 0, "bench", "bench", {}, ""});
    saver_->Wait();
    const SaveOutcome outcome = saver_->Ended().back();
    CHECK(outcome.committed, "{}", outcome.reasons.empty() ? "" : outcome.reasons.front());
    return Slowest(outcome.result.blocked_ms / 1e3);
  }

  void WriteBare() {
    const int file = ::open(bare_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    Require(file >= 0, "open");
    for (int64_t at = 0; at < state_.bytes(); at += kBlock)
      Require(::pwrite(file, state_.At(at, kBlock), kBlock, at) == kBlock, "write");
    Require(::fsync(file) == 0 && ::close(file) == 0, "fsync");
  }
  void ReadBare() {
    const int file = ::open(bare_.c_str(), O_RDONLY);
    Require(file >= 0, "open");
    for (int64_t at = 0; at < state_.bytes(); at += kBlock)
      Require(::pread(file, read_.At(at, kBlock), kBlock, at) == kBlock, "read");
    ::close(file);
  }
  void CopyBare() {
    std::memcpy(copy_.At(0, state_.bytes()), state_.At(0, state_.bytes()), static_cast<size_t>(state_.bytes()));
  }
  void ForgetFiles() {
    world_.Barrier();
    if (world_.Rank() != 0) return;
    for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
      if (!entry.is_regular_file()) continue;
      const int file = ::open(entry.path().c_str(), O_RDONLY);
      ::fdatasync(file);
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
  }

  World& world_;
  const Mesh mesh_;
  const std::string dir_, bare_;
  const std::vector<StateTensor> tensors_;
  HostArena state_, copy_, read_;
  std::vector<LocalTensor> local_;
  std::optional<AsyncSaver> saver_;
  std::optional<Copies> copies_;
  int64_t step_ = 1;
};

void Run(World& world, std::unique_ptr<World> writers, char** argv) {
  Bench bench(world, std::move(writers), argv[1], std::atoll(argv[2]));
  for (int pair = 0; pair < std::atoi(argv[3]); ++pair) bench.Pair(pair);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  using namespace espalier;
  if (argc != 4) return fmt::print(stderr, "checkpoint_bench DIR MEGABYTES PAIRS\n"), 2;
  InitializeStorage();
  if (!StartedByLauncher()) {
    SelfWorld world;
    Run(world, std::make_unique<SelfWorld>(), argv);
  } else {
    MpiWorld world;
    Run(world, world.Duplicate(), argv);
  }
}
