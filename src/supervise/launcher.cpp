#include "supervise/launcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <sstream>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void Append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

/// Ranks get no core of their own, unless the user says more than the launcher's name: the scheduler has assigned them.
void AddBinding(const Launcher& launcher, std::vector<std::string>& words) {
  Append(words, {"--oversubscribe"});
  if (launcher.words.size() == 1) Append(words, {"--bind-to", "none"});
}

}  // namespace

Launcher LauncherOf(const std::string& words) {
  Launcher launcher;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) launcher.words.push_back(word);
  const std::string name = launcher.words.empty() ? "" : std::filesystem::path(launcher.words[0]).filename();
  if (name == "srun")
    launcher.kind = LauncherKind::kSrun;
  else if (name != "mpirun" && name != "mpiexec")
    throw UserError(ExitStatus::kDeck,
                    fmt::format("command line: --launch: {} (allowed: mpirun, mpiexec or srun, with options)", words));
  return launcher;
}

std::vector<std::string> RunWords(const Launcher& launcher, const std::vector<std::string>& hosts, int ranks,
                                  int ranks_each, const std::vector<std::string>& program) {
  std::vector<std::string> words = launcher.words;
  if (launcher.kind == LauncherKind::kMpirun) {
    const std::string separator = fmt::format(":{},", ranks_each);
    Append(words, {"-n", std::to_string(ranks), "-H", fmt::format("{}:{}", fmt::join(hosts, separator), ranks_each)});
    AddBinding(launcher, words);
    Append(words, {"-x", kSupervised});
  } else if (launcher.kind == LauncherKind::kSrun) {
    Append(words, {"--nodes=" + std::to_string(hosts.size()), "--ntasks=" + std::to_string(ranks),
                   fmt::format("--ntasks-per-node={}", ranks_each), "--kill-on-bad-exit=1", "--overlap",
                   fmt::format("--nodelist={}", fmt::join(hosts, ","))});
  }
  Append(words, program);
  return words;
}

std::vector<std::string> OnHostWords(const Launcher& launcher, const std::string& host,
                                     const std::vector<std::string>& program) {
  std::vector<std::string> words;
  if (launcher.kind == LauncherKind::kMpirun) {
    words = launcher.words;
    Append(words, {"-n", "1", "-H", host + ":1"});
    AddBinding(launcher, words);
  } else if (launcher.kind == LauncherKind::kSrun) {
    words = {launcher.words[0], "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", "--nodelist=" + host};
  }
  Append(words, program);
  return words;
}

}  // namespace espalier
