// espalier selftest: an ordered list of checks, each with a verdict.
#include "espalier/train/selftest.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/history/run_history.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/message_of.hpp"
#include "espalier/util/write_whole.hpp"
#include "train/job.hpp"
#include "train/measuring/ladder.hpp"
#include "train/selftest/decks.hpp"
#include "train/selftest/kernels.hpp"
#include "train/selftest/scratch.hpp"
#include "train/startup/check_launcher.hpp"
#include "train/train_in.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

/// Two layouts add in different orders; eight steps of Adam amplify the difference.
constexpr double kLossBound = 1e-5;
constexpr int64_t kMaxMessageBytes = int64_t{4} << 20;
constexpr int kMaxHosts = 8;  ///< number of hosts that are named

enum class Verdict : uint8_t { kPassed, kFailed, kSkipped };
constexpr const char* kVerdictNames[] = {"passed", "FAILED", "skipped"};

/// The result of a check: figures, or why it failed or was skipped. Rank 0's counts.
struct Finding {
  Verdict verdict = Verdict::kPassed;
  std::string text;
};
Finding Failed(std::string text) { return {Verdict::kFailed, std::move(text)}; }
Finding Skipped(std::string text) { return {Verdict::kSkipped, std::move(text)}; }

/// The largest relative difference of the losses of steps after `first`; infinite if one is missing.
double Difference(const std::vector<double>& a, const std::vector<double>& b, size_t first) {
  double largest = a.size() == b.size() && a.size() > first ? 0 : INFINITY;
  for (size_t i = first; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]) / std::abs(a[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

std::string PlaceText(const CollectiveKey& key) {
  return fmt::format("{} of {} on {}", key.kind == OpKind::kSend ? "message" : Name(key.kind),
                     Counted(key.place.ranks, "rank"), Counted(key.place.nodes, "node"));
}

class Checks {
 public:
  Checks(const SelfTestOptions& options, World& world, MpiWorld* mpi)
      : options_(options), world_(world), mpi_(mpi), folder_(MakeScratch(world, options.folder)) {}

  ExitStatus Run() {
    threads_ = AgreeOnThreads(ParseDeck(SelfTestDeck(1), "selftest").deck, world_).count;
    SayHeading();
    OnAllRanks(world_, [&] {
      if (IsRankZero()) WriteInputs();
    });
    Check(
        "kernels", [&] { return Kernels(); },
        "a processor, its memory or the build computes wrongly: repeat it on the host that is named; if another "
        "ESPALIER_ISA passes there, report the processor and what espalier info prints");
    Check(
        "messages", [&] { return Messages(); },
        "MPI does not carry messages between these ranks: doc/cluster.md, Networks");
    Check(
        "run", [&] { return RunOnAll(); },
        "repeat it on one node, then on pairs of nodes, to find the one that computes or sends wrongly");
    Check(
        "restart", [&] { return Restart(); },
        "if run has passed, the file system has changed the checkpoint, or only the second layout is wrong: repeat "
        "it with --dir in another file system, then on one node");
    Check(
        "checkpoint", [&] { return OnRoot([&] { return Verify(); }); },
        "the file system lost or changed bytes: repeat it with --dir in another file system");
    Check(
        "gpu", [&] { return OnRoot([&] { return Gpus(); }); }, "doc/gpu.md, Check a machine");
    return Finish();
  }

 private:
  using Work = std::function<Finding()>;

  bool IsRankZero() const { return world_.Rank() == 0; }

  void Say(const std::string& line) const {
    if (!IsRankZero()) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  std::string PathOf(const std::string& name) const { return (std::filesystem::path(folder_) / name).string(); }

  void SayHeading() {
    std::set<std::string> hosts;
    for (const std::string& host : world_.Gather(HostName())) hosts.insert(host);
    std::string names;
    for (int named = 0; const std::string& host : hosts)
      if (++named <= kMaxHosts) names += (named > 1 ? ", " : "") + host;
    if (hosts.size() > kMaxHosts) names += ", ...";
    Say(fmt::format("espalier {} ({}), {} on {} ({}), {} each", kVersion, kGitHash, Counted(world_.Size(), "rank"),
                    Counted(std::ssize(hosts), "host"), names, Counted(threads_, "thread")));
  }

  void WriteInputs() const {
    WriteWhole(PathOf("selftest.toml"), SelfTestDeck(world_.Size()));
    WriteWhole(PathOf("DATA.txt"), SelfTestData());
  }

  /// Errors that all ranks share make the check fail; any other error with several ranks ends the job, here or in
  /// RunJob.
  void Check(const char* name, const Work& work, const char* remedy) {
    const auto began = Clock::now();
    Finding finding;
    try {
      finding = work();
    } catch (const AgreedError& error) {
      finding = Failed(error.what());
    }
    if (!IsRankZero()) return;
    Say(fmt::format("{:<11} {:<8} {:5.1f} s  {}", name, kVerdictNames[static_cast<int>(finding.verdict)],
                    MillisecondsSince(began) / 1e3, finding.text));
    if (finding.verdict != Verdict::kFailed) return;
    Say(fmt::format("{:<21} what to do: {}", "", remedy));
    failed_.emplace_back(name);
  }

  /// The result on rank 0; an error makes the check fail on all ranks.
  Finding OnRoot(const Work& work) const {
    Finding finding;
    OnAllRanks(world_, [&] {
      if (IsRankZero()) finding = work();
    });
    return finding;
  }

  // The checks, in order.

  Finding Kernels() {
    KernelsOfRank mine;
    OnAllRanks(
        world_, [&] { mine = CompareKernels(threads_); }, AnyFailureIs(ExitStatus::kFault));
    KernelsOfRank worst;
    std::set<std::string> levels;
    for (const KernelsOfRank& rank : Gathered(world_, mine)) {
      levels.insert(rank.level);
      if (rank.worst.share >= worst.worst.share) worst = rank;
    }
    if (worst.worst.share > 1)
      return Failed(fmt::format("on {}, level {}: {} of {} differs from the reference by {:.3g} of what is allowed",
                                worst.host, worst.level, worst.worst.call, worst.deck, worst.worst.share));
    return {
        Verdict::kPassed,
        fmt::format("{} calls of {} kernels per rank, level {}: they differ from the reference by {:.2g} of what is "
                    "allowed, or less",
                    worst.calls, worst.kernels, fmt::join(levels, ", "), worst.worst.share)};
  }

  Finding Messages() {
    if (mpi_ == nullptr || world_.Size() == 1) return Skipped("one rank: mpirun -n N espalier selftest, or srun");
    Deck deck = ParseDeck(SelfTestDeck(world_.Size()), "selftest").deck;
    const CostTable table = MeasureTransfers(
        world_, mpi_, [&] { return ChooseDevice(deck, world_, mpi_, threads_); }, kMaxMessageBytes);
    std::string text;
    for (const auto& [key, points] : table.collectives) {
      if (key.kind != OpKind::kSend && key.kind != OpKind::kAllReduce && key.kind != OpKind::kAllToAll) continue;
      const auto& [bytes, most] = *points.rbegin();
      text += fmt::format("{}{}: {:.1f} us of {}, {:.2f} GB/s of {}", text.empty() ? "" : fmt::format("\n{:<30}", ""),
                          PlaceText(key), points.begin()->second.us, HumanBytes(points.begin()->first),
                          static_cast<double>(bytes) / most.us * 1e-3, HumanBytes(bytes));
    }
    return {Verdict::kPassed, text};
  }

  /// All ranks must do together what a single rank computes alone on its CPU.
  Finding RunOnAll() {
    OnAllRanks(world_, [&] {
      SelfWorld alone;
      if (IsRankZero()) Train(alone, nullptr, "alone", LayoutAlone());
    });
    Train(world_, mpi_, "run", FirstLayout());
    return OnRoot([&] { return CompareWithOneRank(); });
  }

  Finding CompareWithOneRank() const {
    const std::vector<double> alone = LossesOf("alone"), all = LossesOf("run");
    const double difference = Difference(alone, all, 0);
    if (difference > kLossBound)
      return Failed(
          fmt::format("losses differ from those of one rank by {:.3g}, allowed are {:.0e}", difference, kLossBound));
    return {Verdict::kPassed, fmt::format("{} steps, loss {:.4f} to {:.4f}: those of one rank to {:.1e}; dp_shard {}",
                                          all.size(), all.front(), all.back(), difference, world_.Size())};
  }

  Finding Restart() {
    const std::vector<std::string> layout = SecondLayout(world_.Size());
    Train(world_, mpi_, "restart", layout, PathOf("run/checkpoints/" + StepName(kRestartStep)));
    return OnRoot([&] { return CompareWithFirstLayout(layout); });
  }

  Finding CompareWithFirstLayout(const std::vector<std::string>& layout) const {
    std::vector<double> expected = LossesOf("run");
    expected.erase(expected.begin(), expected.begin() + std::min<int64_t>(kRestartStep, std::ssize(expected)));
    const double difference = Difference(expected, LossesOf("restart"), 0);
    const std::string text = fmt::format("from step {} with {}", kRestartStep, fmt::join(layout, " "));
    if (difference > kLossBound)
      return Failed(fmt::format("{}: losses differ from those of the first run by {:.3g}, allowed are {:.0e}", text,
                                difference, kLossBound));
    return {Verdict::kPassed, fmt::format("{}: losses of the first run to {:.1e}", text, difference)};
  }

  Finding Verify() const {
    VerifyReport all;
    int64_t checkpoints = 0;
    for (const char* run : {"alone", "run", "restart"}) {
      const RunHistory history = ReadHistory(PathOf(run));
      for (const Event* failed : history.EventsOf("checkpoint_failed"))
        all.damage.push_back(TextOf(failed->fields, "reason"));
      for (const std::string& dir : FindCheckpoints(PathOf(std::string(run) + "/checkpoints"))) {
        const VerifyReport report = VerifyCheckpoint(dir);
        all.bytes += report.bytes;
        ++checkpoints;
        all.damage.insert(all.damage.end(), report.damage.begin(), report.damage.end());
      }
    }
    if (!all.damage.empty()) return Failed(fmt::format("{}", fmt::join(all.damage, "; ")));
    if (checkpoints == 0) return Failed("there is no checkpoint");
    return {Verdict::kPassed, fmt::format("{}, {}: every byte agrees with its checksum",
                                          Counted(checkpoints, "checkpoint"), HumanBytes(all.bytes))};
  }

  /// The runs have used GPUs if there are any.
  Finding Gpus() const {
    const Deck deck = ParseDeck(SelfTestDeck(world_.Size()), "selftest").deck;
    const RunHistory history = ReadHistory(PathOf("run"));
    const Event* start = history.LastStart();
    if (start == nullptr) return Failed("the run on all ranks has not begun");
    const std::string device = TextOf(start->fields, "device");
    if (device != "cuda") return Skipped(PredictDevice(deck));
    return {Verdict::kPassed, "the run and its restart computed on GPUs"};
  }

  // Runs.

  /// A run whose output goes to a file. No part of it may be destroyed while an error of one rank unwinds.
  void Train(World& world, MpiWorld* mpi, const std::string& name, const std::vector<std::string>& layout,
             const std::string& restart = "") {
    RunOptions options{
        .arguments = {PathOf("selftest.toml"), layout}, .verbosity = Verbosity::kQuiet, .restart = restart};
    options.arguments.overrides.push_back(fmt::format("run.dir=\"{}\"", PathOf(name)));
    const OutputToFile output(PathOf("output"));
    Parts parts;
    ExitStatus status = ExitStatus::kDone;
    std::optional<AgreedError> agreed;
    try {
      status = TrainIn(options, world, mpi, parts);
    } catch (const AgreedError& error) {
      agreed = error;
    } catch (const std::exception& error) {
      if (world.Size() > 1) world.Fail(MessageOf(error));
      agreed = AgreedError(ExitStatus::kFault, MessageOf(error));
    }
    if (agreed) throw AgreedError(*agreed);
    if (status != ExitStatus::kDone)
      throw AgreedError(status, fmt::format("{} ended early, with status {}", name, static_cast<int>(status)));
  }

  std::vector<double> LossesOf(const std::string& name) const {
    const RunHistory history = ReadHistory(PathOf(name));
    return history.steps.Column("loss");
  }

  ExitStatus Finish() {
    const bool failed = world_.Max(failed_.empty() ? 0 : 1) > 0;
    if (IsRankZero() && !failed && !options_.keep) std::filesystem::remove_all(folder_);
    Say("");
    Say(failed ? fmt::format("selftest FAILED: {}; runs and output are kept in {}", fmt::join(failed_, ", "), folder_)
               : fmt::format("selftest passed in {:.1f} s{}", MillisecondsSince(began_) / 1e3,
                             options_.keep ? ", kept in " + folder_ : ""));
    return failed ? ExitStatus::kFault : ExitStatus::kDone;
  }

  static constexpr int64_t kRestartStep = 4;

  const SelfTestOptions& options_;
  World& world_;
  MpiWorld* mpi_;
  const std::string folder_;
  const Clock::time_point began_ = Clock::now();
  int threads_ = 1;
  std::vector<std::string> failed_;  ///< on rank 0
};

}  // namespace

ExitStatus SelfTest(const SelfTestOptions& options) {
  WaitBriefly(ParseDeck(SelfTestDeck(1), "selftest").deck);
  ArmFaultFromEnvironment();
  InitializeStorage();
  return RunJob([&](World& world, MpiWorld* mpi, Parts& parts) {
    CheckLauncher(world.Size());
    return parts.Make<Checks>(options, world, mpi).Run();
  });
}

}  // namespace espalier
