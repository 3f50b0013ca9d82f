#include "supervise/hosts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxFile = int64_t{16} << 20;
constexpr int kMaxNodes = 1 << 20;

/// Hosts in order, each with its number of ranks; 0: not said.
using Counted = std::vector<std::pair<std::string, int>>;

[[noreturn]] void Refuse(const std::string& why) { throw UserError(ExitStatus::kDeck, why); }

std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::vector<std::string> SplitAt(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

/// Adds ranks to a host; 0 ranks: not said.
void Add(Counted& hosts, const std::string& name, int ranks) {
  const auto known = std::ranges::find(hosts, name, &std::pair<std::string, int>::first);
  if (known == hosts.end())
    hosts.emplace_back(name, ranks);
  else
    known->second += ranks;
}

/// "a:2,b:2", "a,b".
Counted OfOption(const std::string& text) {
  Counted hosts;
  for (const std::string& part : SplitAt(text, ',')) {
    const size_t colon = part.find(':');
    const std::optional<int> ranks = colon == part.npos ? 0 : NumberOf(std::string_view(part).substr(colon + 1));
    if (!ranks || (colon != part.npos && *ranks == 0) || colon == 0)
      Refuse(
          fmt::format("command line: --hosts: {} (allowed: a name, or a name and its ranks, such as node1:8)", part));
    Add(hosts, part.substr(0, colon), *ranks);
  }
  return hosts;
}

/// Lines "name", "name slots=N" or, once for each rank, "name".
Counted OfFile(const std::string& path) {
  Counted hosts;
  std::istringstream lines(ReadFile(path, {.what = "list of hosts", .most_bytes = kMaxFile}));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, word;
    if (!(words >> name)) continue;
    int slots = 1;
    while (words >> word) {
      if (!word.starts_with("slots=")) continue;
      const auto given = NumberOf(std::string_view(word).substr(6));
      if (!given || *given == 0)
        Refuse(fmt::format("{}:{}: {} (allowed: slots= and a number from 1)", path, number, word));
      slots = *given;
    }
    Add(hosts, name, slots);
  }
  if (hosts.empty()) Refuse(path + ": names no host");
  return hosts;
}

/// "2(x3),1": ranks of each node, as Slurm writes them.
std::vector<int> OfTasksPerNode(const std::string& text) {
  std::vector<int> tasks;
  for (const std::string& part : SplitAt(text, ',')) {
    const size_t times = part.find("(x");
    const std::optional<int> count = NumberOf(std::string_view(part).substr(0, times));
    const std::optional<int> repeated =
        times == part.npos ? 1 : NumberOf(std::string_view(part).substr(times + 2, part.size() - times - 3));
    if (!count || !repeated || *repeated > kMaxNodes) Refuse("environment: SLURM_TASKS_PER_NODE = " + text);
    tasks.insert(tasks.end(), static_cast<size_t>(*repeated), *count);
  }
  return tasks;
}

Counted OfSlurm(const std::string& nodes, const Variables& variables) {
  const std::vector<int> tasks = OfTasksPerNode(variables("SLURM_TASKS_PER_NODE"));
  const int each = NumberOf(variables("SLURM_NTASKS_PER_NODE")).value_or(0);
  Counted hosts;
  for (const std::string& name : ExpandNodeList(nodes)) {
    const size_t at = hosts.size();
    Add(hosts, name, each > 0 ? each : at < tasks.size() ? tasks[at] : 1);
  }
  return hosts;
}

/// "a 2 b 2".
Counted OfLsf(const std::string& text) {
  Counted hosts;
  std::istringstream words(text);
  std::string name;
  for (int ranks = 0; words >> name >> ranks;) Add(hosts, name, ranks);
  return hosts;
}

std::pair<Counted, std::string> Given(const SuperviseOptions& options, const Variables& variables) {
  if (!options.hosts.empty()) return {OfOption(options.hosts), "--hosts"};
  if (!options.hostfile.empty()) return {OfFile(options.hostfile), options.hostfile};
  if (const std::string nodes = variables("SLURM_JOB_NODELIST"); !nodes.empty())
    return {OfSlurm(nodes, variables), "SLURM_JOB_NODELIST"};
  if (const std::string file = variables("PBS_NODEFILE"); !file.empty()) return {OfFile(file), "PBS_NODEFILE"};
  if (const std::string file = variables("LSB_DJOB_HOSTFILE"); !file.empty())
    return {OfFile(file), "LSB_DJOB_HOSTFILE"};
  if (const std::string text = variables("LSB_MCPU_HOSTS"); !text.empty()) return {OfLsf(text), "LSB_MCPU_HOSTS"};
  return {};
}

/// The same number on all hosts: a host takes the place of any other.
int RanksEach(const Counted& hosts, const SuperviseOptions& options, const std::string& origin) {
  if (options.ranks_per_host > 0) return options.ranks_per_host;
  for (const auto& [name, ranks] : hosts)
    if (ranks != hosts.front().second)
      Refuse(
          fmt::format("{}: {} has {} ranks and {} has {}: all must have as many, so that any can take the place of "
                      "another (--ranks-per-host sets the number)",
                      origin, hosts.front().first, hosts.front().second, name, ranks));
  return std::max(1, hosts.front().second);
}

}  // namespace

std::vector<std::string> ExpandNodeList(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t end = text.find_first_of(",[");
    const std::string prefix(text.substr(0, end));
    if (end == text.npos || text[end] == ',') {
      if (!prefix.empty()) names.push_back(prefix);
      text.remove_prefix(end == text.npos ? text.size() : end + 1);
      continue;
    }
    const size_t close = text.find(']');
    if (close == text.npos) Refuse(fmt::format("{}: a bracket of the list of nodes does not close", text));
    for (const std::string& range : SplitAt(text.substr(end + 1, close - end - 1), ',')) {
      const size_t dash = range.find('-');
      const std::string first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
      const auto from = NumberOf(first), to = NumberOf(last);
      if (!from || !to || *to < *from || *to - *from > kMaxNodes)
        Refuse(fmt::format("{}: {} is no range of nodes", text, range));
      for (int i = *from; i <= *to; ++i) names.push_back(fmt::format("{}{:0{}}", prefix, i, first.size()));
    }
    text.remove_prefix(close + 1);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  return names;
}

HostList FindHosts(const SuperviseOptions& options, const Variables& variables, const std::string& this_host,
                   int alone) {
  auto [hosts, origin] = Given(options, variables);
  if (hosts.empty()) hosts = {{this_host, alone}}, origin = "this host";
  HostList list{{}, RanksEach(hosts, options, origin), origin};
  for (const auto& [name, ranks] : hosts) list.names.push_back(name);
  if (options.spares >= std::ssize(list.names))
    Refuse(fmt::format("command line: --spares {}: no host is left to train: there are {} (of {})", options.spares,
                       list.names.size(), origin));
  return list;
}

}  // namespace espalier
