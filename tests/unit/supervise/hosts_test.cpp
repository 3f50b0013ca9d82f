// Hosts of a job, and which of them the next start uses.
#include "supervise/hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "supervise/host_pool.hpp"
#include "supervise/launcher.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Variables Set(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? "" : found->second;
  };
}

SuperviseOptions Options(const std::string& hosts, int spares = 0, const std::string& hostfile = "") {
  SuperviseOptions options;
  options.hosts = hosts;
  options.spares = spares;
  options.hostfile = hostfile;
  return options;
}

std::string Refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDeck);
    return error.what();
  }
  return "accepted";
}

TEST(Hosts, SlurmsListsAreExpanded) {
  EXPECT_THAT(ExpandNodeList("n1"), ElementsAre("n1"));
  EXPECT_THAT(ExpandNodeList("gpu[08-11,3],login,b[7]"),
              ElementsAre("gpu08", "gpu09", "gpu10", "gpu11", "gpu3", "login", "b7"));
  EXPECT_THAT(Refusal([] { ExpandNodeList("a[1-"); }), HasSubstr("does not close"));
  EXPECT_THAT(Refusal([] { ExpandNodeList("a[3-1]"); }), HasSubstr("3-1 is no range"));
}

TEST(Hosts, ComeFromTheFirstPlaceThatNamesThem) {
  const Variables slurm = Set({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", "4(x3)"}});
  const HostList of_slurm = FindHosts(Options("", 1), slurm, "login", 1);
  EXPECT_THAT(of_slurm.names, ElementsAre("n1", "n2", "n3"));
  EXPECT_EQ(of_slurm.ranks_each, 4);
  const HostList option = FindHosts(Options("a:2,b:2,a:1,b:1"), slurm, "login", 1);
  EXPECT_THAT(option.names, ElementsAre("a", "b"));
  EXPECT_EQ(option.ranks_each, 3);
  SuperviseOptions five = Options("a,b");
  five.ranks_per_host = 5;
  EXPECT_EQ(FindHosts(five, slurm, "login", 1).ranks_each, 5);
  EXPECT_EQ(FindHosts({}, Set({{"LSB_MCPU_HOSTS", "x 2 y 2"}}), "login", 1).names.size(), 2u);
  const HostList alone = FindHosts({}, Set({}), "here", 6);
  EXPECT_THAT(alone.names, ElementsAre("here"));
  EXPECT_EQ(alone.ranks_each, 6);
}

TEST(Hosts, AFileHasALineForEachHostOrEachRank) {
  const std::string path = testing::TempDir() + "/hosts";
  std::ofstream(path) << "# nodes of today\na\na\nb slots=2 max_slots=2\n\n";
  const HostList list = FindHosts({}, Set({{"PBS_NODEFILE", path}}), "here", 1);
  EXPECT_THAT(list.names, ElementsAre("a", "b"));
  EXPECT_EQ(list.ranks_each, 2);
  std::ofstream(path) << "a slots=0\n";
  EXPECT_THAT(Refusal([&] { FindHosts(Options("", 0, path), Set({}), "here", 1); }), HasSubstr("slots= and a number"));
  std::filesystem::remove(path);
}

TEST(Hosts, UnequalHostsAndTooManySparesAreRefused) {
  EXPECT_THAT(Refusal([] { FindHosts(Options("a:2,b:3"), Set({}), "here", 1); }), HasSubstr("--ranks-per-host"));
  EXPECT_THAT(Refusal([] { FindHosts(Options("a:x"), Set({}), "here", 1); }), HasSubstr("node1:8"));
  EXPECT_THAT(Refusal([] { FindHosts(Options("a,b", 2), Set({}), "here", 1); }), HasSubstr("--spares 2"));
}

TEST(HostPool, ASpareTakesThePlaceOfAHostThatFailed) {
  HostPool pool({"a", "b", "c", "d", "e"}, 3);
  EXPECT_THAT(pool.Choose({}, 3), ElementsAre("a", "b", "c"));
  pool.Failed({"b"});
  EXPECT_THAT(pool.Choose({"a", "b", "c"}, 3), ElementsAre("a", "d", "c"));
  pool.Failed({"a", "c"});
  EXPECT_THAT(pool.Choose({"a", "d", "c"}, 3), ElementsAre("e", "d", "b"));
  pool.Failed({"d"});
  EXPECT_THAT(pool.Choose({"e", "d", "b"}, 3), ElementsAre("e", "a", "b"));  // of a, c and d, a failed first
}

TEST(HostPool, HostsThatDoNotAnswerOrFailTooOftenAreNotUsed) {
  HostPool pool({"a", "b", "c"}, 2);
  pool.SetAnswers("a", false);
  EXPECT_THAT(pool.Choose({"a", "b"}, 2), ElementsAre("c", "b"));
  pool.Failed({"b"});
  pool.Failed({"b"});
  EXPECT_EQ(pool.UsableCount(), 1u);
  pool.SetAnswers("a", true);
  EXPECT_THAT(pool.Choose({"c", "b"}, 2), ElementsAre("c", "a"));
  pool.Exclude("c");
  EXPECT_THAT(pool.Choose({"c", "a"}, 2), ElementsAre("a"));
}

TEST(Launchers, PlaceRanksInTheOrderOfHosts) {
  EXPECT_THAT(RunWords(LauncherOf("mpirun"), {"b", "a"}, 3, 2, {"x", "run"}),
              ElementsAre("mpirun", "-n", "3", "-H", "b:2,a:2", "--oversubscribe", "--bind-to", "none", "-x",
                          "ESPALIER_SUPERVISED", "x", "run"));
  EXPECT_THAT(RunWords(LauncherOf("srun --mpi=pmix"), {"b", "a"}, 4, 2, {"x"}),
              ElementsAre("srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2",
                          "--kill-on-bad-exit=1", "--overlap", "--nodelist=b,a", "x"));
  EXPECT_THAT(RunWords({LauncherKind::kNone, {}}, {"a"}, 1, 1, {"x", "run"}), ElementsAre("x", "run"));
  EXPECT_THAT(Refusal([] { LauncherOf("aprun -B"); }), HasSubstr("aprun -B (allowed: mpirun"));
}

}  // namespace
}  // namespace espalier
