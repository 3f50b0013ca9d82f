#include "espalier/supervise/supervise.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/host_name.hpp"
#include "supervise/child_process.hpp"
#include "supervise/supervisor.hpp"

namespace espalier {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Debian's Open MPI needs PMIx: without it every rank would be a world of its own.
bool SrunHasPmix() {
  constexpr double kPatienceMs = 20'000;
  ChildProcess list({"srun", "--mpi=list"}, Output::kCaptured);
  const auto began = std::chrono::steady_clock::now();
  while (!list.Poll() && MillisecondsSince(began) < kPatienceMs)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return list.text().find("pmix") != std::string::npos;
}

Launcher ChooseLauncher(const SuperviseOptions& options, const HostList& hosts) {
  if (!options.launch.empty()) return LauncherOf(options.launch);
  if (hosts.names.size() == 1 && hosts.ranks_each == 1) return {LauncherKind::kNone, {}};
  if (!Variable("SLURM_JOB_ID").empty() && SrunHasPmix()) return LauncherOf("srun --mpi=pmix");
  return LauncherOf("mpirun");
}

/// This host as the list names it: in full or in short.
std::string NameInList(const std::string& name, const HostList& hosts) {
  const auto short_of = [](const std::string& text) { return text.substr(0, text.find('.')); };
  for (const std::string& listed : hosts.names)
    if (short_of(listed) == short_of(name)) return listed;
  return name;
}

/// Hosts are its nodes.
Cluster ClusterOf(const std::string& path, const HostList& hosts) {
  Cluster cluster = LoadCluster(path);
  if (cluster.ranks_per_node != hosts.ranks_each)
    throw UserError(
        ExitStatus::kDeck,
        fmt::format("command line: --cluster: {} has {} ranks in each node, the hosts have {} (a copy of the "
                    "file with ranks_per_node = {}, or --ranks-per-host)",
                    path, cluster.ranks_per_node, hosts.ranks_each, hosts.ranks_each));
  return cluster;
}

void RequireRestarts(const Deck& deck) {
  if (deck.checkpoint.restart == Restart::kNever)
    throw UserError(ExitStatus::kDeck,
                    "checkpoint.restart = \"never\": each start would begin anew; set it to \"auto\" (the default)");
}

}  // namespace

ExitStatus Supervise(const SuperviseOptions& options) {
  if (StartedByLauncher())
    throw UserError(ExitStatus::kDeck,
                    "command line: supervise starts the ranks itself: start it once, without mpirun or srun");
  SuperviseSetup setup;
  setup.options = options;
  setup.deck = LoadDeck(options.arguments.deck, options.arguments.overrides).deck;
  RequireRestarts(setup.deck);
  setup.run_dir = std::filesystem::absolute(setup.deck.run.dir).lexically_normal();
  setup.hosts = FindHosts(options, Variable, HostName(), SmallestRanks(setup.deck));
  const auto full = static_cast<int>(setup.hosts.names.size()) - options.spares;
  OwnLayout(options.arguments, full * setup.hosts.ranks_each);
  setup.deck.run.device = PlanDevice(setup.deck).device;
  if (!options.cluster.empty()) setup.costs.emplace(ClusterOf(options.cluster, setup.hosts));
  setup.this_host = NameInList(HostName(), setup.hosts);
  setup.launcher = ChooseLauncher(options, setup.hosts);
  setup.program = {options.program.empty() ? std::filesystem::read_symlink("/proc/self/exe").string()
                                           : std::filesystem::absolute(options.program).string()};
  return Supervisor(std::move(setup)).Run();
}

}  // namespace espalier
