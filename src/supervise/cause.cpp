#include "supervise/cause.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The integer at the begin of `text`.
std::optional<int> LeadingNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end != text.data() ? std::optional(number) : std::nullopt;
}

/// The text after `mark` in the line; nothing if the line lacks it.
std::optional<std::string_view> After(std::string_view line, std::string_view mark) {
  const size_t at = line.find(mark);
  return at == line.npos ? std::nullopt : std::optional(line.substr(at + mark.size()));
}

std::string Word(std::string_view text) { return std::string(text.substr(0, text.find_first_of(" \t:,."))); }

/// How the watchdog accuses a rank (watch/diagnose.cpp).
constexpr std::string_view kAccusations[] = {"is stopped:",      "is gone:",  "gives no sign",
                                             "has no heartbeat", "went past", "is the only rank in a kernel",
                                             "has not arrived"};

/// "rank 7 went past ...": 7.
std::optional<int> Accused(std::string_view line) {
  if (!line.starts_with("rank ")) return std::nullopt;
  const std::string_view rest = line.substr(5);
  const size_t space = rest.find(' ');
  if (space == rest.npos) return std::nullopt;
  const std::string_view words = rest.substr(space + 1);
  const bool accuses =
      std::ranges::any_of(kAccusations, [&](std::string_view accusation) { return words.starts_with(accusation); });
  return accuses ? LeadingNumber(rest) : std::nullopt;
}

/// Reads the output of launcher and ranks line by line: the first of each kind counts.
struct Said {
  std::optional<int> gone;                ///< rank, by the watchdog of another one
  bool watchdog = false, hang = false;    ///< it has spoken; nothing has finished
  std::optional<int> accused;             ///< by a diagnosis
  std::optional<int> error;               ///< rank that reports an error
  std::optional<int> died;                ///< rank, by the launcher
  std::vector<std::string> lost, blamed;  ///< hosts without a daemon; hosts of processes that died
  std::string gone_line, accusation, network, error_line, died_line, lost_line;
};

template <typename T>
void Keep(std::optional<T>& first, std::string& line, std::optional<T> found, std::string_view here) {
  if (first || !found) return;
  first = found;
  line = here;
}

/// A line of a run.
void ReadOurs(std::string_view line, Said& said) {
  if (const auto rest = After(line, "espalier: watchdog of rank ")) {
    said.watchdog = true;
    said.hang = said.hang || rest->find("nothing has finished") != rest->npos;
    if (const auto gone = After(*rest, ": rank "))
      if (gone->find(" is gone: ") != gone->npos) Keep(said.gone, said.gone_line, LeadingNumber(*gone), line);
  } else if (const auto failed = After(line, "espalier: rank ")) {
    Keep(said.error, said.error_line, LeadingNumber(*failed), line);
  } else if (const auto reported = After(line, "(rank ")) {
    if (line.starts_with("espalier: ")) Keep(said.error, said.error_line, LeadingNumber(*reported), line);
  } else if (said.watchdog) {
    Keep(said.accused, said.accusation, Accused(line), line);
    if (said.network.empty() && line.starts_with("the network between hosts ")) said.network = line;
  }
}

/// A line of Open MPI or Slurm.
void ReadLaunchers(std::string_view line, std::string_view before, Said& said) {
  if (const auto noticed = After(line, "noticed that process rank ")) {  // Open MPI
    Keep(said.died, said.died_line, LeadingNumber(*noticed), line);
    if (const auto host = After(line, " on node ")) said.blamed.push_back(Word(*host));
  } else if (const auto remote = After(line, "Remote daemon:")) {
    if (const auto host = After(*remote, " on node ")) said.lost.push_back(Word(*host)), said.lost_line = line;
  } else if (line.find("Node failure on ") != line.npos) {  // Slurm
    said.lost.push_back(Word(*After(line, "Node failure on "))), said.lost_line = line;
  } else if (const auto slurm = After(line, "srun: error: ")) {
    const auto task = After(*slurm, ": task ");
    if (task && task->find("Exited with exit code") == task->npos)
      Keep(said.died, said.died_line, LeadingNumber(*task), line);
  } else if (before.find("first process to do so was:") != before.npos || line.find("Process name: [[") != line.npos) {
    if (const auto name = After(line, "Process name: [["))
      if (const auto rank = After(*name, "],")) Keep(said.died, said.died_line, LeadingNumber(*rank), line);
  }
}

