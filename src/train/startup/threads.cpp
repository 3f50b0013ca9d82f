#include "espalier/train/threads.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "espalier/comm/agreement.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

std::vector<int> Affinity() {
  std::vector<int> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

/// The first number of OMP_NUM_THREADS, which may list one for each level; 0 if there is none.
int AskedByEnvironment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : std::clamp(std::atoi(text), 0, CPU_SETSIZE);
}

constexpr const char* kPolicies[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};

using Users = std::map<std::pair<std::string, int>, int>;  ///< ranks by node and core

Users UsersOf(std::span<const CoresOfRank> ranks) {
  Users users;
  for (const CoresOfRank& rank : ranks)
    for (int core : rank.cores) ++users[{rank.node, core}];
  return users;
}

int ShareOf(const CoresOfRank& rank, const Users& users) {
  double share = 0;
  for (int core : rank.cores) share += 1.0 / users.at({rank.node, core});
  return std::max(1, static_cast<int>(share + 1e-6));
}

/// A message about a node with more threads than cores that its ranks may use; empty if there is none.
std::string Crowded(int threads, std::span<const CoresOfRank> ranks, const Users& users) {
  std::map<std::string, std::pair<int, int>> nodes;  // ranks and cores
  for (const CoresOfRank& rank : ranks) ++nodes[rank.node].first;
  for (const auto& [place, count] : users) ++nodes[place.first].second;
  for (const auto& [node, size] : nodes)
    if (threads > 1 && size.first * threads > size.second)
      return fmt::format(
          "{} rank{} of a node with {} threads each share {} cores: steps will be slow; fewer ranks, or a smaller "
          "run.threads",
          size.first, size.first == 1 ? "" : "s", threads, size.second);
  return "";
}

/// A message about a rank that its launcher left one core of a node with more cores than ranks.
std::string Bound(int threads, std::span<const CoresOfRank> ranks) {
  std::map<std::string, int> ranks_of;
  for (const CoresOfRank& rank : ranks) ++ranks_of[rank.node];
  for (const CoresOfRank& rank : ranks)
    if (threads == 1 && rank.cores.size() == 1 && rank.node_cores >= 2 * ranks_of[rank.node])
      return fmt::format(
          "each rank computes with 1 thread: its launcher lets it use 1 of the node's {} cores (mpirun --bind-to none, "
          "or "
          "--map-by slot:PE=K; srun --cpus-per-task=K)",
          rank.node_cores);
  return "";
}

/// Number of processes that the launcher started on this node; 1 if it is unknown.
int LocalProcesses() {
  // Slurm writes "4(x2),3": the first number is a good guess.
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"})
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  return 1;
}

/// Iterations of a waiting thread before it sleeps: 30 to 100 us, longer than a kernel needs between its parts
/// (doc/dev/performance-log.md, Waiting threads).
constexpr const char* kShortSpins = "2000";

/// How OpenMP's threads should wait: an environment variable and its value; none if no thread waits for another.
std::optional<std::pair<const char*, const char*>> WaitingFor(const Deck& deck) {
  if (deck.run.device == RunDevice::kSleep) return std::nullopt;  // no thread computes
  const int cores = static_cast<int>(Affinity().size());
  const int64_t asked = deck.run.threads > 0 ? deck.run.threads : AskedByEnvironment(),
                threads = asked > 0 ? asked : cores;
  if (threads == 1) return std::nullopt;
  // If the process may use only some of the node's cores, they are assumed to be this rank's own.
  const int ranks = cores < static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) ? 1 : LocalProcesses();
  if (asked * ranks > cores) return std::pair("OMP_WAIT_POLICY", "passive");
  return std::pair("GOMP_SPINCOUNT", kShortSpins);
}

std::vector<std::string> ArgumentsOfThis() {
  std::istringstream file(ReadSystemFile("/proc/self/cmdline"));
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

/// Executes the program again. No signal is lost: signals stay blocked until the new image catches them. Returns only
/// on failure.
void StartAnew() {
  std::vector<std::string> arguments = ArgumentsOfThis();
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::error_code error;
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe", error).string();
  HoldStopSignals();
  if (StopSignal() == 0) ::execv(executable.c_str(), pointers.data());
  CatchStopSignals();
}

}  // namespace

CoresOfRank CoresOfThis() {
  return {NodeKey(), Affinity(), static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), AskedByEnvironment()};
}

Threads ChooseThreads(int64_t run_threads, std::span<const CoresOfRank> ranks) {
  const Users users = UsersOf(ranks);
  Threads threads;
  threads.cores = static_cast<int>(users.size());
  if (run_threads > 0) {
    threads.count = static_cast<int>(run_threads);
  } else {
    threads.count = CPU_SETSIZE;
    bool asked = false;
    for (const CoresOfRank& rank : ranks) {
      threads.count = std::min(threads.count, rank.asked > 0 ? rank.asked : ShareOf(rank, users));
      asked |= rank.asked > 0;
    }
    if (asked)
      threads.notice = fmt::format("each rank computes with {} thread{} (OMP_NUM_THREADS)", threads.count,
                                   threads.count == 1 ? "" : "s");
  }
  if (const std::string crowded = Crowded(threads.count, ranks, users); !crowded.empty()) threads.notice = crowded;
  if (threads.notice.empty() && run_threads == 0) threads.notice = Bound(threads.count, ranks);
  return threads;
}

Threads AgreeOnThreads(const Deck& deck, World& world) {
  const std::vector<CoresOfRank> ranks = Gathered(world, CoresOfThis());
  Threads threads;
  if (world.Rank() == 0) threads = ChooseThreads(deck.run.threads, ranks);
  threads.count = static_cast<int>(world.Max(world.Rank() == 0 ? threads.count : 0));
  return threads;
}

int ThreadCount(const Deck& deck) {
  const CoresOfRank alone = CoresOfThis();
  return ChooseThreads(deck.run.threads, {&alone, 1}).count;
}

std::string WaitPolicyText() {
  for (const char* policy : kPolicies)
    if (const char* value = std::getenv(policy)) {
      if (std::string_view(value) == "passive") return "no spins";
      if (std::string_view(value) == kShortSpins) return "short spins";
      return fmt::format("{}={}", policy, value);
    }
  return "long spins";
}

void WaitBriefly(const Deck& deck) {
  for (const char* policy : kPolicies)
    if (std::getenv(policy) != nullptr) return;
  const auto waiting = WaitingFor(deck);
  if (!waiting) return;
  ::setenv(waiting->first, waiting->second, 1);
  StartAnew();
}

}  // namespace espalier
