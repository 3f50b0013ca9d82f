#include "train/reporting/start_block.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "espalier/comm/agreement.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/host_name.hpp"
#include "train/reporting/end_block.hpp"
#include "train/reporting/peak.hpp"
#include "train/reporting/training_lines.hpp"

namespace espalier {
namespace {

/// The memory figures of a rank.
struct RankMemory {
  std::string host;
  int64_t arena = 0, on_host = 0, staging = 0, free = 0;

  auto Fields() { return std::tie(host, arena, on_host, staging, free); }
};

std::vector<RankMemory> MemoryOfRanks(const Run& run) {
  const Arena* on_host = run.programs.host();
  const RankMemory mine{HostName(), run.programs.arena().bytes(), on_host == nullptr ? 0 : on_host->bytes(),
                        run.checkpoints.staging_bytes(), run.programs.free_bytes()};
  return Gathered(run.world, mine);
}

std::string MeshText(const Mesh& mesh) {
  std::vector<std::string> degrees;
  for (const auto& [axis, degree] : mesh.DeckDegrees())
    if (degree > 1) degrees.push_back(fmt::format("{} {}", axis, degree));
  return degrees.empty() ? "no parallelism" : fmt::format("{}", fmt::join(degrees, " x "));
}

/// ", 2 threads each (4 threads on 4 cores, short spins)"; empty if no thread computes.
std::string ThreadsText(const Run& run) {
  if (run.threads.cores == 0) return "";
  const int64_t all = int64_t{run.threads.count} * run.world.Size();
  return fmt::format(", {} each ({} on {}{})", Counted(run.threads.count, "thread"), Counted(all, "thread"),
                     Counted(run.threads.cores, "core"), run.threads.count > 1 ? ", " + WaitPolicyText() : "");
}

std::string RanksText(const Run& run, size_t hosts) {
  const Compilation& c = run.programs.compilation();
  const std::string pipeline = c.mesh.Degree(Axis::kPp) == 1 ? "" : fmt::format(", {}", DescribeSchedule(c.deck));
  return fmt::format("{} on {}, {}{}; {}{}, {} of {}", run.world.Size(), Counted(static_cast<int64_t>(hosts), "host"),
                     DeckName(run.deck().run.device), ThreadsText(run), MeshText(c.mesh), pipeline,
                     Counted(c.batch.microbatches, "microbatch"), c.batch.micro);
}

/// "; 21.3 GiB were free on node7": the node with the least. Empty if no memory is taken.
std::string FreeText(const std::vector<RankMemory>& ranks) {
  const auto least = std::ranges::min_element(ranks, {}, &RankMemory::free);
  if (least->free == std::numeric_limits<int64_t>::max()) return "";
  return fmt::format("; {} were free{}", HumanBytes(least->free), ranks.size() > 1 ? " on " + least->host : "");
}

/// The rank that needs most, and the one with the least free memory.
std::string MemoryText(const std::vector<RankMemory>& ranks) {
  const auto most = std::ranges::max_element(ranks, {}, &RankMemory::arena);
  const int64_t staged = std::ranges::max(ranks, {}, &RankMemory::staging).staging;
  const std::string staging = staged == 0 ? "" : fmt::format(" + {} to stage saves", HumanBytes(staged));
  const int64_t most_on_host = std::ranges::max(ranks, {}, &RankMemory::on_host).on_host;
  const std::string on_host = most_on_host == 0 ? "" : fmt::format(" + {} on the host", HumanBytes(most_on_host));
  const std::string which = ranks.size() > 1 ? fmt::format(" at most (rank {})", most - ranks.begin()) : "";
  return fmt::format("{} a rank{}{}{}{}", HumanBytes(most->arena), which, on_host, staging, FreeText(ranks));
}

std::string SavesText(const Run& run) {
  const Deck& deck = run.deck();
  std::vector<std::string> when;
  if (deck.checkpoint.every_steps > 0)
    when.push_back(fmt::format("every {}", Counted(deck.checkpoint.every_steps, "step")));
  if (deck.checkpoint.every_s > 0) when.push_back(fmt::format("every {}", HumanDuration(deck.checkpoint.every_s)));
  when.emplace_back("at the end");
  int64_t bytes = 0;
  for (const StateTensor& tensor : run.programs.tensors())
    bytes += Volume(tensor.type.shape) * SizeOf(tensor.type.dtype);
  return fmt::format("{} {}, {} of tensors each, {} kept", CheckpointFolder(deck), fmt::join(when, ", "),
                     HumanBytes(bytes), deck.checkpoint.keep);
}

/// Where copies in memory are, and on how many nodes; empty: there are none.
BlockLines CopiesLine(const Run& run) {
  const MemoryNodes* nodes = run.start.memory.get();
  const int64_t steps = run.deck().checkpoint.memory_steps;
  if (nodes == nullptr || !run.checkpoints.MemoryDue(steps)) return {};
  return {
      {"copies", fmt::format("{} every {}, {}", nodes->dir(), Counted(steps, "step"),
                             nodes->Count() > 1 ? fmt::format("a second one on the next of {} nodes", nodes->Count())
                                                : "on one node, without a second one")}};
}

/// The process to signal: under a launcher, which forwards signals, it is the launcher.
std::string StopText(const Run& run) {
  return fmt::format("kill -USR1 {} on {} saves and ends{}; {} goes on", getpid(), HostName(),
                     StartedByLauncher() ? " (or any other rank, or the launcher)" : "", SameCommand(run));
}

/// Origin of the weights, and keys that differ there.
BlockLines OriginLines(const Run& run, int64_t step) {
  if (!run.device.Computes()) return {};
  if (run.checkpoints.loaded().empty()) {
    const std::string& from = run.deck().run.init_from;
    return {{"weights", from.empty() ? fmt::format("initial, of run.seed = {}", run.deck().run.seed) : "of " + from}};
  }
  BlockLines lines = {{"restart", fmt::format("from {} (step {})", run.checkpoints.loaded(), step)}};
  for (const DeckDifference& difference : run.checkpoints.differences())
    lines.push_back({"changed", difference.Text()});
  return lines;
}

/// Identical devices are counted. CPUs count as identical.
BlockLines DeviceLines(const Run& run, const std::vector<std::string>& devices) {
  if (!run.device.Computes() || run.device.Kind() == DeviceKind::kCpu) {
    BlockLines lines = {{"device", devices.front()}};
    const std::string advice = run.device.Computes() ? PrecisionAdvice(run.deck()) : "";
    if (!advice.empty()) lines.push_back({"device", advice});
    return lines;
  }
  std::map<std::string, int> counts;
  for (const std::string& device : devices) ++counts[device.substr(0, device.rfind(", "))];
  BlockLines lines;
  for (const auto& [name, count] : counts) lines.push_back({"device", fmt::format("{} x {}", count, name)});
  for (size_t rank = 0; rank < devices.size(); ++rank)
    lines.push_back({"device", fmt::format("rank {}: {}", rank, devices[rank]), Worth::kRoutine});
  return lines;
}

BlockLines SleepLines(const Deck& deck) {
  return {
      {"sleep",
       fmt::format("nothing is computed or trained: kernels and messages wait for their times on the cluster of {}, "
                   "{:g} times as long (run.dilation)",
                   deck.run.cluster, deck.run.dilation)},
      {"sleep", "the times reported are those of the cluster; loss and gradient norm are null"},
      {"sleep", fmt::format("no data are read and no checkpoint is read or written; the guard on values that are not "
                            "finite is off{}",
                            Evaluates(deck) ? ", and validation is left out" : "")}};
}

/// Device::Conditions on one line; Linux names a processor "model name : ...".
std::string LibrariesText(const Device& device) {
  const std::string text = device.Conditions();
  const size_t colon = text.find(": ");
  return colon == text.npos ? text : text.substr(colon + 2);
}

std::string TimesText(const StartTimes& times) {
  return fmt::format("{:.2f} s to find deck, data and checkpoint, {:.2f} s to set up, {:.2f} s for the weights",
                     times.found_ms / 1e3, (times.set_up_ms - times.found_ms) / 1e3,
                     (times.state_ms - times.set_up_ms) / 1e3);
}

/// Expected facts, and how long the start took.
BlockLines RoutineLines(const Run& run, const StartTimes& times, const WorldProof& proof) {
  BlockLines lines = {{"peak", PeakText(run.peak), Worth::kRoutine}};
  if (run.programs.ramp().Grows())
    lines.push_back({"programs",
                     fmt::format("{} for training with {}, compiled in {:.1f} s", run.programs.trainings().size(),
                                 Counted(std::ssize(run.programs.ramp().Sizes()), "size"),
                                 run.programs.training_compile_ms() / 1e3),
                     Worth::kRoutine});
  lines.push_back(
      {"programs",
       fmt::format("{} on rank 0", Counted(std::ssize(run.programs.training().program().instructions), "instruction")),
       Worth::kRoutine});
  if (proof.why_not.empty())
    lines.push_back({"world",
                     fmt::format("the programs of {} fit together (proven in {:.0f} ms beside the start)",
                                 Counted(run.world.Size(), "rank"), proof.ms),
                     Worth::kRoutine});
  if (run.device.Computes()) lines.push_back({"libraries", LibrariesText(run.device), Worth::kRoutine});
  lines.push_back({"start", TimesText(times), Worth::kRoutine});
  return lines;
}

BlockLines DataLines(const Run& run) {
  if (!run.device.Computes()) return {};
  BlockLines lines;
  for (const std::string& text : Describe(run.start.data, run.deck())) lines.push_back({"data", text});
  lines.push_back({"data", Describe(run.start.data.Seen()), Worth::kRoutine});
  return lines;
}

/// Where results are written, and when the run ends.
BlockLines EndingLines(const Run& run) {
  BlockLines lines;
  if (run.device.Computes()) lines.push_back({"saves", SavesText(run)});
  std::ranges::move(CopiesLine(run), std::back_inserter(lines));
  lines.push_back({"metrics", run.deck().run.dir + "/metrics.jsonl"});
  if (const std::string notice = run.tracer.Notice(); !notice.empty()) lines.push_back({"trace", notice});
  if (const std::string notice = run.stop_reasons.Notice(); !notice.empty()) lines.push_back({"limit", notice});
  lines.push_back({"stop", StopText(run)});
  return lines;
}

void Append(BlockLines& lines, BlockLines more) { std::ranges::move(more, std::back_inserter(lines)); }

}  // namespace

BlockLines StartBlock(const Run& run, const StartTimes& times, const WorldProof& proof, int64_t step) {
  const std::vector<RankMemory> ranks = MemoryOfRanks(run);
  const std::vector<std::string> devices = DescribeDevices(run.device, run.world);
  if (!run.IsRankZero()) return {};
  std::set<std::string> hosts;
  for (const RankMemory& rank : ranks) hosts.insert(rank.host);
  BlockLines lines = {{"espalier", fmt::format("{} ({}), {}", kVersion, kGitHash, run.options.arguments.deck)}};
  Append(lines, TrainingLines(run, step));
  Append(lines, DataLines(run));
  Append(lines, OriginLines(run, step));
  lines.push_back({"ranks", RanksText(run, hosts.size())});
  if (const std::string order = DescribeOrder(run.deck()); !order.empty()) lines.push_back({"order", order});
  if (!run.threads.notice.empty()) lines.push_back({"threads", run.threads.notice});
  Append(lines, DeviceLines(run, devices));
  if (!run.device.Computes()) Append(lines, SleepLines(run.deck()));
  lines.push_back({"memory", MemoryText(ranks)});
  Append(lines, RoutineLines(run, times, proof));
  Append(lines, EndingLines(run));
  return lines;
}

}  // namespace espalier