Said Read(const std::string& errors) {
  Said said;
  std::istringstream lines(errors);
  std::string before;
  for (std::string line; std::getline(lines, line); before = line) {
    ReadOurs(line, said);
    ReadLaunchers(line, before, said);
  }
  return said;
}

/// Adds the hosts of the ranks.
Cause Blaming(CauseKind kind, std::vector<int> ranks, const std::string& text, const StartEnd& end) {
  Cause cause{kind, std::move(ranks), {}, text};
  for (int rank : cause.ranks) {
    const auto host = static_cast<size_t>(rank / std::max(1, end.ranks_each));
    if (rank < 0 || host >= end.hosts.size()) continue;
    if (std::ranges::find(cause.hosts, end.hosts[host]) == cause.hosts.end()) cause.hosts.push_back(end.hosts[host]);
  }
  return cause;
}

/// The launcher may name a host in full where it was given in short, or the other way round.
std::vector<std::string> AsGiven(const std::vector<std::string>& named, const std::vector<std::string>& hosts) {
  std::vector<std::string> given;
  for (const std::string& host : hosts)
    if (std::ranges::any_of(named, [&](const std::string& name) { return Word(name) == Word(host); }))
      given.push_back(host);
  return given;
}

Cause FromErrors(const StartEnd& end) {
  const Said said = Read(end.errors);
  if (said.gone) return Blaming(CauseKind::kProcess, {*said.gone}, said.gone_line, end);
  if (said.hang && said.accused) return Blaming(CauseKind::kHang, {*said.accused}, said.accusation, end);
  if (!said.network.empty()) return {CauseKind::kHang, {}, {}, said.network};
  if (!said.lost.empty()) {
    Cause cause{CauseKind::kHost, {}, AsGiven(said.lost, end.hosts), ""};
    cause.text =
        fmt::format("the launcher has lost {}", fmt::join(cause.hosts.empty() ? said.lost : cause.hosts, ", "));
    return cause;
  }
  if (!end.corrupt.empty())
    return Blaming(CauseKind::kCorrupt, end.corrupt,
                   fmt::format("values that should be equal differ: rank {}", fmt::join(end.corrupt, ", ")), end);
  if (said.hang) return {CauseKind::kHang, {}, {}, "a hang for which no rank is to blame"};
  if (said.error) return Blaming(CauseKind::kProcess, {*said.error}, said.error_line, end);
  if (said.died) {
    Cause cause = Blaming(CauseKind::kProcess, {*said.died}, fmt::format("rank {} has died", *said.died), end);
    if (cause.hosts.empty()) cause.hosts = AsGiven(said.blamed, end.hosts);
    return cause;
  }
  return {CauseKind::kUnknown,
          {},
          {},
          end.status >= 128 ? fmt::format("signal {} ended the launcher", end.status - 128)
                            : fmt::format("exit status {}", end.status)};
}

}  // namespace

std::string_view Name(CauseKind kind) {
  constexpr std::string_view kNames[] = {"done", "stopped", "refused", "process", "host", "hang", "corrupt", "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

Cause FindCause(const StartEnd& end) {
  const auto status = static_cast<ExitStatus>(end.status);
  if (status == ExitStatus::kDone && end.done) return {CauseKind::kDone, {}, {}, "all steps are done"};
  if (status == ExitStatus::kStopped) return {CauseKind::kStopped, {}, {}, "asked to stop"};
  const bool refused = status == ExitStatus::kDeck || status == ExitStatus::kData || status == ExitStatus::kDoesNotFit;
  if (refused) return {CauseKind::kRefused, {}, {}, fmt::format("exit status {}", end.status)};
  return FromErrors(end);
}

}  // namespace espalier
